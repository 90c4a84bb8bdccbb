// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const (
	p99Of      = "instance_workload_device_opcode:container_rdma_completion_duration_seconds:p99_rate5m"
	p99Others  = "instance_device_opcode:container_rdma_completion_duration_seconds:p99_others"
	ratioOther = "instance_workload_device_opcode:container_rdma_completion_duration_seconds:p99_ratio_others"
)

// inlined returns the expression of a recording rule with the expressions of others in place of their names.
func inlined(t *testing.T, name string, others ...string) string {
	t.Helper()
	expr := ""
	for _, r := range rules(t) {
		if r.Record == name {
			expr = r.Expr
		}
	}
	if expr == "" {
		t.Fatalf("no rule %s", name)
	}
	for _, other := range others {
		expr = strings.ReplaceAll(expr, other, "("+inlined(t, other)+")")
	}
	return expr
}

// TestSlowerThanOthers: the comparison with other workloads has the same result for classic histograms, native
// histograms, and both.
func TestSlowerThanOthers(t *testing.T) {
	expr := inlined(t, ratioOther, p99Others, p99Of)
	const family = "container_rdma_completion_duration_seconds"
	classic, native := "", ""
	// All durations of a workload are between 2^(n-1) and 2^n s.
	for workload, n := range map[string]int{"slow": 3, "a": 0, "b": 0, "fast": -2} {
		labels := fmt.Sprintf(`{job="a",instance="n1",workload="%s",container_id="%s",device="d",method="uprobe",opcode="write"`, workload, workload)
		for le, values := range map[string]string{fmt.Sprint(math.Exp2(float64(n - 1))): "0x30", fmt.Sprint(math.Exp2(float64(n))): "0+600x30", "+Inf": "0+600x30"} {
			classic += fmt.Sprintf("  %s_bucket%s,le=\"%s\"} %s\n", family, labels, le, values)
		}
		classic += fmt.Sprintf("  %s_count%s} 0+600x30\n", family, labels)
		native += fmt.Sprintf("  %s%s} {{schema:0 count:0}}+{{schema:0 sum:1 count:600 offset:%d buckets:[600]}}x30\n", family, labels, n)
	}
	for form, series := range map[string]string{"classic": classic, "native": native, "both": classic + native} {
		t.Run(form, func(t *testing.T) {
			got := map[string]float64{}
			for _, s := range evaluate(t, "load 1m\n"+series, expr) {
				got[s.Metric.Get("workload")] = s.F
			}
			for workload, want := range map[string]float64{"slow": 8, "a": 1, "b": 1, "fast": 0.25} {
				if math.Abs(got[workload]-want) > 1e-9 {
					t.Errorf("%s: %v, want %v", workload, got[workload], want)
				}
			}
		})
	}
}

// TestMedianOfOthers: from a ratio of 2 on, the median without the slowest workload equals the median without the
// compared workload. The test compares with the true median, for random durations, many of them equal.
func TestMedianOfOthers(t *testing.T) {
	expr := inlined(t, ratioOther, p99Others)
	random := rand.New(rand.NewPCG(1, 2))
	load := "load 1m\n"
	want := map[string]float64{}
	for device := range 200 {
		durations := make([]float64, 2+random.IntN(7))
		for i := range durations {
			durations[i] = math.Exp2(float64(random.IntN(12)) / 2)
			load += fmt.Sprintf("  %s{job=\"a\",instance=\"n1\",workload=\"%d\",device=\"%d\",opcode=\"write\"} %gx30\n", p99Of, i, device, durations[i])
		}
		for i, d := range durations {
			others := slices.Delete(slices.Clone(durations), i, i+1)
			slices.Sort(others)
			median := (others[(len(others)-1)/2] + others[len(others)/2]) / 2
			if len(others) >= 2 && d > 2*median {
				want[fmt.Sprint(device, " ", i)] = d / median
			}
		}
	}
	if len(want) < 100 {
		t.Fatalf("%d slow workloads", len(want))
	}
	got := evaluate(t, load, "("+expr+") > 2")
	if len(got) != len(want) {
		t.Errorf("%d slow workloads, want %d", len(got), len(want))
	}
	for _, s := range got {
		key := s.Metric.Get("device") + " " + s.Metric.Get("workload")
		if math.Abs(s.F-want[key]) > 1e-9 {
			t.Errorf("%s: %v, want %v", key, s.F, want[key])
		}
	}
}
