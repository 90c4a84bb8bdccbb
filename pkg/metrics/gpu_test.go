// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// TestGPUsSilent checks that a suspended or lost GPU has no metrics except this state.
func TestGPUsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := library.Encode(t, gather(t, gpuNode(), CompatSets()...), expfmt.TypeTextPlain)
		of := func(uuid string) map[string]bool {
			names := map[string]bool{}
			for line := range strings.Lines(text) {
				if name, labels, ok := strings.Cut(line, "{"); ok && strings.Contains(strings.ToLower(labels), `uuid="`+uuid+`"`) {
					names[name] = true
				}
			}
			return names
		}
		if d := cmp.Diff(map[string]bool{"gpu_info": true, "gpu_suspended": true}, of("gpu-2")); d != "" {
			t.Errorf("asleep:\n%s", d)
		}
		if d := cmp.Diff(map[string]bool{"gpu_info": true, "gpu_health": true, "gpu_problem": true}, of("gpu-3")); d != "" {
			t.Errorf("lost:\n%s", d)
		}
	})
}

// TestGPUSharesAddUp checks that the totals of a GPU are the sums over its owners.
func TestGPUSharesAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sums, totals := map[string]float64{}, map[string]float64{}
		for _, f := range gather(t, gpuNode()) {
			for _, m := range f.Metric {
				label := map[string]string{}
				for _, l := range m.Label {
					label[l.GetName()] = l.GetValue()
				}
				k := label["uuid"] + label["engine"]
				fault := label["pci_address"] + label["gpu_instance"] + label["code"] + label["severity"]
				switch f.GetName() {
				case "container_gpu_faults_total":
					sums["gpu_faults_total"+fault] += m.GetCounter().GetValue()
				case "gpu_faults_total":
					if v := m.GetCounter().GetValue(); v > 0 { // no workload has a share of a fault from before the start
						totals["gpu_faults_total"+fault] = v
					}
				case "container_gpu_memory_used_bytes", "container_gpu_utilization_ratio", "container_gpu_processes":
					sums[strings.TrimPrefix(f.GetName(), "container_")+k] += m.GetGauge().GetValue()
				case "gpu_memory_used_bytes", "gpu_processes":
					totals[f.GetName()+k] = m.GetGauge().GetValue()
				case "gpu_engine_utilization_ratio":
					if !strings.HasSuffix(k, "_active") { // not reported per process
						totals["gpu_utilization_ratio"+k] = m.GetGauge().GetValue()
					}
				}
			}
		}
		delete(totals, "gpu_memory_used_bytesGPU-1") // used through its parts
		// The driver does not report the memory of one process: the unattributed memory is unknown.
		const unknown = "gpu_memory_used_bytesGPU-0"
		if sums[unknown] >= totals[unknown] {
			t.Errorf("shares of %v of %v bytes", sums[unknown], totals[unknown])
		}
		delete(totals, unknown)
		delete(sums, unknown)
		if d := cmp.Diff(totals, sums); d != "" || len(sums) < 10 {
			t.Errorf("(-totals +sums):\n%s", d)
		}
	})
}

// TestDCGMWorkload checks that a GPU has the labels of the only workload to which it is allocated.
func TestDCGMWorkload(t *testing.T) {
	container := func(n int) model.Container {
		return model.Container{
			ID: fmt.Sprint("c", n), Runtime: "containerd", Name: "main", Namespace: "ml", Pod: fmt.Sprint("p", n), PodUID: fmt.Sprint("u", n),
			Devices: []string{"/dev/nvidia0"},
		}
	}
	for n, want := range []string{"", "p0", "", ""} {
		synctest.Test(t, func(t *testing.T) {
			facts := model.Snapshot{Containers: []model.Container{}, GPUs: []model.GPU{{
				Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0"},
				Utilization: model.Some(0),
			}}}
			for i := range n {
				facts.Containers = append(facts.Containers, container(i))
			}
			families := gather(t, []engine.Registration{{Source: &fake{name: "x", facts: facts}}}, CompatDCGM)
			if _, ok := value(families, "DCGM_FI_DEV_GPU_UTIL", "pod="+want, "device=nvidia0", "UUID=GPU-0"); !ok {
				t.Errorf("allocated to %d workloads: no series with %q", n, want)
			}
		})
	}
}

func TestLastXID(t *testing.T) {
	at := func(code uint64, seconds int64) model.XID {
		return model.XID{Code: code, Count: 1, Last: time.Unix(seconds, 0)}
	}
	for _, c := range []struct {
		xids  []model.XID
		want  uint64
		known bool
	}{
		{nil, 0, false},
		{[]model.XID{}, 0, true},
		{[]model.XID{at(13, 5), at(79, 9), at(31, 7)}, 79, true},
		{[]model.XID{{Code: 5}}, 0, true}, // never counted
	} {
		if got, known := lastXID(&gpuView{GPU: &model.GPU{XIDs: c.xids}}); got != c.want || known != c.known {
			t.Errorf("of %v it is %v, %v", c.xids, got, known)
		}
	}
}

// TestUnknownCgroup checks that a process with an unknown cgroup does not count as a cgroup without a name.
func TestUnknownCgroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ok := value(gather(t, gpuNode()), "accelscope_unresolved_cgroups_total")
		if !ok || n != 1 { // 999
			t.Errorf("%v cgroups have no name", n)
		}
	})
}

// TestDCGMDashboard checks that the queries of dcgm-exporter's public dashboard (grafana.com 12239) find their metrics
// and labels.
func TestDCGMDashboard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		families := gather(t, gpuNode(), CompatDCGM)
		for name, want := range map[string]float64{
			"DEV_GPU_TEMP": 41, "DEV_POWER_USAGE": 312.5, "DEV_SM_CLOCK": 1980, "PROF_GR_ENGINE_ACTIVE": 0.625,
			"PROF_PIPE_TENSOR_ACTIVE": 0.25, "DEV_FB_USED": 30 << 10, "DEV_FB_FREE": 49 << 10, "DEV_GPU_UTIL": 75,
			"DEV_MEM_COPY_UTIL": 50, "DEV_TOTAL_ENERGY_CONSUMPTION": 123456789, "DEV_XID_ERRORS": 13,
		} {
			got, ok := value(families, "DCGM_FI_"+name, "Hostname=gpu01", "gpu=0", "UUID=GPU-0", "GPU_I_ID=", "GPU_I_PROFILE=",
				"modelName=NVIDIA H100 80GB HBM3", "pci_bus_id=00000000:18:00.0", "DCGM_FI_DRIVER_VERSION=550.54.15")
			if !ok || got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if n, ok := value(families, "DCGM_FI_DEV_FB_USED", "gpu=1", "UUID=GPU-1", "GPU_I_ID=7", "GPU_I_PROFILE=1g.10gb"); !ok || n != 1000 {
			t.Errorf("the MIG instance uses %v MiB", n)
		}
	})
}

// TestDCGMValues checks that metrics named after dcgm-exporter have the driver's values, independent of the processes.
func TestDCGMValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		some := model.Some
		busy := []model.Figure{{Name: "memory", Value: 0.75}}
		families := gather(t, []engine.Registration{{Source: &fake{name: "nvidia", facts: model.Snapshot{
			GPUs: []model.GPU{{
				Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Engines: busy,
				Memory: model.VideoMemory{Total: some(10 << 20), Used: some(4 << 20), Free: some(6 << 20)},
			}},
			GPUProcesses: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Memory: some(4 << 20), Engines: busy},
				{GPU: "GPU-0", PID: 2, Memory: some(4 << 20), Engines: busy},
			},
		}}}}, CompatDCGM)
		for name, want := range map[string]float64{"MEM_COPY_UTIL": 75, "FB_USED": 4, "FB_FREE": 6} {
			if got, ok := value(families, "DCGM_FI_DEV_"+name); !ok || got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// TestNoRemainders: 7 % is stored as 0.07, and 0.07 × 100 is 7.000000000000001 in binary.
func TestNoRemainders(t *testing.T) {
	for v, want := range map[float64]float64{0.07: 7, 0.28: 28, 0.29: 29, 0.57: 57, 1: 100} {
		if got := scaled(model.Some(v), percent); got != model.Some(want) {
			t.Errorf("%v: %v %%", v, got.Value)
		}
	}
}

// TestMemoryPools: memory of a GPU with two pools has the label pool. Shares add up to the memory of both pools.
func TestMemoryPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := names(nodeNames())
		facts := model.Snapshot{
			GPUs: []model.GPU{{
				Vendor: model.AMD, ID: "0", UUID: "a", UsesGTT: true, Listed: time.Unix(1, 0),
				Memory: model.VideoMemory{Total: model.Some(9), Used: model.Some(5.5)},
				GTT:    model.VideoMemory{Total: model.Some(8), Used: model.Some(4)},
			}},
			GPUProcesses: []model.GPUProcess{
				{GPU: "a", PID: 1, Cgroup: 101, Memory: model.Some(3), GTT: model.Some(3)},
				{GPU: "a", PID: 2, Cgroup: 102, Memory: model.Some(1), GTT: model.Some(0.5)},
			},
		}
		families := gather(t, []engine.Registration{{Source: n}, {Source: &fake{name: "amdgpu", facts: facts}}})
		for series, want := range map[string]float64{
			"ml/train-0/main gtt": 3, "slurm:42 gtt": 0.5, "slurm:42 vram": 0.5, " gtt": 0.5, " vram": 1,
		} {
			workload, pool, _ := strings.Cut(series, " ")
			if v, ok := value(families, "container_gpu_memory_used_bytes", "workload="+workload, "pool="+pool); !ok || v != want {
				t.Errorf("%q has %v (%v), want %v", series, v, ok, want)
			}
		}
		if v, ok := value(families, "container_gpu_memory_used_bytes", "workload=ml/train-0/main", "pool=vram"); ok {
			t.Errorf("%v bytes of VRAM of a workload with memory in GTT", v)
		}
		if v, _ := value(families, "gpu_memory_used_bytes"); v != 5.5 {
			t.Errorf("the GPU has %v", v)
		}
	})
}
