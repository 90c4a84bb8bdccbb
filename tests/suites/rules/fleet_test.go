// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// fleetQueries returns the queries of the page of all nodes by name. Strings replace their placeholders.
func fleetQueries(t testing.TB) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../pkg/fleet/queries.promql")
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		name, query, ok := strings.Cut(strings.TrimSpace(paragraph), "\n")
		if ok && !strings.HasPrefix(query, "#") {
			queries[strings.TrimPrefix(name, "# ")] = regexp.MustCompile(`\$\w+`).ReplaceAllString(query, `"x"`)
		}
	}
	if len(queries) < 35 {
		t.Fatalf("only %d queries", len(queries))
	}
	return queries
}

// TestFleetQueries: the page of all nodes reads only existing metrics, labels and recording rules.
func TestFleetQueries(t *testing.T) {
	ref := known(t)
	for name, query := range fleetQueries(t) {
		if _, err := ref.Check(query); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ref.Check(`max by (nothing) (gpu_info)`); err == nil {
		t.Error("a label that does not exist is accepted")
	}
}

// TestFleetJob: an engine finds members without a scrape, joules, and the past of a job: alerts only while the job had a member on the node,
// and the busier direction of HCAs.
func TestFleetJob(t *testing.T) {
	const info, job = `instance_workload:accelscope_workload_info:job`, `namespace="x",job_kind="x",job_name="x"`
	storage := promqltest.LoadedStorage(t, `load 1m
  accelscope_build_info{instance="x"} 1x120
  accelscope_build_info{instance="late"} 1x120
  accelscope_build_info{instance="gone"} 1x100 stale
  `+info+`{instance="x",workload="w/x",container_id="1",`+job+`} 1x120
  `+info+`{instance="gone",workload="w/gone",container_id="2",`+job+`} 1x100 stale
  `+info+`{instance="other",workload="w/other",container_id="3",namespace="x",job_kind="x",job_name="y"} 1x120
  `+info+`{instance="late",workload="w/late",container_id="4",`+job+`} _x60 1x20 stale
  job_name:container_gpu_energy_joules:kwh1d{`+job+`} 2x120
  job_name:container_gpu_energy_joules:kwh1d{namespace="x",job_kind="x",job_name="y"} 5x120
  ALERTS{alertname="x",alertstate="firing",instance="x"} _x50 1x9 stale
  ALERTS_FOR_STATE{alertname="x",instance="x"} _x45 2700x14 stale
  ALERTS{alertname="x",alertstate="firing",instance="late"} 1x30 stale
  ALERTS_FOR_STATE{alertname="x",instance="late"} 0x30 stale
  container_gpu_utilization_ratio{instance="x",namespace="x",workload="w/x",container_id="1",uuid="a",engine="sm"} 0.5x120
  container_gpu_utilization_ratio{instance="x",namespace="x",workload="w/x",container_id="1",uuid="a",engine="memory"} 0.1x120
  container_gpu_utilization_ratio{instance="x",namespace="x",workload="w/x",container_id="1",uuid="b",engine="sm"} 1x120
  instance_device_port:infiniband_port_transmit_utilization:ratio_rate5m{instance="x",device="m",port="1"} 0.2x120
  instance_device_port:infiniband_port_receive_utilization:ratio_rate5m{instance="x",device="m",port="1"} 0.7x120
  instance_device_port:infiniband_port_receive_utilization:ratio_rate5m{instance="x",device="n",port="1"} 0.1x120
`)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	ask := func(name string) parser.Value {
		query, err := engine.NewInstantQuery(t.Context(), storage, nil, fleetQueries(t)[name], time.Unix(120*60, 0))
		if err != nil {
			t.Fatal(err)
		}
		result := query.Exec(t.Context())
		if result.Err != nil {
			t.Fatal(result.Err)
		}
		return result.Value
	}
	for name, want := range map[string]map[string]float64{
		"members": {"x": 1}, "members_lost": {"gone": 1}, "energy_gpus": {"": 7.2e6}, "energy_cpus": {},
	} {
		got := map[string]float64{}
		for _, s := range ask(name).(promql.Vector) {
			got[s.Metric.Get("instance")] = s.F
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	for name, want := range map[string]promql.FPoint{
		"strip_gpus": {T: 7200_000, F: .75}, "strip_hcas": {T: 7200_000, F: .7}, "events": {T: 58 * 60_000, F: 2700},
	} {
		got := ask(name).(promql.Matrix)
		if len(got) != 1 || got[0].Metric.Get("instance") != "x" || got[0].Floats[len(got[0].Floats)-1] != want {
			t.Errorf("%s: %v, want %v at the end", name, got, want)
		}
	}
}

// TestFleetRanks: on the series of the rules' tests, the page of a job names the rank on another node for which the others wait, and only
// this rank, and how long ago each member launched.
func TestFleetRanks(t *testing.T) {
	load := "load 1m\n"
	for _, g := range tests(t)[filepath.Join(root, "tests/collectives.yaml")].Tests {
		if g.Name != "a rank on another node, for which the others wait" {
			continue
		}
		for _, s := range g.Series {
			load += "  " + s.Series + " " + s.Values + "\n"
			if name, labels, _ := strings.Cut(s.Series, "{"); name == "container_collective_communicator_info" {
				labels, _, _ = strings.Cut(labels, ",communicator=")
				load += `  instance_workload:accelscope_workload_info:job{` + labels + `,job_kind="x",job_name="x"} 1x50` + "\n"
			}
		}
	}
	load = strings.ReplaceAll(load, `namespace="ml"`, `namespace="x"`) // as in fleetQueries
	storage, engine := promqltest.LoadedStorage(t, load), promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	at := time.Unix(25*60, 0)
	ask := func(name string) map[string]float64 {
		query, err := engine.NewInstantQuery(t.Context(), storage, nil, fleetQueries(t)[name], at)
		if err != nil {
			t.Fatal(err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, s := range vector {
			got[s.Metric.Get("instance")+" "+s.Metric.Get("workload")] = s.F
		}
		return got
	}
	if diff := cmp.Diff(map[string]float64{"n2 ml/nodes-1/main": 1, "n2 ml/first-1/main": 1, "n2 ml/joined-1/main": 1}, ask("member_behind")); diff != "" {
		t.Error(diff)
	}
	last := ask("member_last_launch")
	if last["n1 ml/nodes-0/main"] != 25*60-601 || last["n1 ml/ahead-0/main"] != 0 || len(last) != 21 {
		t.Errorf("last launches: %v", last)
	}
}

// BenchmarkFleetJob asks all that the page of a job with 1,000 members asks, each with eight GPUs, a communicator's rank and an alert.
func BenchmarkFleetJob(b *testing.B) {
	const members, job = 1000, `namespace="x",job_kind="x",job_name="x"`
	var load, nodes strings.Builder
	load.WriteString("load 1m\n")
	add := func(name, labels string, more ...string) {
		fmt.Fprintf(&load, "  %s{%s} 1x360\n", name, strings.Join(append([]string{labels}, more...), ","))
	}
	for i := range members {
		of := fmt.Sprintf(`job="j",instance="n%d",workload="w/%d",container_id="c%d",namespace="x"`, i, i, i)
		fmt.Fprintf(&nodes, "n%d|", i)
		add("instance_workload:accelscope_workload_info:job", of, job[len(`namespace="x",`):])
		add("accelscope_build_info", fmt.Sprintf(`instance="n%d"`, i))
		rank := fmt.Sprintf(`communicator="a",rank="%d"`, i)
		add("container_collective_launches_total", of, rank, `operation="all_reduce",library="nccl"`)
		add("container_collective_last_launch_timestamp_seconds", of, rank)
		add("container_collective_communicator_info", of, rank, `nranks="1000"`)
		add("container_collective_coverage", of, `reason="complete"`)
		add("ALERTS", fmt.Sprintf(`instance="n%d",alertname="x",alertstate="firing"`, i))
		add("ALERTS_FOR_STATE", fmt.Sprintf(`instance="n%d",alertname="x"`, i))
		for gpu := range 8 {
			uuid := fmt.Sprintf(`uuid="%d-%d"`, i, gpu)
			add("container_gpu_allocated", of, uuid)
			add("container_gpu_processes", of, uuid)
			if i < 64 {
				add("container_gpu_utilization_ratio", of, uuid)
			}
		}
	}
	storage := promqltest.LoadedStorage(b, load.String())
	first := strings.Join(strings.Split(nodes.String(), "|")[:64], "|")
	engine := promqltest.NewTestEngine(b, false, 0, 50e6)
	for name, text := range fleetQueries(b) {
		if !regexp.MustCompile(`^(member|energy|strip|events)`).MatchString(name) {
			continue
		}
		text = strings.ReplaceAll(text, `instance=~"x"`, `instance=~"`+first+`"`)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				query, err := engine.NewInstantQuery(b.Context(), storage, nil, text, time.Unix(360*60, 0))
				if err != nil {
					b.Fatal(err)
				}
				if result := query.Exec(b.Context()); result.Err != nil {
					b.Fatal(result.Err)
				}
				query.Close()
			}
		})
	}
}
