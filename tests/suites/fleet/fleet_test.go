// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ask returns the value of an expression with one series.
func (f *fleet) ask(t *testing.T, expr string) float64 {
	t.Helper()
	n, err := f.count(t.Context(), expr)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFleet fills a Prometheus with 30 nodes, ten of them sick, evaluates the rules, and compares accelscope fleet and
// accelscope top with what the generator wrote.
func TestFleet(t *testing.T) { testFleet(t, options{open: openPrometheus, minutely: true, lag: 0.1}) }

func testFleet(t *testing.T, o options) {
	const nodes, minutes = 30, 20
	binary := buildProgram(t)
	o.nodes, o.jobs, o.minutes, o.listen, o.every, o.quiet = nodes, usualJobs, minutes, free(t), 5*time.Second, true
	f, err := start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.stop()
	groups, err := f.evaluations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				t.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	ended := fmt.Sprintf(" @ %d", f.begin.Add(minutes*time.Minute/2).Unix())
	for _, c := range []struct {
		what, expr  string
		least, most float64
	}{
		{"nodes", `count(up)`, nodes, nodes},
		{"nodes that answer", `sum(up)`, nodes - 1, nodes - 1},
		{"series of the largest node", `max(count by (instance) ({job="accelscope",__name__!~".*:.*|ALERTS.*"}))`, 400, 650},
		{"names that rules and dashboards read", `count(count by (__name__) ({job="accelscope",__name__!~".*:.*|ALERTS.*"}))`, 80, 179},
		// A range includes both ends, and queries are at whole seconds.
		{"scrapes in ten minutes", `max(count_over_time(up[599s]))`, 20, 20},
		{"samples of a node in ten minutes", `min(count_over_time(up{instance="gpu0000"}[599s]))`, 20, 20},
		// Each of four groups of nodes has two jobs of up to eight members.
		{"jobs", `count(count by (job_name) (accelscope_workload_info{job_name!=""}))`, 8, 8},
		{"members of the largest job", `max(count by (job_name) (accelscope_workload_info{job_name!="",container!=""}))`, 8, 8},
		{"GPUs of jobs", `sum(container_gpu_allocated)`, 2 * (nodes - 1), 2 * (nodes - 1)},
		{"verbs p99 of jobs", `count(job_name:container_rdma_verbs_duration_seconds:p99_rate5m > 0)`, 1, 16},
		{"workloads that live", `count(container_rdma_verbs_total{verb="create_pd",device="mlx5_0"})`, nodes - 1, nodes - 1},
		{
			"workloads of the middle of the past that ended",
			`count(container_rdma_verbs_total{verb="create_pd"}` + ended + ` unless on (workload, instance) container_rdma_verbs_total{verb="create_pd"})`, 4, 50,
		},
		{"verbs that fall", `sum(resets(container_rdma_verbs_total[10m]))`, 0, 0},
		{"bytes that fall", `sum(resets(rdma_port_transmit_bytes_total[10m]))`, 0, 0},
		{"bytes grow", `min(rate(rdma_port_transmit_bytes_total{instance="gpu0000"}[5m]))`, 1e8, 4e10},
		{"bytes of HCAs beyond 400 Gbit/s", `count(rate(rdma_port_transmit_bytes_total[5m]) > 5e10) or vector(0)`, 0, 0},
		{
			"buckets that are higher than a greater one", `count(container_rdma_verbs_duration_seconds_bucket{le="3.814697265625e-06"} > ignoring (le) ` +
				`container_rdma_verbs_duration_seconds_bucket{le="4"}) or vector(0)`, 0, 0,
		},
		{
			"histograms whose last bucket is not the count", `count(container_rdma_verbs_duration_seconds_bucket{le="+Inf"} != ignoring (le) ` +
				`container_rdma_verbs_duration_seconds_count) or vector(0)`, 0, 0,
		},
		{"a port of one node is down", `count(infiniband_port_state{state="down"} == 1)`, 1, 1},
		{"recorded in the past", `count(instance_workload:container_rdma_verbs:rate5m` + fmt.Sprintf(" @ %d", f.begin.Add(14*time.Minute).Unix()) + `)`, 50, 200},
	} {
		if n := f.ask(t, c.expr); n < c.least || n > c.most {
			t.Errorf("%s: %v, want %v to %v: %s", c.what, n, c.least, c.most, c.expr)
		}
	}
	f.awaitAlerts(t)
	t.Run("page", f.page)
	t.Run("program", func(t *testing.T) { f.program(t, binary) })
}

// awaitAlerts waits for the alerts of the sick nodes. Other alerts must not fire.
func (f *fleet) awaitAlerts(t *testing.T) {
	t.Helper()
	want := f.symptoms()
	var firing map[symptom]bool
	for end := time.Now().Add(2 * time.Minute); !maps.Equal(firing, want); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("alerts that fire: %v, want %v", firing, want)
		}
		groups, err := f.groups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		firing = map[symptom]bool{}
		for _, g := range groups {
			for _, r := range g.Rules {
				for _, a := range r.Alerts {
					if a.State == "firing" {
						firing[symptom{a.Labels["instance"], r.Name, a.Labels["device"] + a.Labels["gpu_id"]}] = true
					}
				}
			}
		}
	}
}

// TestFull: all series of the larger node are kept.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	if err := recordScrapes(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "full.prom"))
	if err != nil {
		t.Fatal(err)
	}
	templates, err := parse(text, everything)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			want++
		}
	}
	if len(templates) != want {
		t.Errorf("%d series, the scrape has %d", len(templates), want)
	}
	begin := time.Unix(1_800_000_000, 0)
	n := newNode(7, usualJobs, begin, begin.Add(time.Hour), templates)
	if _, samples := n.request([]time.Time{begin, begin.Add(interval)}); samples != 2*(want+3) {
		t.Errorf("%d samples in two scrapes of %d series", samples, want)
	}
}
