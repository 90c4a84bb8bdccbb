// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestEnergyOfWorkloads: two workloads use 12.345 J of a GPU, then one of them uses 1 J alone. The workloads' counters
// begin at the first scrape.
func TestEnergyOfWorkloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gpu := model.GPU{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Energy: model.Some(100)}
		card := &fake{name: "nvidia", facts: model.Snapshot{GPUs: []model.GPU{gpu}, GPUUses: []model.GPUUse{{GPU: "GPU-0"}}}}
		owners := names(map[model.CgroupID]identitytest.Entity{1: {Workload: "docker:a", ContainerID: "a"}, 2: {Workload: "docker:b", ContainerID: "b"}})
		c := newCollector(setup{Sources: []engine.Registration{{Source: card}, {Source: owners}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		listed, active := uint64(0), uint64(0)
		scrape := func(joules float64, uses ...model.GPUUse) map[string]float64 {
			t.Helper()
			time.Sleep(5 * time.Second)
			gpu.Energy, gpu.EnergyRead = model.Some(joules), time.Now()
			listed++
			active += uint64(min(len(uses), 1))
			card.facts.GPUs, card.facts.GPUUses = []model.GPU{gpu}, append([]model.GPUUse{{GPU: "GPU-0", Listed: listed, Active: active}}, uses...)
			_, _, text := seriesOf(t, c)
			found := map[string]float64{}
			for name, value := range seriesIn(text) {
				if labels, ok := strings.CutPrefix(name, "container_gpu_energy_joules_total{"); ok {
					of := labelsIn(labels)
					found[of["workload"]+" "+of["method"]] = value
				}
			}
			return found
		}
		use := func(id model.CgroupID, rounds uint64, busy time.Duration) model.GPUUse {
			return model.GPUUse{GPU: "GPU-0", Cgroup: id, Rounds: rounds, Busy: busy}
		}
		check := func(got, want map[string]float64) {
			t.Helper()
			if len(got) != len(want) {
				t.Errorf("%v, want %v", got, want)
			}
			for k, v := range want {
				if got[k] != v {
					t.Errorf("%s: %v, want %v", k, got[k], v)
				}
			}
		}
		check(scrape(100), map[string]float64{" ": 100})
		check(scrape(112.345, use(1, 1, 2*time.Second), use(2, 1, time.Second)), map[string]float64{
			" ": 100, "docker:a activity": 8.23, "docker:b activity": 4.115,
		})
		scrape(112.845, use(1, 2, 2*time.Second), use(2, 1, time.Second))
		check(scrape(113.345, use(1, 3, 3*time.Second), use(2, 1, time.Second)), map[string]float64{
			" ": 100.5, "docker:a activity": 8.23, "docker:b activity": 4.115, "docker:a exclusive": 0.5,
		})
	})
}

// TestCPUEnergyOfWorkloads: a package uses 100 J in 10 s. A workload has 3 s and another 1 s of the 20 s of two CPUs. A third workload
// begins later.
func TestCPUEnergyOfWorkloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, usage := &fake{name: "node"}, &fake{name: "container"}
		owners := names(map[model.CgroupID]identitytest.Entity{
			1: {Workload: "docker:a", ContainerID: "a"}, 2: {Workload: "docker:b", ContainerID: "b"}, 3: {Workload: "docker:c", ContainerID: "c"},
		})
		c := newCollector(setup{Sources: []engine.Registration{{Source: node}, {Source: usage}, {Source: owners}}})
		defer c.Close() //nolint:errcheck // nothing to lose
		seconds := 0.0
		scrape := func(joules float64, used ...float64) map[string]float64 {
			t.Helper()
			since := time.Now()
			time.Sleep(10 * time.Second)
			seconds += 20
			node.facts.Node = &model.Node{
				CPUs: []model.CPU{{Seconds: [model.CPUModes]float64{3: seconds}}}, EnergyRead: time.Now(),
				Energy: []model.EnergyZone{{
					Name: "package", Path: "/intel-rapl:0", Domain: model.EnergyOfPackage, Microjoules: uint64(joules * 1e6), Limit: 1 << 40,
				}},
			}
			usage.facts.Usages = []model.Usage{}
			for i, s := range used {
				usage.facts.Usages = append(usage.facts.Usages, model.Usage{
					Cgroup: model.CgroupID(i + 1), Since: since, CPU: model.CPUUsage{Total: model.Some(s)},
				})
			}
			_, _, text := seriesOf(t, c)
			found := map[string]float64{}
			for name, value := range seriesIn(text) {
				if labels, ok := strings.CutPrefix(name, "container_cpu_energy_joules_total{"); ok {
					of := labelsIn(labels)
					found[of["workload"]+" "+of["domain"]+" "+of["method"]] = value
				}
			}
			return found
		}
		check := func(got, want map[string]float64) {
			t.Helper()
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		}
		check(scrape(5000, 70, 80), map[string]float64{" package ": 0})
		check(scrape(5100, 73, 81), map[string]float64{"docker:a package cpu_time": 15, "docker:b package cpu_time": 5, " package ": 80})
		check(scrape(5200, 73, 81, 10), map[string]float64{
			"docker:a package cpu_time": 15, "docker:b package cpu_time": 5, "docker:c package cpu_time": 50, " package ": 130,
		})
	})
}

// labelsIn returns the labels of a series without commas in values.
func labelsIn(series string) map[string]string {
	found := map[string]string{}
	for part := range strings.SplitSeq(strings.TrimSuffix(series, "}"), ",") {
		name, value, _ := strings.Cut(part, "=")
		found[name] = strings.Trim(value, `"`)
	}
	return found
}
