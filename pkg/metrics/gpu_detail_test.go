// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// maxGPUSeries is the number of series of a GPU without Options.GPUDetail.
const maxGPUSeries = 120

func figures(names ...string) (list []model.Figure) {
	for _, name := range names {
		list = append(list, model.Figure{Name: name, Value: 0.5})
	}
	return list
}

func conditions(names ...string) (list []model.GPUCondition) {
	for _, name := range names {
		list = append(list, model.GPUCondition{Name: name})
	}
	return list
}

func linkErrors(names ...string) (list []model.Counter) {
	for i, name := range names {
		list = append(list, model.Counter{Name: name, Value: uint64(i + 1)})
	}
	return list
}

// fullNVIDIA returns a GPU with 18 NVLinks and every value that the source nvidia reports for a chip.
func fullNVIDIA(index int) model.GPU {
	some := model.Some
	g := nvidiaFacts().GPUs[0]
	g.ID, g.UUID, g.PCIAddress = strconv.Itoa(index), fmt.Sprint("GPU-", index), fmt.Sprintf("0000:%02x:00.0", index+16)
	g.Nodes = []string{fmt.Sprint("/dev/nvidia", index)}
	g.Modes = map[string]string{
		"mig": "disabled", "compute": "default", "persistence": "enabled", "ecc": "enabled", "numa": "disabled", "mps": "disabled",
	}
	g.Engines = figures("sm", "memory", "encoder", "decoder", "jpeg", "ofa", "gr_active", "sm_active", "sm_occupancy", "tensor_active",
		"dram_active", "fp64_active", "fp32_active", "fp16_active", "integer_active", "tensor_dfma_active", "tensor_hmma_active",
		"tensor_imma_active")
	for i := range 8 {
		g.Engines = append(g.Engines, figures(fmt.Sprint("nvdec", i, "_active"), fmt.Sprint("nvjpg", i, "_active"))...)
	}
	g.Engines = append(g.Engines, figures("nvofa0_active", "nvofa1_active")...)
	g.TemperatureLimits = figures("shutdown", "slowdown", "memory_max", "gpu_max")
	g.TemperatureMarginLimits = figures("shutdown", "slowdown", "memory_max", "gpu_max")
	g.FanSpeed = some(0.5)
	g.Clocks, g.MaxClocks = figures("graphics", "sm", "memory", "video"), figures("graphics", "sm", "memory", "video")
	g.Throttles = conditions("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
		"hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting")
	g.Throttled = figures("sw_power_cap", "sw_thermal_slowdown", "sync_boost", "board_limit", "low_utilization", "reliability",
		"hw_thermal_slowdown", "hw_power_brake_slowdown")
	g.PCIe.ReplayRollovers = some(1)
	g.Links = nil
	for i := range 18 {
		g.Links = append(g.Links, model.GPULink{
			Kind: model.NVLink, Number: i, Up: some(1), Receive: some(float64(i)), Transmit: some(2 * float64(i)),
			Errors: linkErrors("replay", "recovery", "crc", "crc_flit", "crc_data", "ecc_data"),
		})
	}
	g.Errors = nil
	for _, typ := range []string{"corrected", "uncorrected"} {
		for _, scope := range []string{"volatile", "aggregate"} {
			for i, block := range []string{"dram", "l1_cache", "l2_cache", "register_file", "texture_memory", "shared_memory", "cbu"} {
				g.Errors = append(g.Errors, model.GPUErrors{Type: typ, Scope: scope, Block: block, Count: uint64(i)})
			}
		}
	}
	g.RetiredPages = figures("correctable", "uncorrectable")
	g.Problems = conditions(model.ProblemLost, model.ProblemStuck, model.ProblemXID, model.ProblemECC, model.ProblemRemapPending,
		model.ProblemRemapFailure, model.ProblemRetirePending, model.ProblemThermal, model.ProblemPowerBrake, model.ProblemLinkDown,
		model.ProblemInfoROM, model.ProblemPCIeDegraded, model.ProblemRecovery, model.ProblemSRAM, model.ProblemFabric)
	return g
}

// fullNVLink5 returns a GPU whose driver reports bytes and errors of links only as sums.
func fullNVLink5() model.GPU {
	g := fullNVIDIA(0)
	for i := range g.Links {
		l := &g.Links[i]
		l.Receive, l.Transmit, l.Errors = model.Optional{}, model.Optional{}, nil
	}
	g.Links = append(g.Links, model.GPULink{
		Kind: model.NVLink, Number: model.AllLinks, Receive: model.Some(1), Transmit: model.Some(2),
		Errors: linkErrors("replay", "recovery", "crc", "malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general",
			"local_link_integrity", "transmit_discard", "link_recovery_successful", "link_recovery_failed", "effective", "symbol"),
	})
	return g
}

// fullAMD returns an accelerator with eight stacks of memory, seven XGMI links, and all blocks of RAS counters.
func fullAMD() model.GPU {
	some := model.Some
	g := amdFacts().GPUs[0]
	g.Temperatures = figures("edge", "junction", "memory", "hbm0", "hbm1", "hbm2", "hbm3", "hbm4", "hbm5", "hbm6", "hbm7")
	g.TemperatureLimits = figures("slowdown", "shutdown")
	g.Clocks, g.MaxClocks = figures("graphics", "memory", "soc", "fabric", "video"), figures("graphics", "memory", "soc", "fabric", "video")
	g.Engines = figures("gfx", "memory", "media", "video", "jpeg_active", "sdma", "cu")
	g.Power, g.PowerLimit, g.Energy = some(1), some(2), some(3)
	g.PCIe.Generation, g.PCIe.MaxGeneration, g.PCIe.Width, g.PCIe.MaxWidth, g.PCIe.Replays = some(5), some(5), some(16), some(16), some(0)
	g.Throttled = figures("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal", "below_host_limit", "below_host_limit_power",
		"below_host_limit_thermal")
	g.Links, g.Errors = nil, nil
	for i := range 7 {
		g.Links = append(g.Links, model.GPULink{Kind: model.XGMI, Number: i, Up: some(1), Receive: some(1), Transmit: some(1)})
	}
	for _, block := range []string{
		"umc", "sdma", "gfx", "mmhub", "athub", "pcie_bif", "hdp", "xgmi_wafl", "df", "smn", "sem", "mp0", "mp1", "fuse", "mca", "vcn", "jpeg",
	} {
		for _, typ := range []string{"corrected", "uncorrected", "deferred"} {
			g.Errors = append(g.Errors, model.GPUErrors{Type: typ, Scope: "volatile", Block: block, Count: 1})
		}
	}
	return g
}

// TestGPUSeries checks the number of series of each kind of GPU, and that GPUDetail adds series.
func TestGPUSeries(t *testing.T) {
	for name, g := range map[string]model.GPU{"NVLink 4": fullNVIDIA(0), "NVLink 5": fullNVLink5(), "AMD": fullAMD()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				count := func(detail bool) (n int, text string) {
					facts := model.Snapshot{GPUs: []model.GPU{g}, GPUProcesses: []model.GPUProcess{}}
					c := newCollector(setup{
						Sources:   []engine.Registration{{Source: &fake{name: string(g.Vendor), facts: facts}}, {Source: names(nil)}},
						GPUDetail: detail, Compat: []string{CompatLens},
					})
					defer c.Close() //nolint:errcheck // nothing to lose
					_, _, text = seriesOf(t, c)
					for series := range seriesIn(text) {
						if strings.Contains(series, `uuid="`+g.UUID+`"`) {
							n++
						}
					}
					return n, text
				}
				few, text := count(false)
				many, detailed := count(true)
				t.Logf("%d series, %d with detail", few, many)
				if few > maxGPUSeries || many < few+20 {
					t.Errorf("%d series, want %d at most; %d with detail\n%s", few, maxGPUSeries, many, text)
				}
				for counter, labels := range map[string]string{
					"gpu_ecc_errors_total": "", "gpu_nvlink_errors_total": `type="replay"`, "gpu_nvlink_receive_bytes_total": "",
					"gpu_xgmi_transmit_bytes_total": "",
				} {
					if got, want := sumOfSeries(text, counter, labels), sumOfSeries(detailed, counter, labels); got != want {
						t.Errorf("%s is %v in all, %v with detail", counter, got, want)
					}
				}
			})
		})
	}
}

// TestUsedGPUMetrics checks that the default has every GPU metric that an alert, a recording rule or a dashboard uses.
func TestUsedGPUMetrics(t *testing.T) {
	used := queriesOf(t)
	for _, m := range table(nil) {
		if m.full && used[m.name] {
			t.Errorf("%s is used, and exported with GPUDetail only", m.name)
		}
	}
	if !used["gpu_nvlink_errors_total"] || !used["gpu_problem"] {
		t.Error("the queries are not found")
	}
}

// TestSumsOfLinks checks that a sum over links does not fall when a link is missing or reset.
func TestSumsOfLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := func(number int, bytes float64) model.GPULink {
			return model.GPULink{Kind: model.NVLink, Number: number, Receive: model.Some(bytes)}
		}
		source := &fake{name: "nvidia"}
		c := newCollector(setup{Sources: []engine.Registration{{Source: source}, {Source: names(nil)}}, Reuse: time.Nanosecond})
		defer c.Close() //nolint:errcheck // nothing to lose
		var got []float64
		for _, links := range [][]model.GPULink{
			{link(0, 10), link(1, 5)},
			{link(0, 12)},
			{link(0, 12), link(1, 6)},
			{link(0, 2), link(1, 6), link(1, 7)},
			nil,
			{link(0, 1), link(1, 2)}, // the driver was reloaded
		} {
			source.facts = model.Snapshot{GPUs: []model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Links: links}}}
			if links == nil {
				source.facts.GPUs = []model.GPU{}
			}
			time.Sleep(time.Second)
			_, _, text := seriesOf(t, c)
			series := seriesIn(text)
			got = append(got, series[`gpu_nvlink_receive_bytes_total{gpu_id="0",link="all",uuid="GPU-0"}`])
			if n := len(slices.DeleteFunc(slices.Collect(maps.Keys(series)), func(s string) bool {
				return !strings.HasPrefix(s, "gpu_nvlink")
			})); n != min(1, len(links)) {
				t.Errorf("%d series of links", n)
			}
		}
		if diff := cmp.Diff([]float64{15, 17, 18, 20, 0, 3}, got); diff != "" {
			t.Errorf("bytes of all links (-want +got):\n%s", diff)
		}
	})
}

// TestCompatibilityWithoutDetail: the compatibility sets have the same series with and without Options.GPUDetail.
func TestCompatibilityWithoutDetail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := func(detail bool) string {
			c := newCollector(setup{Sources: gpuNode(), Compat: CompatSets(), GPUDetail: detail})
			defer c.Close() //nolint:errcheck // nothing to lose
			inSet := map[string]bool{}
			for _, m := range table(nil) {
				inSet[m.name] = inSet[m.name] || m.compat != "" && m.compat != Process
			}
			families, err := c.Gather()
			if err != nil {
				t.Fatal(err)
			}
			families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !inSet[f.GetName()] })
			if len(families) < 20 {
				t.Fatalf("%d families of the sets", len(families))
			}
			return library.Encode(t, families, expfmt.TypeTextPlain)
		}
		if diff := cmp.Diff(shown(true), shown(false)); diff != "" {
			t.Errorf("(-with +without detail):\n%s", diff)
		}
	})
}
