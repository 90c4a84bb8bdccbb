// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// quickly is the time limit for changes in the background: several intervals, or the time in which a GPU must have
// answered for the first time.
const quickly = time.Minute

// gpuNode is a fake node with a sensor, eight fake GPUs, two of them split into MIG devices, and 40 processes in 10
// containers.
type gpuNode struct {
	fixtures.Manifest
	*nvml.Scenario
	url      string
	args     []string // before the sensor's arguments
	process  *os.Process
	stop     func() (time.Duration, error)
	interval time.Duration // of the rounds
}

// startGPUs creates the node, calls change for it, and starts the sensor with more arguments. The test must end it.
func startGPUs(t *testing.T, binary, library string, interval time.Duration, change func(*gpuNode), more ...string) *gpuNode {
	t.Helper()
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{
		ComputeHCAs: 1, Containers: 10, ContainersPerPod: 2, ProcsPerContainer: 4, Services: 3, Seed: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &gpuNode{Manifest: m, Scenario: s}
	var pids []int
	for _, c := range m.Containers {
		pids = append(pids, c.PIDs...)
	}
	s.Node(pids...)
	n.bind(t, nvml.GPUs)
	if err := s.Capabilities(m.ProcFS()); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(n)
	}
	n.write(t)
	n.start(t, binary, library, interval, append(more, "--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS())...)
	return n
}

// start starts the sensor.
func (n *gpuNode) start(t *testing.T, binary, library string, interval time.Duration, more ...string) {
	t.Helper()
	n.interval = interval
	args := append(append(n.Environment(), binary), n.args...)
	n.url, n.process, n.stop = startProcess(t, "env", append(append(args, "--gpu.control-socket="+n.socket(), "--path.sysfs="+n.SysFS(),
		"--path.host="+n.Dir,
		"--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node",
		"--no-collector.container", "--no-collector.access", "--no-collector.rdma", "--node.name=node",
		"--gpu.nvml-library="+library, "--gpu.process-interval="+interval.String(), "--metrics.compat=lens,dcgm", "--gpu.detail=full"), more...)...)
}

// socket returns the path of the control socket.
func (n *gpuNode) socket() string { return filepath.Join(n.Dir, "control", "socket") }

// bind binds the first GPUs to the driver.
func (n *gpuNode) bind(t *testing.T, gpus int) {
	t.Helper()
	for i := range gpus {
		if err := nvml.Bind(n.SysFS(), n.ProcFS(), i); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *gpuNode) write(t *testing.T) {
	t.Helper()
	if err := n.Write(); err != nil {
		t.Fatal(err)
	}
}

func (n *gpuNode) called(t *testing.T) nvml.Calls {
	t.Helper()
	c, err := n.Calls()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// held returns the files that processes hold instead of device nodes, by PID.
func (n *gpuNode) held(t *testing.T) map[int][]string {
	t.Helper()
	held, err := n.Held()
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// nvidia returns the state of the source.
func (e exposition) nvidia() string { return e.states("accelscope_source_state")["nvidia"] }

// until scrapes until ok returns true.
func (n *gpuNode) until(t *testing.T, what string, ok func(exposition) bool) exposition {
	t.Helper()
	for end := time.Now().Add(quickly); ; time.Sleep(300 * time.Millisecond) {
		e := scrape(t, n.url)
		if ok(e) {
			return e
		}
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s\n%s", quickly, what, e.only("gpu_", "container_gpu_", "accelscope_source_state{source=\"nvidia\"",
				"accelscope_device_state{device=\"GPU"))
		}
	}
}

// listed waits until all processes are shown.
func (n *gpuNode) listed(t *testing.T) exposition {
	t.Helper()
	var last map[string]int
	var then map[string]float64
	var since time.Time
	return n.until(t, fmt.Sprintf("%d processes are listed, and no series are added", len(n.Processes)), func(e exposition) bool {
		now, at := complete(e), e.by("gpu_listed_timestamp_seconds", "uuid")
		if !maps.Equal(now, last) {
			last, then, since = now, at, time.Now()
		}
		// Differences between two rounds are available after the second one.
		again := true
		for id := range at {
			again = again && (at[id] > then[id] || n.interval > quickly)
		}
		return e.sum("container_gpu_processes", "", "") == float64(len(n.Processes)) && again && time.Since(since) > 3*time.Second
	})
}

// listening waits until the sensor receives the events of all GPUs. Earlier events are lost.
func (n *gpuNode) listening(t *testing.T) exposition {
	t.Helper()
	return n.until(t, "XIDs are listened to", func(e exposition) bool {
		heard := 0
		for _, m := range e.families["gpu_problem"].GetMetric() {
			if label(m, "problem") == "xid" && !strings.Contains(label(m, "gpu_id"), ":") {
				heard++
			}
		}
		return heard == nvml.GPUs
	})
}

// only returns the lines with one of these prefixes.
func (e exposition) only(prefixes ...string) string {
	var b strings.Builder
	for line := range strings.Lines(e.body) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func number(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
}

// by returns the values of a family by these labels, "a b"; equal keys are summed.
func (e exposition) by(family string, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range e.families[family].GetMetric() {
		var key []string
		for _, l := range labels {
			key = append(key, label(m, l))
		}
		out[strings.Join(key, " ")] += number(m)
	}
	return out
}

// sum sums a family, or only its series with this label.
func (e exposition) sum(family, name, value string) float64 {
	var sum float64
	for _, m := range e.families[family].GetMetric() {
		if name == "" || label(m, name) == value {
			sum += number(m)
		}
	}
	return sum
}

// owners checks that the processes of the scenario belong to their containers, with their memory.
func (n *gpuNode) owners(t *testing.T, e exposition) {
	t.Helper()
	memory, processes := map[string]float64{}, map[string]float64{}
	for _, p := range n.Processes {
		i := slices.IndexFunc(n.Containers, func(c fixtures.Container) bool { return slices.Contains(c.PIDs, p.PID) })
		key := " " + n.UUID(p.Device)
		if i >= 0 {
			key = n.Containers[i].ID + key
		}
		processes[key]++
		memory[key] += float64(p.Memory)
	}
	owned := func(family string) map[string]float64 {
		got := e.by(family, "container_id", "uuid")
		maps.DeleteFunc(got, func(key string, v float64) bool { return v == 0 || strings.HasPrefix(key, " ") })
		return got
	}
	if diff := cmp.Diff(processes, owned("container_gpu_processes")); diff != "" {
		t.Errorf("processes of containers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(memory, owned("container_gpu_memory_used_bytes")); diff != "" {
		t.Errorf("memory of containers (-want +got):\n%s", diff)
	}
}

// conserved checks that the shares add up on each device that has processes of its own.
func conserved(t *testing.T, e exposition) {
	t.Helper()
	about := cmpopts.EquateApprox(1e-9, 1e-9)
	shares := e.by("container_gpu_memory_used_bytes", "uuid")
	used := e.by("gpu_memory_used_bytes", "uuid")
	for id, sum := range shares {
		if diff := cmp.Diff(used[id], sum, about); diff != "" {
			t.Errorf("%s: memory of owners and unattributed (-used +sum):\n%s", id, diff)
		}
	}
	engines := e.by("gpu_engine_utilization_ratio", "uuid", "engine")
	for key, sum := range e.by("container_gpu_utilization_ratio", "uuid", "engine") {
		if own, reported := engines[key]; reported && math.Abs(own-sum) > 1e-6 {
			t.Errorf("%s: owners use %v, the device %v", key, sum, own)
		}
		if sum < 0 || sum > 1+1e-9 {
			t.Errorf("%s: utilization %v", key, sum)
		}
	}
	for name, f := range e.families {
		if !strings.HasPrefix(name, "gpu_") && !strings.HasPrefix(name, "container_gpu_") {
			continue
		}
		for _, m := range f.GetMetric() {
			if v := number(m); v < 0 && !strings.HasPrefix(name, "gpu_temperature_margin_") || math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("%s{%v} is %v", name, m.GetLabel(), v)
			}
			if strings.HasPrefix(name, "gpu_") && name != "gpu_driver_info" && (label(m, "uuid") == "" || label(m, "gpu_id") == "") {
				t.Errorf("%s{%v} does not name the GPU", name, m.GetLabel())
			}
		}
	}
}

// rising checks that no counter fell.
func rising(t *testing.T, before, after exposition) {
	t.Helper()
	for name, f := range before.families {
		if f.GetType() != dto.MetricType_COUNTER || !strings.Contains(name, "gpu_") {
			continue
		}
		values := map[string]float64{}
		for _, m := range after.families[name].GetMetric() {
			values[fmt.Sprint(m.GetLabel())] = number(m)
		}
		for _, m := range f.GetMetric() {
			if now, still := values[fmt.Sprint(m.GetLabel())]; still && now < number(m) {
				t.Errorf("%s{%v} fell from %v to %v", name, m.GetLabel(), number(m), now)
			}
		}
	}
}

// complete returns the numbers of series of each GPU or MIG device, without errors.
func complete(e exposition) map[string]int {
	n := map[string]int{}
	for name, f := range e.families {
		if strings.HasPrefix(name, "gpu_") && name != "gpu_xid_errors_total" && name != "gpu_xid_last_timestamp_seconds" &&
			name != "gpu_listed_timestamp_seconds" && !strings.HasPrefix(name, "gpu_fault") {
			for _, m := range f.GetMetric() {
				n[label(m, "uuid")]++
			}
		}
	}
	return n
}

// problems returns the active problems of a GPU.
func problemsOf(e exposition, id string) []string {
	var active []string
	for _, m := range e.families["gpu_problem"].GetMetric() {
		if label(m, "uuid") == id && number(m) == 1 {
			active = append(active, label(m, "problem"))
		}
	}
	slices.Sort(active)
	return active
}

func healthOf(e exposition, id string) float64 {
	v, reported := e.by("gpu_health", "uuid")[id]
	if !reported {
		return -1
	}
	return v
}

// others checks that the other GPUs still have all their series.
func others(t *testing.T, before, after exposition, but ...string) {
	t.Helper()
	want, got := complete(before), complete(after)
	for _, id := range but {
		delete(want, id)
		delete(got, id)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series of the other GPUs (-before +after):\n%s", diff)
	}
}
