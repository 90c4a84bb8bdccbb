// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// dcgmList is a line of docs/gpus.md: kind, state if it is not the same as in dcgm-exporter, names, remark.
var dcgmList = regexp.MustCompile("(?m)^- ([^;:`\n]+)(?:; (approximated|absent|label))?: (`DCGM_\\w+`(?:, `DCGM_\\w+`)*)(?:: (.+))?$")

// TestDCGMTable compares docs/gpus.md with the recorded names of dcgm-exporter and with the metric table.
func TestDCGMTable(t *testing.T) {
	page := read(t, "../../docs/gpus.md")
	documented, states, extra := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, list := range dcgmList.FindAllStringSubmatch(page, -1) {
		kind, state, remark := list[1], list[2], list[4]
		if state != "" && state != "label" && remark == "" {
			t.Errorf("%s: %s, and the remark does not say why", list[3], state)
		}
		for name := range strings.SplitSeq(strings.ReplaceAll(list[3], "`", ""), ", ") {
			if kind == "not in dcgm-exporter's lists, needs GPM" {
				extra[name] = true
				continue
			}
			if _, twice := documented[name]; twice {
				t.Errorf("%s is listed twice", name)
			}
			documented[name], states[name] = kind, state == "" || state == "approximated"
			if state == "label" && !slices.Contains(dcgmLabels, name) {
				t.Errorf("%s is no label", name)
			}
		}
	}
	recorded := map[string]string{}
	for line := range strings.Lines(read(t, "testdata/dcgm-exporter.csv")) {
		if f := strings.Split(strings.TrimSpace(line), ","); !strings.HasPrefix(line, "#") && len(f) == 3 {
			recorded[f[0]] = strings.TrimSuffix(f[1]+", "+f[2], ", default")
		}
	}
	if diff := cmp.Diff(recorded, documented); diff != "" || len(recorded) < 60 {
		t.Errorf("%d names of dcgm-exporter (-recorded +documented):\n%s", len(recorded), diff)
	}
	exported := map[string]bool{}
	for _, m := range dcgmMetrics() {
		exported[m.name] = true
		if !states[m.name] && !extra[m.name] {
			t.Errorf("%s is exported, and documented as absent, or not at all", m.name)
		}
	}
	for name := range maps.Keys(states) {
		if states[name] && !exported[name] {
			t.Errorf("%s is documented, and not exported", name)
		}
	}
	for name := range extra {
		if recorded[name] != "" || !exported[name] {
			t.Errorf("%s is among the other fields: in the lists of dcgm-exporter %q, exported %t", name, recorded[name], exported[name])
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// series returns the values of a family by "label value, …", in the order of labels.
func series(families []*dto.MetricFamily, name string, labels ...string) map[string]float64 {
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var key []string
			for _, l := range labels {
				for _, p := range m.GetLabel() {
					if p.GetName() == l {
						key = append(key, p.GetValue())
					}
				}
			}
			all[strings.Join(key, " ")] += m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return all
}

// TestDCGMSharedGPU checks a GPU that is allocated to two containers of Kubernetes and two workloads that are not
// containers.
func TestDCGMSharedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		some := model.Some
		facts := model.Snapshot{
			Containers: []model.Container{},
			GPUs: []model.GPU{{
				Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"}, Utilization: some(0.5), Power: some(300),
				Memory: model.VideoMemory{Total: some(80 << 20), Used: some(64 << 20), Free: some(16 << 20)},
				Listed: time.Unix(1700000000, 0), Engines: []model.Figure{{Name: "sm", Value: 0.5}}, XIDs: []model.XID{{Code: 94, Count: 1, Last: time.Unix(1, 0)}},
			}},
			GPUProcesses: []model.GPUProcess{
				{GPU: "GPU-0", PID: 11, Cgroup: 101, Memory: some(10 << 20), Engines: []model.Figure{{Name: "sm", Value: 0.25}}},
				{GPU: "GPU-0", PID: 12, Cgroup: 101, Memory: some(20 << 20), Engines: []model.Figure{{Name: "sm", Value: 0.125}}},
			},
		}
		for i, name := range []string{"train-0", "idle-0"} {
			facts.Containers = append(facts.Containers, model.Container{
				ID: []string{"0a1b", "0c2d"}[i], Runtime: "containerd", Name: "main", Namespace: "ml", Pod: name, PodUID: fmt.Sprint("u", i),
				Devices: []string{"/dev/nvidia0"},
			})
		}
		n := names(nodeNames())
		families := gather(t, []engine.Registration{{Source: &fake{name: "x", facts: facts}}, {Source: n}}, CompatDCGM)
		for name, want := range map[string]map[string]float64{
			"DCGM_FI_DEV_POWER_USAGE": {"ml train-0 main": 300, "ml idle-0 main": 300},
			"DCGM_FI_DEV_FB_FREE":     {"ml train-0 main": 16, "ml idle-0 main": 16},
			"DCGM_FI_DEV_FB_USED":     {"  ": 64, "ml train-0 main": 30, "ml idle-0 main": 0},
			"DCGM_FI_DEV_GPU_UTIL":    {"  ": 50, "ml train-0 main": 37.5, "ml idle-0 main": 0},
		} {
			if diff := cmp.Diff(want, series(families, name, "namespace", "pod", "container")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		want := map[string]float64{"train-0 94 contained memory error": 94, "idle-0 94 contained memory error": 94}
		if diff := cmp.Diff(want, series(families, "DCGM_FI_DEV_XID_ERRORS", "pod", "err_code", "err_msg")); diff != "" {
			t.Errorf("XID (-want +got):\n%s", diff)
		}
	})
}

// TestDCGMUnits checks values whose unit differs from our own metrics.
func TestDCGMUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		families := gather(t, []engine.Registration{{Source: &fake{name: "nvidia", facts: model.Snapshot{GPUs: []model.GPU{{
			Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0",
			LinkPayload: model.Some(2500 * 1024), // 2500 KiB/s, which DCGM shows as 2.5
			LinkErrors:  []model.Counter{{Name: "crc_flit", Value: 3}, {Name: "recovery", Value: 4}},
			Rates:       []model.Figure{{Name: model.RateNVLinkTransmit, Value: 3 << 20}, {Name: model.RateC2CReceiveData, Value: 7 << 20}},
			Throttled:   []model.Figure{{Name: "sw_power_cap", Value: 2.5}, {Name: "sw_thermal_slowdown", Value: 1e-9}},
			RetiredPages: []model.Figure{
				{Name: "correctable", Value: 1}, {Name: "uncorrectable", Value: 2},
			},
			Problems: []model.GPUCondition{{Name: model.ProblemRetirePending, Active: true}},
		}}}}}}, CompatDCGM)
		for name, want := range map[string]float64{
			"DEV_NVLINK_BANDWIDTH_TOTAL": 2.5, "PROF_NVLINK_TX_BYTES": 3 << 20, "PROF_C2C_RX_DATA_BYTES": 7 << 20,
			"DEV_POWER_VIOLATION": 2.5e9, "DEV_THERMAL_VIOLATION": 1, "DEV_RETIRED_SBE": 1, "DEV_RETIRED_DBE": 2, "DEV_RETIRED_PENDING": 1,
			"DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 3, "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 4,
		} {
			if got, ok := value(families, "DCGM_FI_"+name); !ok || got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}
