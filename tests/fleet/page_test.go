// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	nodes "github.com/accelscope/accelscope/pkg/fleet"
)

// figures are what the generator writes for a node: computed from its input, without Prometheus.
type figures struct {
	gpus, given, used, ports map[string]bool // by UUID, or device and port
	sick, up                 int
	transmit                 float64            // bytes per second of all ports
	use                      map[string]float64 // of the busier direction, by HCA
	jobs                     map[nodes.JobName]map[string]bool
	workloads                map[nodes.JobName]map[string]bool
}

func (n *node) figures(at time.Time) figures {
	f := figures{
		gpus: map[string]bool{}, given: map[string]bool{}, used: map[string]bool{}, ports: map[string]bool{}, use: map[string]float64{},
		jobs: map[nodes.JobName]map[string]bool{}, workloads: map[nodes.JobName]map[string]bool{},
	}
	link := map[string]float64{}
	for i := range n.rows {
		r := &n.rows[i]
		generation := 0
		if r.pod != "" {
			generation, _ = n.life(r.pod, at)
		}
		l := n.labels(r.template, generation)
		rate := func() float64 { return (n.value(r, at) - n.value(r, at.Add(-5*time.Minute))) / 300 }
		switch r.name() {
		case "gpu_info":
			f.gpus[l["uuid"]] = true
		case "container_gpu_allocated":
			f.given[l["uuid"]] = true
		case "container_gpu_processes":
			if n.value(r, at) > 0 {
				f.used[l["uuid"]] = true
			}
		case "gpu_problem":
			f.sick += int(n.value(r, at))
		case "infiniband_port_state":
			f.ports[l["device"]+"/"+l["port"]] = true
			if l["state"] == "active" {
				f.up += int(n.value(r, at))
			}
		case "infiniband_port_rate_bytes_per_second":
			link[l["device"]] = n.value(r, at)
		case "infiniband_port_transmit_data_bytes_total":
			f.transmit += rate()
			f.use[l["device"]] = max(f.use[l["device"]], rate())
		case "infiniband_port_receive_data_bytes_total":
			f.use[l["device"]] = max(f.use[l["device"]], rate())
		case "accelscope_workload_info":
			j := nodes.JobName{Namespace: l["namespace"], Kind: l["job_kind"], Name: l["job_name"]}
			if j.Name == "" {
				continue
			}
			if f.jobs[j] == nil {
				f.jobs[j], f.workloads[j] = map[string]bool{}, map[string]bool{}
			}
			f.jobs[j][n.name()+" "+l["pod"]] = true
			f.workloads[j][n.name()+" "+l["workload"]] = true
		}
	}
	for device := range f.use {
		f.use[device] /= link[device]
	}
	return f
}

// page compares the state of the page with what the generator writes.
func (f *fleet) page(t *testing.T) {
	api, err := nodes.Connect(f.url, "")
	if err != nil {
		t.Fatal(err)
	}
	reader := nodes.NewReader(api)
	s := reader.Read()
	if len(s.Problems) > 0 {
		t.Errorf("problems: %q", s.Problems)
	}
	byName := map[string]nodes.Node{}
	for _, n := range s.Nodes {
		byName[n.Name] = n
	}
	jobs, workloads := map[nodes.JobName]map[string]bool{}, map[nodes.JobName]map[string]bool{}
	var down, gpus, given, used, sick, ports, up int
	near := func(what string, got *float64, want float64) {
		t.Helper()
		if got == nil || math.Abs(*got-want) > 0.1*want {
			t.Errorf("%s: %v, the generator writes %v", what, got, want)
		}
	}
	for _, n := range f.nodes {
		got := byName[n.name()]
		if n.sick == unresponsive {
			down++
			if !got.Down {
				t.Errorf("%s answers, or is not there: %+v", n.name(), got)
			}
			continue
		}
		want := n.figures(s.At)
		gpus, given, used, sick = gpus+len(want.gpus), given+len(want.given), used+len(want.used), sick+want.sick
		ports, up = ports+len(want.ports), up+want.up
		near(n.name()+": bytes out", got.Bytes.Transmit, want.transmit)
		for device, use := range want.use {
			near(n.name()+" "+device+": use", got.Rails[device].Use, use)
		}
		for _, pair := range []struct {
			all, of map[nodes.JobName]map[string]bool
		}{{jobs, want.jobs}, {workloads, want.workloads}} {
			for j, members := range pair.of {
				if pair.all[j] == nil {
					pair.all[j] = map[string]bool{}
				}
				maps.Copy(pair.all[j], members)
			}
		}
		lost := got.Rails["mlx5_0"].Errors
		if (n.sick == lossy) != (lost != nil && *lost > 1) {
			t.Errorf("%s: %v errors a second", n.name(), lost)
		}
	}
	text := func(n *int) string {
		if n == nil {
			return "none"
		}
		return fmt.Sprint(*n)
	}
	g, p := s.Totals.GPUs, s.Totals.Ports
	gotTotals := strings.Join([]string{text(g.All), text(g.Given), text(g.Used), text(g.Idle), text(g.Sick), text(p.All), text(p.Up), text(p.Degraded), text(p.Flapping)}, " ")
	if want := fmt.Sprint(gpus, given, used, given-used, sick, ports, up, 0, 0); gotTotals != want {
		t.Errorf("GPUs, given, used, idle, sick, ports, up, degraded, flapping: %s, the generator writes %s", gotTotals, want)
	}
	if s.Totals.Nodes != len(f.nodes) || s.Totals.Down != down || down == 0 {
		t.Errorf("%d nodes, %d down, the generator has %d and %d", s.Totals.Nodes, s.Totals.Down, len(f.nodes), down)
	}
	if sick != 1 || ports-up != 1 {
		t.Errorf("%d GPUs are sick and %d ports down, want one of each: the comparison shows nothing", sick, ports-up)
	}
	if len(s.Jobs) != len(jobs) || len(jobs) < 8 {
		t.Errorf("%d jobs, the generator writes %d", len(s.Jobs), len(jobs))
	}
	for _, j := range s.Jobs {
		if j.Members != len(jobs[j.JobName]) {
			t.Errorf("%v has %d members, the generator writes %d", j.JobName, j.Members, len(jobs[j.JobName]))
		}
	}
	largest := slices.MaxFunc(s.Jobs, func(a, b nodes.Job) int { return a.Members - b.Members })
	members, problems := reader.Members(largest.JobName)
	got := map[string]bool{}
	for _, m := range members {
		got[m.Node+" "+m.Workload] = true
	}
	if !maps.Equal(got, workloads[largest.JobName]) || len(problems) > 0 {
		t.Errorf("members of %v: %v, the generator writes %v; %v", largest.JobName, got, workloads[largest.JobName], problems)
	}
	if i := slices.IndexFunc(s.Alerts, func(a nodes.Alert) bool { return a.Name == "GPUUncorrectedECC" && a.Node == "gpu0022" }); i < 0 {
		t.Errorf("alerts: %v", s.Alerts)
	}
	for query, want := range map[string]nodes.Found{
		"gpu-0-13":           {Kind: "GPU", Name: "nvidia 0", Node: "gpu0013", ID: "GPU-0-13"},
		"946D:AE03:0012:345": {Kind: "HCA", Name: "mlx5_0", Node: "gpu0007", ID: "0x946dae0300123456-7"},
	} {
		found, problems := reader.Search(query)
		if !slices.ContainsFunc(found, func(f nodes.Found) bool { return f == want }) || len(problems) > 0 {
			t.Errorf("%q finds %v, want %v; %v", query, found, want, problems)
		}
	}
	site, err := f.site()
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	site.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/node?name=gpu0022", nil))
	if body := answer.Body.String(); answer.Code != http.StatusOK || !strings.Contains(body, "GPUUncorrectedECC") || !strings.Contains(body, "mlx5_1") {
		t.Errorf("the page of a node: %d %s", answer.Code, body)
	}
}
