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

// figures are what the generator writes for a node, computed from its input without Prometheus.
type figures struct {
	gpus, given, used, ports  map[string]bool // by UUID, or device and port
	sick, up                  int
	transmit, receive         float64            // bytes per second of all ports
	use, errors, lost, paused map[string]float64 // by HCA: use of the busier direction, errors with lost packets, lost packets, fraction of the time
	active                    map[string]bool    // by HCA
	jobs, workloads           map[nodes.JobName]map[string]bool
	jobGPUs, idle             map[nodes.JobName]int // given; unused for five minutes
}

func (n *node) figures(at time.Time) figures {
	f := figures{
		gpus: map[string]bool{}, given: map[string]bool{}, used: map[string]bool{}, ports: map[string]bool{}, use: map[string]float64{},
		errors: map[string]float64{}, lost: map[string]float64{}, paused: map[string]float64{}, active: map[string]bool{},
		jobs: map[nodes.JobName]map[string]bool{}, workloads: map[nodes.JobName]map[string]bool{},
		jobGPUs: map[nodes.JobName]int{}, idle: map[nodes.JobName]int{},
	}
	link, podOf, jobOf, busy := map[string]float64{}, map[string]string{}, map[string]nodes.JobName{}, map[string]bool{}
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
			podOf[l["uuid"]] = l["pod"]
		case "container_gpu_processes":
			if n.value(r, at) > 0 {
				f.used[l["uuid"]] = true
			}
		case "container_gpu_utilization_ratio":
			for ago := time.Duration(0); ago <= 5*time.Minute && l["workload"] != ""; ago += interval {
				busy[l["uuid"]] = busy[l["uuid"]] || n.value(r, at.Add(-ago)) > 0.01
			}
		case "gpu_problem":
			f.sick += int(n.value(r, at))
		case "infiniband_port_state":
			f.ports[l["device"]+"/"+l["port"]] = true
			if l["state"] == "active" {
				f.up += int(n.value(r, at))
				f.active[l["device"]] = n.value(r, at) == 1
			}
		case "infiniband_port_rate_bytes_per_second":
			link[l["device"]] = n.value(r, at)
		case "rdma_port_transmit_bytes_total":
			f.transmit += rate()
			f.use[l["device"]] = max(f.use[l["device"]], rate())
		case "rdma_port_receive_bytes_total":
			f.receive += rate()
			f.use[l["device"]] = max(f.use[l["device"]], rate())
		case "infiniband_port_errors_total":
			f.errors[l["device"]] += rate()
		case "rdma_port_out_of_sequence_total":
			f.errors[l["device"]] += rate()
			f.lost[l["device"]] += rate()
		case "rdma_port_pause_seconds_total":
			f.paused[l["device"]] = max(f.paused[l["device"]], rate())
		case "accelscope_workload_info":
			j := nodes.JobName{Namespace: l["namespace"], Kind: l["job_kind"], Name: l["job_name"]}
			if j.Name == "" {
				continue
			}
			jobOf[l["pod"]] = j
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
	for uuid, pod := range podOf {
		if j, ok := jobOf[pod]; ok {
			f.jobGPUs[j]++
			if !busy[uuid] {
				f.idle[j]++
			}
		}
	}
	return f
}

// truth is what the generator writes for all nodes.
type truth struct {
	of                map[string]figures // the nodes that answer
	down              int
	gpus, ports       string // given, used and so on, as in Totals
	transmit, receive float64
	jobs, workloads   map[nodes.JobName]map[string]bool
	jobGPUs, idle     map[nodes.JobName]int
}

func (f *fleet) truth(at time.Time) *truth {
	t := &truth{
		of: map[string]figures{}, jobs: map[nodes.JobName]map[string]bool{}, workloads: map[nodes.JobName]map[string]bool{},
		jobGPUs: map[nodes.JobName]int{}, idle: map[nodes.JobName]int{},
	}
	var gpus, given, used, sick, ports, up, slow, unstable int
	for _, n := range f.nodes {
		if n.sick == unresponsive && !at.Before(n.middle) {
			t.down++
			continue
		}
		one := n.figures(at)
		t.of[n.name()] = one
		gpus, given, used, sick = gpus+len(one.gpus), given+len(one.given), used+len(one.used), sick+one.sick
		ports, up = ports+len(one.ports), up+one.up
		switch n.sick { //nolint:exhaustive // the ports of others have the figures above
		case degraded:
			slow++
		case flapping:
			unstable++
		}
		t.transmit, t.receive = t.transmit+one.transmit, t.receive+one.receive
		for _, pair := range []struct {
			all, of map[nodes.JobName]map[string]bool
		}{{t.jobs, one.jobs}, {t.workloads, one.workloads}} {
			for j, members := range pair.of {
				if pair.all[j] == nil {
					pair.all[j] = map[string]bool{}
				}
				maps.Copy(pair.all[j], members)
			}
		}
		for j, gpus := range one.jobGPUs {
			t.jobGPUs[j] += gpus
			t.idle[j] += one.idle[j]
		}
	}
	t.gpus = fmt.Sprintf("%d: %d given, %d in use, %d idle, %d sick", gpus, given, used, given-used, sick)
	t.ports = fmt.Sprintf("%d: %d up, %d degraded, %d flapping", ports, up, slow, unstable)
	return t
}

// wasted returns a job's unused GPU hours in the recorded past, which began in its middle.
func (f *fleet) wasted(j nodes.JobName) (hours float64) {
	for at := f.begin.Add(time.Duration(f.minutes/2) * time.Minute); at.Before(f.begin.Add(time.Duration(f.minutes) * time.Minute)); at = at.Add(time.Minute) {
		hours += float64(f.truth(at).idle[j]) / 60
	}
	return hours
}

type symptom struct{ node, alert, subject string }

// symptoms lists the alerts that must fire, according to the generator.
func (f *fleet) symptoms() map[symptom]bool {
	out := map[symptom]bool{}
	for _, n := range f.nodes {
		add := func(alert, subject string) { out[symptom{n.name(), alert, subject}] = true }
		switch n.sick {
		case portDown:
			add("RDMAPortDown", "mlx5_0")
		case uncorrected:
			add("GPUUncorrectedECC", "0")
		case lossy:
			for device, rate := range n.figures(time.Now()).lost {
				if rate > 10 {
					add("RDMARetransmissions", device)
				}
			}
		case unresponsive:
			add("AccelscopeDown", "")
		case degraded:
			add("RDMALinkDegraded", "mlx5_1")
		case flapping:
			add("RDMALinkUnstable", "mlx5_0")
		case storming:
			add("RDMAPauseStorm", "mlx5_0")
		case fallen:
			add("GPUXidCritical", "1")
		case late:
			add("JobMemberBehind", "")
		case healthy, idling, sicknesses: // an idle GPU is an alert after 90 minutes
		}
	}
	return out
}

// culprit compares the members of a job that are behind with what the generator writes.
func (f *fleet) culprit(t *testing.T, reader *nodes.Reader, s *nodes.State, job nodes.JobName) {
	t.Helper()
	report, problems := reader.Job(t.Context(), s, job)
	if report == nil {
		t.Fatal(problems)
	}
	for i := range report.Members {
		m := &report.Members[i]
		want := strings.HasPrefix(job.Name, "train-1-0-") && m.Node == "gpu0004" && strings.HasSuffix(m.Workload, "/main") // not its sandbox
		if (m.Behind != nil) != want || want && (i != 0 || *m.Behind != behind || !strings.HasPrefix(report.Summary, "The job waits for "+m.Workload+" on gpu0004, ")) {
			t.Errorf("%v: %s on %s is behind by %v as number %d: %s", job, m.Workload, m.Node, value(m.Behind), i, report.Summary)
		}
	}
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
	near := func(what string, got *float64, want float64) {
		t.Helper()
		if got == nil || math.Abs(*got-want) > f.lag*want {
			t.Errorf("%s: %v, the generator writes %v", what, got, want)
		}
	}
	all := f.truth(s.At)
	for _, n := range f.nodes {
		got := byName[n.name()]
		want, answers := all.of[n.name()]
		if !answers {
			if !got.Down {
				t.Errorf("%s answers, or is not there: %+v", n.name(), got)
			}
			continue
		}
		near(n.name()+": bytes out", got.Bytes.Transmit, want.transmit)
		for device, use := range want.use {
			near(n.name()+" "+device+": use", got.Rails[device].Use, use)
		}
		lost := got.Rails["mlx5_0"].Errors
		if (n.sick == lossy) != (lost != nil && *lost > 1) {
			t.Errorf("%s: %v errors a second", n.name(), lost)
		}
	}
	g, p := s.Totals.GPUs, s.Totals.Ports
	text := func(n *int) string {
		if n == nil {
			return "none"
		}
		return fmt.Sprint(*n)
	}
	gotGPUs := fmt.Sprintf("%s: %s given, %s in use, %s idle, %s sick", text(g.All), text(g.Given), text(g.Used), text(g.Idle), text(g.Sick))
	gotPorts := fmt.Sprintf("%s: %s up, %s degraded, %s flapping", text(p.All), text(p.Up), text(p.Degraded), text(p.Flapping))
	if gotGPUs != all.gpus || gotPorts != all.ports {
		t.Errorf("GPUs %s, ports %s; the generator writes %s, %s", gotGPUs, gotPorts, all.gpus, all.ports)
	}
	if s.Totals.Nodes != len(f.nodes) || s.Totals.Down != all.down || all.down == 0 {
		t.Errorf("%d nodes, %d down, the generator has %d and %d", s.Totals.Nodes, s.Totals.Down, len(f.nodes), all.down)
	}
	if all.gpus != "58: 58 given, 57 in use, 1 idle, 2 sick" || all.ports != "58: 57 up, 1 degraded, 1 flapping" {
		t.Errorf("the generator writes %s, %s: the comparison shows less than it should", all.gpus, all.ports)
	}
	if len(s.Jobs) != len(all.jobs) || len(all.jobs) < 8 {
		t.Errorf("%d jobs, the generator writes %d", len(s.Jobs), len(all.jobs))
	}
	for _, j := range s.Jobs {
		if j.Members != len(all.jobs[j.JobName]) {
			t.Errorf("%v has %d members, the generator writes %d", j.JobName, j.Members, len(all.jobs[j.JobName]))
		}
		f.culprit(t, reader, s, j.JobName)
	}
	largest := slices.MaxFunc(s.Jobs, func(a, b nodes.Job) int { return a.Members - b.Members })
	report, problems := reader.Job(t.Context(), s, largest.JobName)
	if report == nil {
		t.Fatal(problems)
	}
	got := map[string]bool{}
	for _, m := range report.Members {
		got[m.Node+" "+m.Workload] = true
	}
	if !maps.Equal(got, all.workloads[largest.JobName]) || len(problems) > 0 {
		t.Errorf("members of %v: %v, the generator writes %v; %v", largest.JobName, got, all.workloads[largest.JobName], problems)
	}
	if i := slices.IndexFunc(s.Alerts, func(a nodes.Alert) bool { return a.Name == "GPUUncorrectedECC" && a.Node == "gpu0022" }); i < 0 {
		t.Errorf("alerts: %v", s.Alerts)
	}
	for query, want := range map[string]nodes.Found{
		"gpu-0-13":           {Kind: "GPU", Name: "nvidia 0", Node: "gpu0013", ID: "GPU-0-13"},
		"946D:AE03:0012:345": {Kind: "HCA", Name: "mlx5_0", Node: "gpu0007", ID: "0x946dae0300123456-7"},
	} {
		found, problems := reader.Search(t.Context(), query)
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
