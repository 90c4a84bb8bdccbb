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

// bytesPerMiB and the like are what other exporters count in.
const (
	bytesPerMiB  = 1 << 20
	hertzPerMHz  = 1e6
	bitsPerByte  = 8
	bitsPerMbit  = 1e6
	milliPerUnit = 1e3
	percent      = 100
)

// gpuValue is a metric with one figure for each GPU that tells it.
func gpuValue(name string, typ dto.MetricType, help string, of func(*gpuView) model.Optional) metric {
	return metric{name: name, typ: typ, gpu: true, help: help, emit: func(v *view, b *exposition.Builder) {
		for i := range v.gpus {
			if o := of(&v.gpus[i]); o.Known {
				b.Share(o.Value, v.gpus[i].labels)
			}
		}
	}}
}

// gpuFigures is a metric with several figures for each GPU, told apart by label.
func gpuFigures(name string, typ dto.MetricType, label, help string, of func(*gpuView) []model.Figure) metric {
	return metric{name: name, typ: typ, gpu: true, labels: []string{label}, help: help, emit: func(v *view, b *exposition.Builder) {
		for i := range v.gpus {
			for _, f := range of(&v.gpus[i]) {
				b.Share(f.Value, v.gpus[i].labels, f.Name)
			}
		}
	}}
}

// gpuMetrics are what GPUs do. Of one that is suspended or cannot be read the
// sources tell none of it.
func gpuMetrics() []metric {
	return slices.Concat(
		[]metric{
			gpuValue("gpu_utilization", gauge, "Part of the time in which anything ran on the GPU, in percent (0 to 100): NVML "+
				"utilization rates, AMD gpu_busy_percent. Of a part of a GPU only where the driver tells it.",
				func(g *gpuView) model.Optional { return scaled(g.Utilization, percent) }),
			gpuFigures("gpu_engine_utilization_ratio", gauge, "engine", "Part of the time in which an engine of the GPU worked (0 to 1), "+
				"when its processes were listed last (--gpu.process-interval). Where the processes tell more, as they are not read "+
				"at the same instant, it is their sum, which may exceed 1. NVIDIA's *_active are parts of all cycles, on chips "+
				"with GPU performance monitoring (GPM).",
				func(g *gpuView) []model.Figure { return g.figures.Engines }),
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
		gpuValue("gpu_memory_used_bytes", gauge, "Memory of the GPU that is allocated, in bytes, when its processes were listed last "+
			"(NVML memory info; AMD mem_info_vram_used). Where the processes tell more, it is their sum.",
			func(g *gpuView) model.Optional { return g.figures.Memory }),
		gpuValue("gpu_memory_free_bytes", gauge, "Memory of the GPU that is not allocated, in bytes.",
			func(g *gpuView) model.Optional { return g.Memory.Free }),
		gpuValue("gpu_memory_total_bytes", gauge, "Memory of the GPU, in bytes (NVML memory info; AMD mem_info_vram_total).",
			func(g *gpuView) model.Optional { return g.Memory.Total }),
		gpuValue("gpu_memory_reserved_bytes", gauge, "Memory that the driver and the firmware of the GPU keep for themselves, in bytes. "+
			"Absent with drivers that count it as used.",
			func(g *gpuView) model.Optional { return g.Memory.Reserved }),
		gpuValue("gpu_gtt_used_bytes", gauge, "Memory of the host that the GPU has mapped, in bytes (AMD mem_info_gtt_used).",
			func(g *gpuView) model.Optional { return g.GTT.Used }),
		gpuValue("gpu_gtt_total_bytes", gauge, "Memory of the host that the GPU may map, in bytes (AMD mem_info_gtt_total).",
			func(g *gpuView) model.Optional { return g.GTT.Total }),
	}
}

// gpuBoardMetrics are heat, power and clocks.
func gpuBoardMetrics() []metric {
	return []metric{
		gpuFigures("gpu_temperature_celsius", gauge, "sensor", "Temperature of the GPU by sensor (gpu, memory, edge, junction), in "+
			"degrees Celsius.", func(g *gpuView) []model.Figure { return g.Temperatures }),
		gpuFigures("gpu_temperature_limit_celsius", gauge, "limit", "Temperature in degrees Celsius at which the GPU does what limit "+
			"says: slowdown, shutdown.", func(g *gpuView) []model.Figure { return g.TemperatureLimits }),
		gpuValue("gpu_power_watts", gauge, "Power that the GPU draws with its memory and board, in watts, as far as it measures "+
			"them.", func(g *gpuView) model.Optional { return g.Power }),
		gpuValue("gpu_power_limit_watts", gauge, "Power above which the GPU is slowed down, in watts.",
			func(g *gpuView) model.Optional { return g.PowerLimit }),
		gpuValue("gpu_energy_joules_total", counter, "Energy that the GPU has used since its driver was loaded, in joules.",
			func(g *gpuView) model.Optional { return g.Energy }),
		gpuValue("gpu_fan_speed_ratio", gauge, "Speed of the fan (0 to 1). Absent without one.",
			func(g *gpuView) model.Optional { return g.FanSpeed }),
		gpuValue("gpu_performance_state", gauge, "Performance state: 0 is the fastest (NVIDIA P0).",
			func(g *gpuView) model.Optional { return g.PerformanceState }),
		gpuFigures("gpu_clock_hertz", gauge, "clock", "Frequency of a clock of the GPU now, in hertz.",
			func(g *gpuView) []model.Figure { return g.Clocks }),
		gpuFigures("gpu_clock_max_hertz", gauge, "clock", "Highest frequency of a clock of the GPU, in hertz.",
			func(g *gpuView) []model.Figure { return g.MaxClocks }),
		{
			name: "gpu_throttled", typ: gauge, gpu: true, labels: []string{"reason"},
			help: "Whether the GPU is slowed down for the reason (1) or not (0). Idle is one, too.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					for _, c := range g.Throttles {
						b.Share(truth(c.Active), g.labels, c.Name)
					}
				}
			},
		},
		gpuFigures("gpu_throttled_seconds_total", counter, "reason", "How long the GPU was slowed down for the reason, in seconds.",
			func(g *gpuView) []model.Figure { return g.Throttled }),
	}
}

func gpuPCIeMetrics() []metric {
	pcie := func(name string, typ dto.MetricType, help string, of func(*model.GPUPCIe) model.Optional) metric {
		return gpuValue("gpu_pcie_"+name, typ, help, func(g *gpuView) model.Optional { return of(&g.PCIe) })
	}
	return []metric{
		pcie("link_generation", gauge, "Generation of PCIe that the GPU's link runs at. It falls while the GPU is idle.",
			func(p *model.GPUPCIe) model.Optional { return p.Generation }),
		pcie("link_max_generation", gauge, "Highest generation of PCIe that the GPU in its slot is capable of.",
			func(p *model.GPUPCIe) model.Optional { return p.MaxGeneration }),
		pcie("link_width_lanes", gauge, "Lanes of PCIe that the GPU's link has.",
			func(p *model.GPUPCIe) model.Optional { return p.Width }),
		pcie("link_max_width_lanes", gauge, "Lanes of PCIe that the GPU in its slot is capable of.",
			func(p *model.GPUPCIe) model.Optional { return p.MaxWidth }),
		pcie("replays_total", counter, "Packets that were sent again over PCIe.",
			func(p *model.GPUPCIe) model.Optional { return p.Replays }),
		pcie("receive_bytes_per_second", gauge, "Bytes per second that the GPU received over PCIe in the last sample of its driver.",
			func(p *model.GPUPCIe) model.Optional { return p.Receive }),
		pcie("transmit_bytes_per_second", gauge, "Bytes per second that the GPU sent over PCIe in the last sample of its driver.",
			func(p *model.GPUPCIe) model.Optional { return p.Transmit }),
	}
}

// gpuLinkMetrics are the links between GPUs of one kind.
func gpuLinkMetrics(kind model.LinkKind) []metric {
	const link = "link"
	technology := map[model.LinkKind]string{model.NVLink: "NVLink", model.XGMI: "XGMI"}[kind]
	each := func(do func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder)) func(*view, *exposition.Builder) {
		return func(v *view, b *exposition.Builder) {
			for i := range v.gpus {
				g := &v.gpus[i]
				for j := range g.Links {
					if l := &g.Links[j]; l.Kind == kind {
						do(g, l, strconv.Itoa(l.Number), b)
					}
				}
			}
		}
	}
	figure := func(name string, typ dto.MetricType, help string, of func(*model.GPULink) model.Optional) metric {
		return metric{
			name: "gpu_" + string(kind) + "_" + name, typ: typ, gpu: true, labels: []string{link}, help: help,
			emit: each(func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder) {
				if o := of(l); o.Known {
					b.Share(o.Value, g.labels, number)
				}
			}),
		}
	}
	return []metric{
		figure("up", gauge, "Whether the "+technology+" link is up (1) or not (0).",
			func(l *model.GPULink) model.Optional { return l.Up }),
		figure("receive_bytes_total", counter, "Bytes that the GPU has received over the "+technology+" link.",
			func(l *model.GPULink) model.Optional { return l.Receive }),
		figure("transmit_bytes_total", counter, "Bytes that the GPU has sent over the "+technology+" link.",
			func(l *model.GPULink) model.Optional { return l.Transmit }),
		{
			name: "gpu_" + string(kind) + "_errors_total", typ: counter, gpu: true, labels: []string{link, "type"},
			help: "Errors of the " + technology + " link, by type, under the name that the driver has for them.",
			emit: each(func(g *gpuView, l *model.GPULink, number string, b *exposition.Builder) {
				for _, e := range l.Errors {
					b.Share(float64(e.Value), g.labels, number, e.Name)
				}
			}),
		},
	}
}

// gpuIdentityMetrics are joined with the others by gpu_id and uuid.
func gpuIdentityMetrics() []metric {
	return []metric{
		{
			name: "gpu_info", typ: gauge, gpu: true,
			labels: []string{
				"vendor", "name", "pci_address", "pci_device", "serial", "vbios", "parent_uuid", "profile", "numa_node", "nodes",
			},
			help: "What a GPU is, or a part of one that is used as if it were one (a MIG instance, a partition): parent_uuid is " +
				"then that of its GPU. What the driver does not tell is empty. The value is always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					b.Share(1, g.labels, string(g.Vendor), g.Name, g.PCIAddress, g.PCIDevice, g.Serial, g.VBIOS, g.Parent,
						g.Profile, g.NUMANode, strings.Join(g.Nodes, ","))
				}
			},
		},
		{
			name: "gpu_mode", typ: gauge, gpu: true, labels: []string{"mode", "value"},
			help: "What the GPU is switched to, by mode (mig, compute, persistence, …). The value is always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					for _, mode := range slices.Sorted(maps.Keys(g.Modes)) {
						b.Share(1, g.labels, mode, g.Modes[mode])
					}
				}
			},
		},
		{
			name: "gpu_driver_info", typ: gauge, labels: []string{"vendor", "version", "library", "cuda"},
			help: "Versions of a vendor's GPU driver, of its library (NVML), and the most recent version of CUDA that it " +
				"supports. The value is always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range v.facts.GPUDrivers {
					b.Value(1, string(d.Vendor), d.Version, d.Library, d.CUDA)
				}
			},
		},
	}
}

func scaled(o model.Optional, by float64) model.Optional {
	o.Value *= by
	return o
}

// truth is 1 for true.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
