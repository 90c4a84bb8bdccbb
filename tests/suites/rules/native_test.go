// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// TestNative: the rules of latencies have the same values for classic histograms, native histograms, and both. Debian's
// promtool cannot parse native histograms in a test, so this test uses Prometheus's engine.
func TestNative(t *testing.T) {
	const labels = `{job="a",instance="n1",workload="w",device="mlx5_0"%s}`
	all := rules(t)
	for _, r := range all {
		r.Expr = withRates(all, r.Expr)
		family, quantile := "", 0.0
		switch {
		case strings.Contains(r.Record, ":container_rdma_verbs_duration_seconds:"):
			family = "container_rdma_verbs_duration_seconds"
		case strings.Contains(r.Record, ":container_rdma_completion_duration_seconds:"):
			family = "container_rdma_completion_duration_seconds"
		default:
			continue
		}
		switch {
		case !strings.Contains(r.Expr, "_bucket"): // made from the rules of latencies
			continue
		case strings.HasSuffix(r.Record, ratesOf): // the rules of its quantiles show it
			continue
		case strings.Contains(r.Record, ":p50_"):
			quantile = 0.5
		case strings.Contains(r.Record, ":p99_"):
			quantile = 0.99
		default:
			t.Errorf("%s: which quantile?", r.Record)
		}
		// All observations are between 1 and 2 s. The quantile is interpolated linearly in a classic histogram, but not
		// in a native histogram of schema 0.
		classic, native := 1+quantile, math.Exp2(quantile)
		load := "load 1m\n" + `  instance_workload:accelscope_workload_info:job{job="a",instance="n1",workload="w",` +
			`job_kind="Job",job_name="j"} 1x30` + "\n"
		asClassic := ""
		for le, values := range map[string]string{"1": "0x30", "2": "0+600x30", "+Inf": "0+600x30"} {
			asClassic += fmt.Sprintf("  %s_bucket"+labels+" %s\n", family, `,le="`+le+`"`, values)
		}
		asClassic += fmt.Sprintf("  %s_count"+labels+" 0+600x30\n", family, "")
		asNative := fmt.Sprintf("  %s"+labels+" {{schema:0 count:0}}+{{schema:0 sum:900 count:600 offset:1 buckets:[600]}}x30\n", family, "")
		for _, form := range []struct {
			what, series string
			want         float64
		}{
			{"classic", asClassic, classic},
			{"native", asNative, native},
			{"both", asClassic + asNative, native},
		} {
			t.Run(r.Record+"/"+form.what, func(t *testing.T) {
				got := evaluate(t, load+form.series, r.Expr)
				if len(got) != 1 || math.Abs(got[0].F-form.want) > 1e-9 {
					t.Errorf("got %v, want one of %v", got, form.want)
				}
			})
		}
	}
}

// ratesOf ends the name of a recorded rate of a histogram.
const ratesOf = "_seconds:rate5m"

// withRates replaces recorded rates of histograms by the expressions of their rules.
func withRates(all []rule, expr string) string {
	for _, r := range all {
		if strings.HasSuffix(r.Record, ratesOf) {
			selector := regexp.MustCompile(regexp.QuoteMeta(r.Record) + `(\{[^}]*\})?`)
			expr = selector.ReplaceAllLiteralString(expr, "("+r.Expr+")")
		}
	}
	return expr
}

func evaluate(t *testing.T, load, expr string) promql.Vector {
	t.Helper()
	storage := promqltest.LoadedStorage(t, load)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query, err := engine.NewInstantQuery(t.Context(), storage, nil, expr, time.Unix(20*60, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	return vector
}
