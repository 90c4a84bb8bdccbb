// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

var allHCAs = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}

// TestHostileWorkload checks that one workload that calls every verb on every HCA has a bounded number of series in each family,
// that its totals add up, that the bound is exported, and that the others keep their detail.
func TestHostileWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts := crowdProbe(2, 120, 4, func(i int) []int {
			if i == 1 {
				return allHCAs
			}
			return []int{0}
		})
		facts.Verbs = slices.DeleteFunc(facts.Verbs, func(s model.Series[model.VerbKey, model.Histogram]) bool {
			return s.Cgroup == 2 && s.Key.Verb != "create_qp"
		})
		c := newCollector(setup{Sources: crowd(2, facts)})
		defer c.Close() //nolint:errcheck // nothing to lose
		all, _, text := seriesOf(t, c)
		const bound = 768 + 10*8 // and a total for each HCA at most
		for family, n := range all {
			others := 0
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, family) && !strings.Contains(line, `workload="ml/train-1/main"`) {
					others++
				}
			}
			if n-others > bound {
				t.Errorf("%s has %d series of the workload", family, n-others)
			}
		}
		for name, want := range map[string]float64{
			"container_rdma_verbs_total": 10 * 120 * 3, "container_rdma_verbs_errors_total": 10 * 30 * 4,
			"container_rdma_verbs_duration_seconds_count": 10 * 120 * 3,
		} {
			if got := sumOfSeries(text, name, `workload="ml/train-1/main"`); got != want {
				t.Errorf("%s is %v in all, want %v", name, got, want)
			}
			if !strings.Contains(name, "errors") && sumOfSeries(text, name, `verb="create_qp",workload="ml/train-2/main"`) != 3 {
				t.Errorf("%s has no detail of another workload", name)
			}
		}
		for _, family := range []string{"verbs_total", "verbs_errors_total", "verbs_duration_seconds"} {
			if sumOfSeries(text, "accelscope_series_dropped_total", `family="container_rdma_`+family+`"`) == 0 {
				t.Errorf("series of %s were dropped without a trace", family)
			}
		}
		if sumOfSeries(text, "container_rdma_verbs_total", `verb="other"`) == 0 {
			t.Error("there is no verb other")
		}
	})
}

// sumOfSeries adds the values of the series of a name that have the labels.
func sumOfSeries(text, name, labels string) (sum float64) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name) && line[len(name)] == '{' && strings.Contains(line, labels) {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			sum += v
		}
	}
	return sum
}

func seriesIn(text string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		if i := strings.LastIndex(line, " "); i > 0 && !strings.HasPrefix(line, "#") {
			all[line[:i]], _ = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		}
	}
	return all
}

// TestManyWorkloads checks the number of series of 1,000 workloads on a node with 10 HCAs: each uses one HCA and all that cgroups
// and pods count, or each uses all HCAs.
func TestManyWorkloads(t *testing.T) {
	const workloads, limit = 1000, 100_000
	for name, facts := range map[string][]model.Snapshot{
		"one HCA each": {crowdProbe(workloads, 40, 2, func(i int) []int { return []int{i % 10} }), crowdUsage(workloads)},
		"all HCAs":     {crowdProbe(workloads, 8, 2, func(int) []int { return allHCAs })},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCollector(setup{Sources: crowd(workloads, facts...), Compat: []string{CompatLens}})
				defer c.Close() //nolint:errcheck // nothing to lose
				families, all, text := seriesOf(t, c)
				if all >= limit || all < limit/2 {
					t.Errorf("%d series: %v", all, families)
				}
				t.Log(all, "series")
				calls := 0
				for _, s := range facts[0].Verbs {
					calls += int(s.Value.Count)
				}
				for _, name := range []string{"container_rdma_verbs_total", "container_rdma_verbs_duration_seconds_count"} {
					if got := sumOfSeries(text, name, ""); got != float64(calls) {
						t.Errorf("%s is %v in all, want %d", name, got, calls)
					}
				}
			})
		})
	}
}

// TestFoldedCountersStay checks over many refreshes, in which keys come, go, return and are reset, that no counter falls, that a
// series that was folded is never shown, and that a series that was shown stays while its key is there.
func TestFoldedCountersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &fake{name: "probe", facts: crowdProbe(1, 1, 0, func(int) []int { return []int{0} })}
		probe.facts.Verbs = nil
		// Work requests may rest: their series are then absent.
		probe.facts.WorkRequests = []model.Series[model.WorkRequestKey, model.Requests]{}
		c := newCollector(setup{Sources: append(crowd(1), engine.Registration{Source: probe}), Reuse: time.Nanosecond})
		defer c.Close() //nolint:errcheck // nothing to lose
		shown, last := map[string]bool{}, map[string]float64{}
		for round := range 40 {
			s := probe.facts
			s.Verbs, s.WorkRequests = nil, nil
			for i := range min(60*(round+1), 1200) {
				verb := fmt.Sprint("verb_", i)
				if i%50 == 5 { // the probe has such a verb, too
					verb = "other"
				}
				h := model.Histogram{Count: uint64(i + round), Sum: uint64(i+round) * 1000}
				h.Buckets[3] = h.Count
				s.Verbs = append(s.Verbs, verbs(1, crowdHCA(i%10), verb, h))
				s.WorkRequests = append(s.WorkRequests, model.Series[model.WorkRequestKey, model.Requests]{
					Cgroup: 1, Key: model.WorkRequestKey{Device: crowdHCA(i % 10), Opcode: fmt.Sprint("opcode_", i)},
					Value: model.Requests{Count: uint64(i + round)}, Resting: (i+round)%7 == 0,
				})
			}
			if round == 20 { // the probe does not answer once
				s = model.Snapshot{}
			}
			probe.facts = s
			time.Sleep(time.Second)
			_, _, text := seriesOf(t, c)
			now := seriesIn(text)
			for _, series := range slices.Sorted(maps.Keys(now)) {
				counts := strings.Contains(series, "_total{") || strings.Contains(series, "_bucket{") || strings.Contains(series, "_count{")
				if counts && now[series] < last[series] {
					t.Fatalf("round %d: %s fell from %v to %v", round, series, last[series], now[series])
				}
				if strings.Contains(series, "_total{") || last[series] > 0 {
					last[series] = max(last[series], now[series])
				}
			}
			if round == 20 {
				continue
			}
			for series := range shown {
				if _, ok := now[series]; !ok {
					t.Fatalf("round %d: %s disappeared", round, series)
				}
			}
			for series := range now {
				if strings.HasPrefix(series, "container_rdma_verbs_") {
					shown[series] = true
				}
			}
			want := 0.0
			for _, v := range s.Verbs {
				want += float64(v.Value.Count)
			}
			if got := sumOfSeries(text, "container_rdma_verbs_total", ""); got != want {
				t.Fatalf("round %d: %v calls, want %v", round, got, want)
			}
			if got := sumOfSeries(text, "container_rdma_verbs_duration_seconds_count", ""); got != want {
				t.Fatalf("round %d: %v durations, want %v", round, got, want)
			}
			probe.facts = s
		}
		if len(shown) < 100 {
			t.Errorf("only %d series were shown", len(shown))
		}
	})
}

// TestDetail checks that each label of a metric of workloads is either detail, or has as many values as the node has things of a
// kind, which no workload can change.
func TestDetail(t *testing.T) {
	ofNode := []string{
		"device", "type", "memory", "method", "reason", "calls", "engine", "claim", "share", "class", "result", "driver", "kind", "vendor",
		"pci_address", "gpu_instance", "cpu", "failure_type", "scope", "major", "minor", "operation", "interface", "state", "health",
		"resource", "pf_device", "guid", "problem",
	}
	for _, m := range table(nil) {
		for _, label := range m.detail {
			if !m.owned || !slices.Contains(m.labels, label) {
				t.Errorf("%s: %s is no label of a workload's metric", m.name, label)
			}
		}
		if strings.HasSuffix(m.name, "_info") { // one series for each thing, with what is known about it
			continue
		}
		for _, label := range m.labels {
			if m.owned && !slices.Contains(m.detail, label) && !slices.Contains(ofNode, label) {
				t.Errorf("%s: %s is neither detail nor bounded by the node", m.name, label)
			}
		}
	}
}
