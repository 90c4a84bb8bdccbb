// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// Units of other exporters and of the kernel.
const (
	bytesPerMiB  = 1 << 20
	hertzPerMHz  = 1e6
	bitsPerByte  = 8
	bitsPerMbit  = 1e6
	milliPerUnit = 1e3
	percent      = 100
)

// gpuValue returns the row of a metric with one value per GPU. GPUs that do not report the value are left out.
func gpuValue(name string, typ dto.MetricType, help string, of func(*gpuView) model.Optional) metric {
	return metric{name: name, typ: typ, gpu: true, help: help, emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
		known(b, of(g), g.labels)
	})}
}

// gpuFigures returns the row of a metric with several values per GPU, distinguished by label.
func gpuFigures(name string, typ dto.MetricType, label, help string, of func(*gpuView) []model.Figure) metric {
	return metric{
		name: name, typ: typ, gpu: true, labels: []string{label}, help: help,
		emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
			for _, f := range of(g) {
				b.Share(f.Value, g.labels, f.Name)
			}
		}),
	}
}

// gpuConditions returns the row of a metric with several conditions per GPU, distinguished by label.
func gpuConditions(name, label, help string, of func(*gpuView) []model.GPUCondition) metric {
	return metric{
		name: name, typ: gauge, gpu: true, labels: []string{label}, help: help,
		emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
			for _, c := range of(g) {
				b.Share(truth(c.Active), g.labels, c.Name)
			}
		}),
	}
}

// gpuState returns the row of a metric with a state per GPU. GPUs without a state are left out.
func gpuState(name, label string, states []string, help string, of func(*gpuView) string) metric {
	return metric{
		name: name, typ: gauge, gpu: true, labels: []string{label}, help: help,
		emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
			if now := of(g); now != "" {
				b.StateSet(g.labels, now, states)
			}
		}),
	}
}

var gpuNotes = []string{
	"A GPU that is suspended or cannot be read has only `gpu_info`. Values that the driver does not report are absent or, in " +
		"labels, empty.",
	"`gpu_utilization`: NVML utilization rates, AMD file gpu_busy_percent; Intel's drivers do not report it. For " +
		"a part of a GPU it is present only where the driver reports it.",
	"`gpu_engine_utilization_ratio` and `gpu_memory_used_bytes` are read when the processes of the GPU are listed " +
		"(`--gpu.process-interval`). Where the sum over the processes is larger than the value of the GPU, because the two are " +
		"not read at the same instant, the sum is reported; the ratio may then exceed 1.",
	"`gpu_engine_utilization_ratio`: the NVIDIA engines `*_active` are fractions of all cycles and need a chip with GPU " +
		"performance monitoring (GPM). AMD: `video` and `jpeg_active` are means over the engines of an accelerator.",
	"`gpu_memory_used_bytes`, `gpu_memory_total_bytes`: NVML memory info; AMD files mem_info_vram_used and mem_info_vram_total, of " +
		"APUs that allocate in host memory both these and those of GTT, of partitions KFD's banks (the size only).",
	"`gpu_memory_reserved_bytes` is absent with drivers that count reserved memory as used.",
	"`gpu_gtt_used_bytes`, `gpu_gtt_total_bytes`: AMD files mem_info_gtt_used and mem_info_gtt_total.",
	"`gpu_temperature_celsius`: `sensor` is `gpu`, `memory`, `edge` or `junction`. `gpu_temperature_limit_celsius`: `limit` is " +
		"`slowdown` or `shutdown`.",
	"`gpu_temperature_margin_celsius`, `gpu_temperature_margin_limit_celsius`: the T.Limit temperatures of newer NVIDIA chips. A " +
		"negative margin is a temperature above that at which the GPU is slowed down.",
	"`gpu_power_watts`: of NVIDIA's chips since Ampere (except GA100) the mean of one second; " +
		"`gpu_power_instant_watts` is without a mean. For Intel the energy since the last scrape, divided by the time.",
	"`gpu_fan_speed_ratio` is absent for a GPU without a fan.",
	"`gpu_performance_state`: NVIDIA P0 is 0.",
	"`gpu_throttled`: `idle` is one of the reasons. `below_host_limit`, with the parts `_power` and `_thermal`: the clock of a " +
		"compute die of an AMD accelerator was below the limit that the host set, the mean over its dies.",
	"`gpu_pcie_*_total`: of AMD accelerators; NVIDIA's GPUs and other GPUs of AMD have `gpu_pcie_replays_total` only.",
	"`gpu_xgmi_*`: errors of the links are in `gpu_ecc_errors_total`, with the block `xgmi_wafl`. The driver counts them by GPU, and " +
		"reading its count by link clears it.",
	"`gpu_pcie_receive_bytes_per_second`, `gpu_pcie_transmit_bytes_per_second`: the mean since the previous round " +
		"(`--gpu.process-interval`) on NVIDIA chips with GPM (Hopper and newer); otherwise of the driver's last sample, of 20 ms.",
	"`gpu_nvlink_*`: `link` is `all` for what the driver reports only as a sum over the links (NVLink 5). Errors of links, memory " +
		"errors, remapped rows, limits and modes of NVIDIA GPUs are read every six rounds.",
	"`gpu_pcie_link_generation` falls while the GPU is idle. Generation and lanes are absent for GPUs that are part of a CPU, or " +
		"connected with it by C2C (GB10, GH200, GB200, Thor): NVML has placeholders for them.",
	"`gpu_info` also describes a part of a GPU that is used like a GPU (a MIG instance, a partition). `parent_uuid` is then " +
		"the UUID of its GPU.",
	"`gpu_mode`: `mode` is `mig`, `compute`, `persistence` and others, `value` its setting. `numa` is `enabled` if the memory of the " +
		"GPU is a NUMA node of the kernel (GH200, GB200). `mig_pending` and `ecc_pending` are there while the next reset of the GPU is " +
		"to change the mode.",
	"`gpu_driver_info`: `library` is the version of NVML, `cuda` the most recent version of CUDA that the driver supports.",
}

// gpuMetrics returns the utilization, memory, board and link metrics of GPUs.
func gpuMetrics() []metric {
	return slices.Concat(
		[]metric{
			gpuValue("gpu_utilization", gauge, "Fraction of time in which anything ran on the GPU, in percent (0 to 100).",
				func(g *gpuView) model.Optional { return scaled(g.Utilization, percent) }),
			omitting(gpuFigures("gpu_engine_utilization_ratio", gauge, "engine",
				"Fraction of time in which the engine of the GPU was busy (0 to 1).",
				func(g *gpuView) []model.Figure { return g.figures.Engines }), detailedEngines()...),
		},
		gpuMemoryMetrics(),
		gpuBoardMetrics(),
		gpuPCIeMetrics(),
		gpuLinkMetrics(model.NVLink),
		gpuLinkMetrics(model.XGMI),
		gpuIdentityMetrics(),
	)
}

func gpuMemoryMetrics() []metric {
	return []metric{
		gpuValue("gpu_memory_used_bytes", gauge, "GPU memory that is allocated.",
			func(g *gpuView) model.Optional { return g.figures.Memory }),
		gpuValue("gpu_memory_free_bytes", gauge, "GPU memory that is not allocated.",
			func(g *gpuView) model.Optional { return g.Memory.Free }),
		gpuValue("gpu_memory_total_bytes", gauge, "Size of the GPU memory.",
			func(g *gpuView) model.Optional { return g.Memory.Total }),
		full(gpuValue("gpu_memory_reserved_bytes", gauge, "GPU memory that the driver and the firmware reserve.",
			func(g *gpuView) model.Optional { return g.Memory.Reserved })),
		gpuValue("gpu_gtt_used_bytes", gauge, "Host memory that the GPU has mapped.",
			func(g *gpuView) model.Optional { return g.GTT.Used }),
		gpuValue("gpu_gtt_total_bytes", gauge, "Host memory that the GPU may map.",
			func(g *gpuView) model.Optional { return g.GTT.Total }),
	}
}

// gpuBoardMetrics returns the metrics of temperature, power and clocks.
func gpuBoardMetrics() []metric {
	return []metric{
		gpuFigures("gpu_temperature_celsius", gauge, "sensor", "Temperature of the GPU, by sensor.",
			func(g *gpuView) []model.Figure { return g.Temperatures }),
		full(gpuFigures("gpu_temperature_limit_celsius", gauge, "limit", "Temperature at which the GPU slows down or shuts down.",
			func(g *gpuView) []model.Figure { return g.TemperatureLimits })),
		gpuValue("gpu_temperature_margin_celsius", gauge, "How much warmer the GPU may become until it is slowed down.",
			func(g *gpuView) model.Optional { return g.TemperatureMargin }),
		full(gpuFigures("gpu_temperature_margin_limit_celsius", gauge, "limit", "Margin at which the GPU slows down or shuts down.",
			func(g *gpuView) []model.Figure { return g.TemperatureMarginLimits })),
		gpuValue("gpu_power_watts", gauge, "Power that the GPU draws, including memory and board where it measures them.",
			func(g *gpuView) model.Optional { return g.Power }),
		full(gpuValue("gpu_power_instant_watts", gauge, "Power that the GPU draws at the moment, without a mean over time.",
			func(g *gpuView) model.Optional { return g.PowerInstant })),
		gpuValue("gpu_power_limit_watts", gauge, "Power above which the GPU is slowed down.",
			func(g *gpuView) model.Optional { return g.PowerLimit }),
		gpuValue("gpu_energy_joules_total", counter, "Energy that the GPU has used since its driver was loaded.",
			func(g *gpuView) model.Optional { return g.Energy }),
		gpuValue("gpu_fan_speed_ratio", gauge, "Speed of the GPU's fan (0 to 1).",
			func(g *gpuView) model.Optional { return g.FanSpeed }),
		full(gpuValue("gpu_performance_state", gauge, "Performance state of the GPU, 0 for the fastest.",
			func(g *gpuView) model.Optional { return g.PerformanceState })),
		omitting(gpuFigures("gpu_clock_hertz", gauge, "clock", "Current frequency of the GPU's clock.",
			func(g *gpuView) []model.Figure { return g.Clocks }), "video", "soc", "fabric"),
		full(gpuFigures("gpu_clock_max_hertz", gauge, "clock", "Highest frequency of the GPU's clock.",
			func(g *gpuView) []model.Figure { return g.MaxClocks })),
		omitting(gpuConditions("gpu_throttled", "reason", "Whether the GPU is slowed down for the reason (1) or not (0).",
			func(g *gpuView) []model.GPUCondition { return g.Throttles }), chosenClocks...),
		omitting(gpuFigures("gpu_throttled_seconds_total", counter, "reason", "Time during which the GPU was slowed down, by reason.",
			func(g *gpuView) []model.Figure { return g.Throttled }), "sync_boost", "low_utilization", "reliability"),
	}
}

func gpuPCIeMetrics() []metric {
	pcie := func(name string, typ dto.MetricType, help string, of func(*model.GPUPCIe) model.Optional) metric {
		return gpuValue("gpu_pcie_"+name, typ, help, func(g *gpuView) model.Optional { return of(&g.PCIe) })
	}
	return []metric{
		pcie("link_generation", gauge, "PCIe generation at which the GPU's link runs.",
			func(p *model.GPUPCIe) model.Optional { return p.Generation }),
		pcie("link_max_generation", gauge, "Highest PCIe generation that the GPU supports in its slot.",
			func(p *model.GPUPCIe) model.Optional { return p.MaxGeneration }),
		pcie("link_width_lanes", gauge, "PCIe lanes that the GPU's link uses.",
			func(p *model.GPUPCIe) model.Optional { return p.Width }),
		pcie("link_max_width_lanes", gauge, "PCIe lanes that the GPU supports in its slot.",
			func(p *model.GPUPCIe) model.Optional { return p.MaxWidth }),
		pcie("replays_total", counter, "PCIe packets that were sent again.",
			func(p *model.GPUPCIe) model.Optional { return p.Replays }),
		full(pcie("replay_rollovers_total", counter, "Overflows of the PCIe link's number of replays, after which it is trained again.",
			func(p *model.GPUPCIe) model.Optional { return p.ReplayRollovers })),
		full(pcie("recoveries_total", counter, "Times that the PCIe link left its normal state to be trained again.",
			func(p *model.GPUPCIe) model.Optional { return p.Recoveries })),
		full(pcie("naks_sent_total", counter, "PCIe packets that the GPU received damaged and refused.",
			func(p *model.GPUPCIe) model.Optional { return p.NAKsSent })),
		full(pcie("naks_received_total", counter, "PCIe packets of the GPU that the other end refused.",
			func(p *model.GPUPCIe) model.Optional { return p.NAKsReceived })),
		pcie("receive_bytes_per_second", gauge, "Bytes per second that the GPU received over PCIe.",
			func(p *model.GPUPCIe) model.Optional { return p.Receive }),
		pcie("transmit_bytes_per_second", gauge, "Bytes per second that the GPU sent over PCIe.",
			func(p *model.GPUPCIe) model.Optional { return p.Transmit }),
	}
}

// gpuLinkMetrics returns the metrics of links between GPUs, for one kind of link.
func gpuLinkMetrics(kind model.LinkKind) []metric {
	const link = "link"
	technology := map[model.LinkKind]string{model.NVLink: "NVLink", model.XGMI: "XGMI"}[kind]
	eachLink := func(do func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder)) func(*view, *exposition.Builder) {
		return each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
			for j := range g.Links {
				if l := &g.Links[j]; l.Kind == kind {
					do(g, l, linkNumber(l), b)
				}
			}
		})
	}
	linkValue := func(name string, typ dto.MetricType, help string, of func(*model.GPULink) model.Optional) metric {
		return metric{
			name: "gpu_" + string(kind) + "_" + name, typ: typ, gpu: true, labels: []string{link}, help: help, sum: addedUp(typ, link),
			emit: eachLink(func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder) {
				known(b, of(l), g.labels, number)
			}),
		}
	}
	metrics := []metric{
		full(linkValue("up", gauge, "Whether the "+technology+" link is up (1) or not (0).",
			func(l *model.GPULink) model.Optional { return l.Up })),
		linkValue("receive_bytes_total", counter, "Bytes that the GPU has received over the "+technology+" link.",
			func(l *model.GPULink) model.Optional { return l.Receive }),
		linkValue("transmit_bytes_total", counter, "Bytes that the GPU has sent over the "+technology+" link.",
			func(l *model.GPULink) model.Optional { return l.Transmit }),
	}
	if kind == model.XGMI { // its errors are in gpu_ecc_errors_total, by GPU
		return metrics
	}
	return append(metrics, metric{
		name: "gpu_" + string(kind) + "_errors_total", typ: counter, gpu: true, labels: []string{link, "type"}, sum: link,
		omit: rareLinkErrors,
		help: "Errors of the " + technology + " link, by the driver's name of the error.",
		emit: eachLink(func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder) {
			for _, e := range l.Errors {
				b.Share(float64(e.Value), g.labels, number, e.Name)
			}
		}),
	})
}

// linkNumber returns the label of a link.
func linkNumber(l *model.GPULink) string {
	if l.Number == model.AllLinks {
		return "all"
	}
	return strconv.Itoa(l.Number)
}

// gpuIdentityMetrics returns the metrics that describe GPUs. They are joined with the others by gpu_id and uuid.
func gpuIdentityMetrics() []metric {
	return []metric{
		{
			name: "gpu_info", typ: gauge, gpu: true,
			labels: []string{
				"vendor", "name", "pci_address", "pci_device", "serial", "vbios", "parent_uuid", "profile", "numa_node", "nodes",
			},
			help: "Vendor, model, serial number, PCI address and NUMA node of the GPU or GPU partition, always 1.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				b.Share(1, g.labels, string(g.Vendor), g.Name, g.PCIAddress, g.PCIDevice, g.Serial, g.VBIOS, g.Parent,
					g.Profile, g.NUMANode, strings.Join(g.Nodes, ","))
			}),
		},
		{
			name: "gpu_mode", typ: gauge, gpu: true, labels: []string{"mode", "value"},
			omit: []string{"compute", "ecc", "mps", "persistence"},
			help: "Setting of the GPU's mode, always 1.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				for _, mode := range slices.Sorted(maps.Keys(g.Modes)) {
					b.Share(1, g.labels, mode, g.Modes[mode])
				}
			}),
		},
		{
			name: "gpu_driver_info", typ: gauge, labels: []string{"vendor", "version", "library", "cuda"},
			help: "Versions of the vendor's GPU driver and library, and the supported version of CUDA, always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range v.facts.GPUDrivers {
					b.Value(1, string(d.Vendor), d.Version, d.Library, d.CUDA)
				}
			},
		},
	}
}

// scaled returns a value in another unit, without what the multiplication leaves: 7 %, not 7.000000000000001 %.
func scaled(o model.Optional, by float64) model.Optional {
	o.Value = model.Round(o.Value * by)
	return o
}
