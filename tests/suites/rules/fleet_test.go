// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// fleetQueries returns the queries of the page of all nodes by name. Strings replace their placeholders.
func fleetQueries(t *testing.T) map[string]string {
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
	if diff := cmp.Diff(map[string]float64{"n2 ml/nodes-1/main": 1}, ask("member_behind")); diff != "" {
		t.Error(diff)
	}
	last := ask("member_last_launch")
	if last["n1 ml/nodes-0/main"] != 25*60-601 || last["n1 ml/ahead-0/main"] != 0 || len(last) != 16 {
		t.Errorf("last launches: %v", last)
	}
}
