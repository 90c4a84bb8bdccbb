// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// span is the number and the maximum of some durations.
type span struct {
	count   int
	longest time.Duration
}

func (s *span) add(d time.Duration) { s.count, s.longest = s.count+1, max(s.longest, d) }

// faultResult is how often a fault happened, and how long the recovery of its rounds took.
type faultResult struct {
	span
	failures int
}

type soakResult struct {
	faults          map[string]*faultResult
	scrapes, health span
	late, failed    int // answers after their limit, and no answers
	largest         int // bytes of a scrape
	sensors         int // how often the sensor was started
	names, fromPath int
	last            metrics // of the last scrape; nil if it failed
	usage           map[string]float64
}

func (r *soakResult) fault(name string) *faultResult {
	if r.faults[name] == nil {
		r.faults[name] = &faultResult{}
	}
	return r.faults[name]
}

// soakState is what must equal the state after the warm-up when no fault lasts.
type soakState struct {
	ok    []string           // sources, hooks and devices in state ok
	usage map[string]float64 // of resources by the sensor
}

func stateOf(m metrics) soakState {
	s := soakState{usage: map[string]float64{}}
	for family, by := range map[string][]string{
		"accelscope_source_state": {"source"}, "accelscope_device_state": {"source", "device"}, "accelscope_probe_hook_state": {"hook"},
	} {
		for _, x := range m.all(family, "state", "ok") {
			name := strings.TrimSuffix(strings.TrimPrefix(family, "accelscope_"), "_state")
			for _, l := range by {
				name += " " + label(x, l)
			}
			if x.GetGauge().GetValue() == 1 {
				s.ok = append(s.ok, name)
			}
		}
	}
	slices.Sort(s.ok)
	for name, family := range map[string]string{
		"resident MB": "process_resident_memory_bytes", "goroutines": "go_goroutines",
	} {
		s.usage[name] = m.sum(family)
	}
	s.usage["resident MB"] /= 1 << 20
	for name, entries := range m.by("accelscope_probe_map_entries", "map") {
		s.usage["map "+name] = entries
	}
	return s
}

// complete returns an error if something from after the warm-up is missing, a container has no name or no QPs, or too
// few of the containers that come and go have QPs: the entries of maps are compared with the state after the warm-up,
// under the same load.
func (k *soak) complete(m metrics) error {
	if k.s == nil || m == nil {
		return errors.New("no scrape")
	}
	is := stateOf(m)
	for _, name := range k.normal.ok {
		if !slices.Contains(is.ok, name) {
			return fmt.Errorf("%s is not ok", name)
		}
	}
	if m.sum("accelscope_events_connected") != 1 {
		return errors.New("the collector is not connected")
	}
	for _, o := range k.load.steady {
		if got := m.sum("container_rdma_resources", "container_id", o.id, "workload", o.workload, "type", "qp"); got != o.qps {
			return fmt.Errorf("%s has %v QPs, want %v", o.workload, got, o.qps)
		}
	}
	if got := m.sum("container_rdma_resources", "device", churnDevice, "type", "qp"); got < usualQPs {
		return fmt.Errorf("the containers that come and go have %v QPs, usually %v or more", got, usualQPs)
	}
	return nil
}

// usage returns the resources that the sensor uses, at the last scrape.
func (k *soak) usage() map[string]float64 {
	usage := stateOf(k.result.last).usage
	for name, dir := range map[string]string{"descriptors": "fd", "threads": "task"} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", k.s.cmd.Process.Pid, dir))
		if err != nil {
			k.t.Error(err)
		}
		usage[name] = float64(len(entries))
	}
	return usage
}

// checkFlat compares the resources of the sensor with the state after the warm-up. The load is the same.
func (k *soak) checkFlat() {
	err := errors.New("no scrape at the end")
	for range 20 { // remains of ended containers may take some refreshes
		if k.step(); k.result.last == nil {
			continue
		}
		k.result.usage = k.usage()
		if err = grown(k.normal.usage, k.result.usage); err == nil {
			return
		}
	}
	k.t.Error(err)
}

// grown returns an error if a resource is above its bound: a fifth more than before, plus the usual variation.
func grown(before, after map[string]float64) (err error) {
	for name, is := range after {
		varies := map[string]float64{"resident MB": 12, "descriptors": 16, "goroutines": 16, "threads": 16}[name]
		if strings.HasPrefix(name, "map ") {
			varies = 64 // workloads that are replaced when the entries are counted
		}
		if limit := before[name]*1.2 + varies; is > limit {
			err = errors.Join(err, fmt.Errorf("%s: %.0f, were %.0f after the warm-up, limit %.0f", name, is, before[name], limit))
		}
	}
	return err
}

// table returns the result for docs/internals/reliability.md.
func (r *soakResult) table(k *soak) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "make soak SOAK=%v SEED=%d, kernel %s\n\n", k.length, k.seed, k.n)
	fmt.Fprintf(b, "| fault | times | longest recovery | not recovered |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.faults)) {
		f := r.faults[name]
		fmt.Fprintf(b, "| %s | %d | %.0f s | %d |\n", name, f.count, f.longest.Seconds(), f.failures)
	}
	fmt.Fprintf(b, "\n| | after the warm-up | at the end |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.usage)) {
		fmt.Fprintf(b, "| %s | %.0f | %.0f |\n", name, k.normal.usage[name], r.usage[name])
	}
	fmt.Fprintf(b, "\n%d scrapes, the longest %.1f s, the largest %d kB; the longest /healthz %.2f s; %d late, %d failed; ",
		r.scrapes.count, r.scrapes.longest.Seconds(), r.largest>>10, r.health.longest.Seconds(), r.late, r.failed)
	fmt.Fprintf(b, "%d starts of the sensor; %d containers came and went, %d of them in containerd; %d correct names, %d from cgroup paths\n",
		r.sensors, k.load.made.Load(), k.load.pods.Load(), r.names, r.fromPath)
	return b.String()
}

// startSensor starts the sensor, in a cgroup of its own. In an emulated guest forks wait longer for a probe than users permit.
func (k *soak) startSensor() {
	k.s = start(k.t, k.n.args(append(k.more.arguments(), "--grace=30s", "--events.otlp-endpoint="+collectorAddress, "--events.otlp-insecure",
		"--container.scope=all", "--rdma.datapath=survey", "--rdma.survey-interval=1m", "--probe.attach-limit=2s")...)...)
	k.names = &nameLog{seen: map[string]map[identity]period{}, foreign: map[identity]bool{}}
	k.result.sensors++
	if err := os.WriteFile(filepath.Join(sensorCgroup, "cgroup.procs"), fmt.Append(nil, k.s.cmd.Process.Pid), 0o644); err != nil {
		k.t.Error(err)
	}
}

// outage excuses names from cgroup paths since the start of a round.
func (k *soak) outage(began time.Time) {
	k.names.mu.Lock()
	defer k.names.mu.Unlock()
	k.names.down = append(k.names.down, period{began, time.Now()})
}

// checkNames checks all names that the sensor has shown since it was started.
func (k *soak) checkNames() {
	k.names.truth = k.load.truths()
	wrong, names, fromPath := k.names.check()
	k.result.names, k.result.fromPath = k.result.names+names, k.result.fromPath+fromPath
	for i, text := range wrong {
		if i == 20 {
			k.t.Errorf("and %d more", len(wrong)-i)
			break
		}
		k.t.Error(text)
	}
}
