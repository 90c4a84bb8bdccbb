// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
)

// TestJobsDashboard: every query of the jobs dashboard has data on the series of the rules' tests, which have latencies
// and errors; the sensors' series in TestJobOverNodes (cmd/accelscope) lack them. The member with the slowest
// completions is the outlier.
func TestJobsDashboard(t *testing.T) {
	load := "load 1m\n"
	var f testFile
	for name, file := range tests(t) {
		if strings.HasSuffix(name, "/jobs.yaml") {
			f = file
		}
	}
	for _, s := range f.Tests[0].Series {
		load += "  " + s.Series + " " + s.Values + "\n"
	}
	load += `  container_rdma_resources{job="accelscope",instance="n1",workload="ml/train-0/main",namespace="ml",pod="train-0",` +
		`container="main",container_id="c0",device="mlx5_0",type="qp"} 8x180` + "\n"
	const member = `{job="accelscope",instance="n1",workload="ml/train-0/main",namespace="ml",pod="train-0",container="main",container_id="c0",`
	const rank = member + `communicator="k",rank="0"`
	for series, values := range map[string]string{
		"container_collective_launches_total" + rank + `,library="nccl",operation="all_reduce"}`: "0+60x180",
		"container_collective_last_launch_timestamp_seconds" + rank + "}":                        "0+60x180",
		"container_collective_coverage" + member + `reason="complete"}`:                          "1x180",
		"container_collective_late_seconds_total" + rank + "}":                                   "0+1x180",
		"instance_workload_communicator:container_rdma_receive_wait_seconds:mean2m" + rank + "}": "1x180",
	} {
		load += "  " + series + " " + values + "\n"
	}
	storage := promqltest.LoadedStorage(t, load)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	record(t, engine, storage, "instance_workload:container_rdma_verbs_duration_seconds:", time.Unix(3600, 0))
	text, err := os.ReadFile("../../../deploy/grafana/jobs.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	values := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$node", ".+", "$namespace", ".*", "$job_name", ".+")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			query, err := engine.NewInstantQuery(t.Context(), storage, nil, values.Replace(q.Expr), time.Unix(3600, 0))
			if err != nil {
				t.Fatal(err)
			}
			result := query.Exec(t.Context())
			vector, err := result.Vector()
			if err != nil || len(vector) == 0 {
				t.Errorf("%s: %s: %d series, %v", p.Title, q.LegendFormat, len(vector), err)
			}
			if q.LegendFormat == "Times the median" {
				slowest(t, vector)
			}
			query.Close()
		}
	}
}

// record stores the values at a time of the recording rules whose names begin with a prefix.
func record(t *testing.T, engine *promql.Engine, storage *teststorage.TestStorage, prefix string, at time.Time) {
	t.Helper()
	for _, r := range rules(t) {
		if !strings.HasPrefix(r.Record, prefix) {
			continue
		}
		query, err := engine.NewInstantQuery(t.Context(), storage, nil, r.Expr, at)
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil || len(vector) == 0 {
			t.Fatalf("%s: %d series, %v", r.Record, len(vector), err)
		}
		app := storage.Appender(t.Context())
		for _, s := range vector {
			of := labels.NewBuilder(s.Metric).Set(model.MetricNameLabel, r.Record).Labels()
			if _, err := app.Append(0, of, at.UnixMilli(), s.F); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
		query.Close()
	}
}

func slowest(t *testing.T, members promql.Vector) {
	t.Helper()
	most, workload := 0.0, ""
	for _, m := range members {
		if m.Metric.Get("job_name") == "train" && m.Metric.Get("namespace") == "ml" && m.F > most {
			most, workload = m.F, m.Metric.Get("workload")
		}
	}
	if workload != "ml/train-2/main" {
		t.Errorf("the outlier is %s, %v times the median: %v", workload, most, members)
	}
}
