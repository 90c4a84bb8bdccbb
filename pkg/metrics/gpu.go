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

const (
	bytesPerMiB  = 1 << 20
	hertzPerMHz  = 1e6
	bitsPerByte  = 8
	bitsPerMbit  = 1e6
	milliPerUnit = 1e3
	percent      = 100
)

// gpuValue returns the row of a metric with one value for each GPU that reports the value.
func gpuValue(name string, typ dto.MetricType, help string, of func(*gpuView) model.Optional) metric {
	return metric{name: name, typ: typ, gpu: true, help: help, emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
		known(b, of(g), g.labels)
	})}
}

// gpuFigures returns the row of a metric with several values per GPU, one for each value of the label.
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

// gpuConditions returns the row of a metric with several conditions per GPU, one for each value of the label.
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

// gpuState returns the row of a metric with one state for each GPU with a state.
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
	"A suspended or unreadable GPU has only `gpu_info`. Values that the driver does not report are absent.",
	"`gpu_engine_utilization_ratio`, `gpu_memory_used_bytes`: read every `--gpu.process-interval`; at least the sum over " +
		"processes: a ratio may exceed 1.",
	"`gpu_engine_utilization_ratio`: NVIDIA's `*_active` are fractions of cycles and need GPM (Hopper and newer). AMD's " +
		"`video` and `jpeg_active` are means over engines.",
	"`gpu_memory_used_bytes`, `gpu_memory_total_bytes`: AMD APUs that allocate in host memory add GTT; AMD partitions have the " +
		"size only.",
	"`gpu_memory_reserved_bytes`: absent with drivers that count it as used.",
	"`gpu_temperature_celsius`: `sensor` is `gpu`, `memory`, `edge` or `junction`. `limit` is `slowdown` or `shutdown`. " +
		"Margins are the T.Limit of newer NVIDIA chips, negative above the slowdown temperature.",
	"`gpu_power_watts`: the mean of one second on NVIDIA since Ampere (except GA100); for Intel since the last scrape.",
	"`gpu_throttled`: `idle` is a reason, too. `below_host_limit` (`_power`, `_thermal`): the clock of AMD accelerator " +
		"dies.",
	"`gpu_pcie_*_total`: AMD accelerators. Other GPUs have `gpu_pcie_replays_total` only.",
	"`gpu_xgmi_*`: link errors are in `gpu_ecc_errors_total`, block `xgmi_wafl`, by GPU.",
	"`gpu_pcie_receive_bytes_per_second`, `gpu_pcie_transmit_bytes_per_second`: with GPM the mean of a round " +
		"(`--gpu.process-interval`), otherwise the driver's last sample of 20 ms.",
	"`gpu_nvlink_*`: `link` is `all` if the driver reports only a sum (NVLink 5). NVIDIA link errors, memory errors, remapped " +
		"rows, limits and modes are read every six rounds.",
	"`gpu_pcie_link_generation` falls while the GPU is idle. Generation and lanes are absent for GPUs in, or connected by C2C " +
		"to, a CPU (GB10, GH200, GB200, Thor).",
	"`gpu_info`: `parent_uuid` is the GPU of a MIG instance or partition.",
	"`gpu_mode`: `numa`: GPU memory is a NUMA node (GH200, GB200). `mig_pending`, `ecc_pending`: the next reset changes the " +
		"mode.",
}

func gpuMetrics() []metric {
	return slices.Concat(
		[]metric{
			gpuValue("gpu_utilization", gauge, "Percentage of time with anything running on the GPU (0 to 100).",
				func(g *gpuView) model.Optional { return scaled(g.Utilization, percent) }),
			omitting(gpuFigures("gpu_engine_utilization_ratio", gauge, "engine",
				"Busy fraction of the GPU engine (0 to 1).",
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
		gpuValue("gpu_memory_used_bytes", gauge, "GPU memory allocated.",
			func(g *gpuView) model.Optional { return g.figures.Memory }),
		gpuValue("gpu_memory_free_bytes", gauge, "GPU memory not allocated.",
			func(g *gpuView) model.Optional { return g.Memory.Free }),
		gpuValue("gpu_memory_total_bytes", gauge, "Size of the GPU memory.",
			func(g *gpuView) model.Optional { return g.Memory.Total }),
		full(gpuValue("gpu_memory_reserved_bytes", gauge, "GPU memory reserved by driver and firmware.",
			func(g *gpuView) model.Optional { return g.Memory.Reserved })),
		gpuValue("gpu_gtt_used_bytes", gauge, "Host memory mapped by the GPU.",
			func(g *gpuView) model.Optional { return g.GTT.Used }),
		gpuValue("gpu_gtt_total_bytes", gauge, "Host memory that the GPU may map.",
			func(g *gpuView) model.Optional { return g.GTT.Total }),
	}
}

func gpuBoardMetrics() []metric {
	return []metric{
		gpuFigures("gpu_temperature_celsius", gauge, "sensor", "Temperature of the GPU, by sensor.",
			func(g *gpuView) []model.Figure { return g.Temperatures }),
		full(gpuFigures("gpu_temperature_limit_celsius", gauge, "limit", "Temperature at which the GPU slows down or shuts down.",
			func(g *gpuView) []model.Figure { return g.TemperatureLimits })),
		gpuValue("gpu_temperature_margin_celsius", gauge, "Temperature margin before the GPU is slowed down.",
			func(g *gpuView) model.Optional { return g.TemperatureMargin }),
		full(gpuFigures("gpu_temperature_margin_limit_celsius", gauge, "limit", "Margin at which the GPU slows down or shuts down.",
			func(g *gpuView) []model.Figure { return g.TemperatureMarginLimits })),
		gpuValue("gpu_power_watts", gauge, "Power drawn by the GPU, with memory and board if measured.",
			func(g *gpuView) model.Optional { return g.Power }),
		full(gpuValue("gpu_power_instant_watts", gauge, "Power drawn by the GPU, not averaged.",
			func(g *gpuView) model.Optional { return g.PowerInstant })),
		gpuValue("gpu_power_limit_watts", gauge, "Power limit of the GPU.",
			func(g *gpuView) model.Optional { return g.PowerLimit }),
		gpuValue("gpu_energy_joules_total", counter, "Energy used since the driver was loaded.",
			func(g *gpuView) model.Optional { return g.Energy }),
		gpuValue("gpu_fan_speed_ratio", gauge, "Fan speed (0 to 1).",
			func(g *gpuView) model.Optional { return g.FanSpeed }),
		full(gpuValue("gpu_performance_state", gauge, "Performance state, 0 for the fastest.",
			func(g *gpuView) model.Optional { return g.PerformanceState })),
		omitting(gpuFigures("gpu_clock_hertz", gauge, "clock", "Clock frequency of the GPU.",
			func(g *gpuView) []model.Figure { return g.Clocks }), "video", "soc", "fabric"),
		full(gpuFigures("gpu_clock_max_hertz", gauge, "clock", "Highest clock frequency of the GPU.",
			func(g *gpuView) []model.Figure { return g.MaxClocks })),
		omitting(gpuConditions("gpu_throttled", "reason", "Whether the GPU is slowed down for the reason.",
			func(g *gpuView) []model.GPUCondition { return g.Throttles }), chosenClocks...),
		omitting(gpuFigures("gpu_throttled_seconds_total", counter, "reason", "Time that the GPU was slowed down, by reason.",
			func(g *gpuView) []model.Figure { return g.Throttled }), "sync_boost", "low_utilization", "reliability"),
	}
}

func gpuPCIeMetrics() []metric {
	pcie := func(name string, typ dto.MetricType, help string, of func(*model.GPUPCIe) model.Optional) metric {
		return gpuValue("gpu_pcie_"+name, typ, help, func(g *gpuView) model.Optional { return of(&g.PCIe) })
	}
	return []metric{
		pcie("link_generation", gauge, "Current PCIe generation of the GPU's link.",
			func(p *model.GPUPCIe) model.Optional { return p.Generation }),
		pcie("link_max_generation", gauge, "Highest PCIe generation of GPU and slot.",
			func(p *model.GPUPCIe) model.Optional { return p.MaxGeneration }),
		pcie("link_width_lanes", gauge, "PCIe lanes of the GPU's link.",
			func(p *model.GPUPCIe) model.Optional { return p.Width }),
		pcie("link_max_width_lanes", gauge, "PCIe lanes of GPU and slot.",
			func(p *model.GPUPCIe) model.Optional { return p.MaxWidth }),
		pcie("replays_total", counter, "PCIe packets sent again.",
			func(p *model.GPUPCIe) model.Optional { return p.Replays }),
		full(pcie("replay_rollovers_total", counter, "Replay overflows, after which the PCIe link is trained again.",
			func(p *model.GPUPCIe) model.Optional { return p.ReplayRollovers })),
		full(pcie("recoveries_total", counter, "Retrainings of the PCIe link.",
			func(p *model.GPUPCIe) model.Optional { return p.Recoveries })),
		full(pcie("naks_sent_total", counter, "Damaged PCIe packets that the GPU refused.",
			func(p *model.GPUPCIe) model.Optional { return p.NAKsSent })),
		full(pcie("naks_received_total", counter, "PCIe packets that the other end refused.",
			func(p *model.GPUPCIe) model.Optional { return p.NAKsReceived })),
		pcie("receive_bytes_per_second", gauge, "Bytes per second received over PCIe.",
			func(p *model.GPUPCIe) model.Optional { return p.Receive }),
		pcie("transmit_bytes_per_second", gauge, "Bytes per second sent over PCIe.",
			func(p *model.GPUPCIe) model.Optional { return p.Transmit }),
	}
}

// gpuLinkMetrics returns the metrics of one kind of link between GPUs.
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
		full(linkValue("up", gauge, "Whether the "+technology+" link is up.",
			func(l *model.GPULink) model.Optional { return l.Up })),
		linkValue("receive_bytes_total", counter, "Bytes received over the "+technology+" link.",
			func(l *model.GPULink) model.Optional { return l.Receive }),
		linkValue("transmit_bytes_total", counter, "Bytes sent over the "+technology+" link.",
			func(l *model.GPULink) model.Optional { return l.Transmit }),
	}
	if kind == model.XGMI { // gpu_ecc_errors_total has the errors of XGMI, by GPU
		return metrics
	}
	return append(metrics, metric{
		name: "gpu_" + string(kind) + "_errors_total", typ: counter, gpu: true, labels: []string{link, "type"}, sum: link,
		omit: rareLinkErrors,
		help: "Errors of the " + technology + " link, by the driver's name.",
		emit: eachLink(func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder) {
			for _, e := range l.Errors {
				b.Share(float64(e.Value), g.labels, number, e.Name)
			}
		}),
	})
}

func linkNumber(l *model.GPULink) string {
	if l.Number == model.AllLinks {
		return "all"
	}
	return strconv.Itoa(l.Number)
}

// gpuIdentityMetrics returns the metrics that describe GPUs, joined by gpu_id and uuid.
func gpuIdentityMetrics() []metric {
	return []metric{
		{
			name: "gpu_info", typ: gauge, gpu: true,
			labels: []string{
				"vendor", "name", "pci_address", "pci_device", "serial", "vbios", "parent_uuid", "profile", "numa_node", "nodes",
			},
			help: "Vendor, model, serial number, PCI address and NUMA node of the GPU or partition.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				b.Share(1, g.labels, string(g.Vendor), g.Name, g.PCIAddress, g.PCIDevice, g.Serial, g.VBIOS, g.Parent,
					g.Profile, g.NUMANode, strings.Join(g.Nodes, ","))
			}),
		},
		{
			name: "gpu_mode", typ: gauge, gpu: true, labels: []string{"mode", "value"},
			omit: []string{"compute", "ecc", "mps", "persistence"},
			help: "Setting of a GPU mode, always 1.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				for _, mode := range slices.Sorted(maps.Keys(g.Modes)) {
					b.Share(1, g.labels, mode, g.Modes[mode])
				}
			}),
		},
		{
			name: "gpu_driver_info", typ: gauge, labels: []string{"vendor", "version", "library", "cuda"},
			help: "Versions of GPU driver, library and supported CUDA.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range v.facts.GPUDrivers {
					b.Value(1, string(d.Vendor), d.Version, d.Library, d.CUDA)
				}
			},
		},
	}
}

// scaled returns a value in another unit, rounded: 7 %, not 7.000000000000001 %.
func scaled(o model.Optional, by float64) model.Optional {
	o.Value = model.Round(o.Value * by)
	return o
}
