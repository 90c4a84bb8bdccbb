// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// dcgmLabels are those of dcgm-exporter, the ones that tell series apart first; it
// called the node Hostname before 2026, and hostname since. Of
// a MIG instance gpu, UUID and device are those of its GPU. The workload is the one
// that was given the GPU, empty if there are several or none.
var dcgmLabels = []string{
	"gpu", "UUID", "GPU_I_ID", "GPU_I_PROFILE", "pci_bus_id", "device", "modelName", "Hostname", "hostname", "DCGM_FI_DRIVER_VERSION",
	"container", "namespace", "pod",
}

// dcgmGPU is an NVIDIA GPU as dcgm-exporter calls it.
type dcgmGPU struct {
	*gpuView
	labels *exposition.LabelSet
}

// dcgmMetrics are the metrics of dcgm-exporter's public dashboard and most of its
// default set, under DCGM's names and in its units. Its counters have names that no
// counter may have here: they are untyped.
func dcgmMetrics() []metric {
	row := func(name, help string, of func(*gpuView) model.Optional) metric {
		return metric{
			name: "DCGM_FI_" + name, typ: gauge, compat: CompatDCGM, labels: dcgmLabels, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.dcgm(b) {
					if o := of(g.gpuView); o.Known {
						b.Add(g.labels, o.Value)
					}
				}
			},
		}
	}
	total := func(name, help string, of func(*gpuView) model.Optional) metric {
		m := row(name, help, of)
		m.typ = untyped
		return m
	}
	engine := func(name string) func(*gpuView) model.Optional {
		return func(g *gpuView) model.Optional { return named(g.Engines, name) } // the driver's own
	}
	mib := func(o model.Optional) model.Optional { return scaled(o, 1.0/bytesPerMiB) }
	return []metric{
		row("DEV_SM_CLOCK", "SM clock frequency, in MHz.",
			func(g *gpuView) model.Optional { return scaled(named(g.Clocks, "sm"), 1/hertzPerMHz) }),
		row("DEV_MEM_CLOCK", "Memory clock frequency, in MHz.",
			func(g *gpuView) model.Optional { return scaled(named(g.Clocks, "memory"), 1/hertzPerMHz) }),
		row("DEV_GPU_TEMP", "Temperature of the GPU, in degrees Celsius.",
			func(g *gpuView) model.Optional { return named(g.Temperatures, "gpu") }),
		row("DEV_MEMORY_TEMP", "Temperature of the memory, in degrees Celsius.",
			func(g *gpuView) model.Optional { return named(g.Temperatures, "memory") }),
		row("DEV_POWER_USAGE", "Power draw, in watts.", func(g *gpuView) model.Optional { return g.Power }),
		total("DEV_TOTAL_ENERGY_CONSUMPTION", "Energy used since the driver was loaded, in millijoules.",
			func(g *gpuView) model.Optional { return scaled(g.Energy, milliPerUnit) }),
		total("DEV_PCIE_REPLAY_COUNTER", "Packets that were sent again over PCIe.",
			func(g *gpuView) model.Optional { return g.PCIe.Replays }),
		row("DEV_GPU_UTIL", "Utilization of the GPU, in percent.",
			func(g *gpuView) model.Optional { return scaled(g.Utilization, percent) }),
		row("DEV_MEM_COPY_UTIL", "Utilization of the memory, in percent.",
			func(g *gpuView) model.Optional { return scaled(engine("memory")(g), percent) }),
		row("DEV_ENC_UTIL", "Utilization of the encoder, in percent.",
			func(g *gpuView) model.Optional { return scaled(engine("encoder")(g), percent) }),
		row("DEV_DEC_UTIL", "Utilization of the decoder, in percent.",
			func(g *gpuView) model.Optional { return scaled(engine("decoder")(g), percent) }),
		row("DEV_XID_ERRORS", "The XID that was reported last, 0 for none.", lastXID),
		row("DEV_FB_FREE", "Memory that is free, in MiB.",
			func(g *gpuView) model.Optional { return mib(g.Memory.Free) }),
		row("DEV_FB_USED", "Memory that is used, in MiB.",
			func(g *gpuView) model.Optional { return mib(g.Memory.Used) }),
		row("DEV_FB_RESERVED", "Memory that is reserved, in MiB.",
			func(g *gpuView) model.Optional { return mib(g.Memory.Reserved) }),
		total("DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.",
			func(g *gpuView) model.Optional { return named(g.RemappedRows, "uncorrectable") }),
		total("DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.",
			func(g *gpuView) model.Optional { return named(g.RemappedRows, "correctable") }),
		row("DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed (1) or not (0).", remapFailure),
		total("DEV_ECC_SBE_VOL_TOTAL", "Corrected errors since the driver was loaded.", ecc("corrected", "volatile")),
		total("DEV_ECC_DBE_VOL_TOTAL", "Uncorrected errors since the driver was loaded.", ecc("uncorrected", "volatile")),
		total("DEV_ECC_SBE_AGG_TOTAL", "Corrected errors ever.", ecc("corrected", "aggregate")),
		total("DEV_ECC_DBE_AGG_TOTAL", "Uncorrected errors ever.", ecc("uncorrected", "aggregate")),
		row("PROF_GR_ENGINE_ACTIVE", "Part of the time in which the graphics or compute engine was active (0 to 1). On chips without "+
			"GPU performance monitoring the utilization, which is nearly that.",
			func(g *gpuView) model.Optional {
				if o := engine("gr_active")(g); o.Known {
					return o
				}
				return g.Utilization
			}),
		row("PROF_PIPE_TENSOR_ACTIVE", "Part of the time in which the tensor pipes were active (0 to 1). Absent on chips without GPU "+
			"performance monitoring.", engine("tensor_active")),
		row("PROF_DRAM_ACTIVE", "Part of the time in which the memory was sending or receiving (0 to 1). Absent on chips without GPU "+
			"performance monitoring.", engine("dram_active")),
		row("PROF_PCIE_TX_BYTES", "Bytes per second sent over PCIe.",
			func(g *gpuView) model.Optional { return g.PCIe.Transmit }),
		row("PROF_PCIE_RX_BYTES", "Bytes per second received over PCIe.",
			func(g *gpuView) model.Optional { return g.PCIe.Receive }),
	}
}

// dcgm are the NVIDIA GPUs with their labels, made once for all of a refresh.
func (v *view) dcgm(b *exposition.Builder) []dcgmGPU {
	if v.dcgmGPUs != nil {
		return v.dcgmGPUs
	}
	v.dcgmGPUs = make([]dcgmGPU, 0, len(v.gpus))
	version := ""
	for _, d := range v.facts.GPUDrivers {
		if d.Vendor == model.NVIDIA {
			version = d.Version
		}
	}
	whole := make(map[string]*model.GPU, len(v.gpus))
	for _, g := range v.gpus {
		whole[g.UUID] = g.GPU
	}
	given := v.givenTo()
	parts := map[string]bool{} // GPUs that have some
	for _, g := range v.gpus {
		parts[g.Parent] = true
	}
	for i := range v.gpus {
		g := &v.gpus[i]
		if g.Vendor != model.NVIDIA || unreadable(g.GPU) {
			continue
		}
		board, instance := whole[g.Parent], ""
		if board == nil {
			board = g.GPU
		} else {
			_, instance, _ = strings.Cut(g.ID, ":")
			instance = cmp.Or(g.Instance, instance)
		}
		who := given[g.GPU]
		if parts[g.UUID] { // its memory is told of its parts alone, or sums would have it twice
			board, own := *g.GPU, *g
			board.Memory, own.GPU = model.VideoMemory{}, &board
			g = &own
		}
		v.dcgmGPUs = append(v.dcgmGPUs, dcgmGPU{g, b.Labels(b.Schema(dcgmLabels), nil,
			board.ID, board.UUID, instance, g.Profile, busID(board.PCIAddress), nvidiaNode(board.Nodes), board.Name,
			v.node, v.node, version, who.Container, who.Namespace, who.Pod)})
	}
	return v.dcgmGPUs
}

// givenTo is to whom alone GPUs were given.
func (v *view) givenTo() map[*model.GPU]identity.Owner {
	given := map[*model.GPU]identity.Owner{}
	several := map[*model.GPU]bool{}
	for i := range v.shares.GPUs {
		s := &v.shares.GPUs[i]
		if !s.Allocated || several[s.GPU] {
			continue
		}
		if _, ok := given[s.GPU]; ok {
			several[s.GPU] = true
			delete(given, s.GPU)
			continue
		}
		given[s.GPU] = v.shares.Owners[s.Owner]
	}
	return given
}

// busID is a PCI address as NVML writes it: with eight digits of the domain, and
// in capitals.
func busID(address string) string {
	if address == "" {
		return ""
	}
	return "0000" + strings.ToUpper(address)
}

// nvidiaNode is the name of the device node, nvidia0.
func nvidiaNode(nodes []string) string {
	for _, node := range nodes {
		if name := strings.TrimPrefix(node, "/dev/"); strings.HasPrefix(name, "nvidia") && !strings.Contains(name, "/") {
			return name
		}
	}
	return ""
}

func named(figures []model.Figure, name string) model.Optional {
	for _, f := range figures {
		if f.Name == name {
			return model.Some(f.Value)
		}
	}
	return model.Optional{}
}

func lastXID(g *gpuView) model.Optional {
	var last time.Time
	code := uint64(0)
	for _, x := range g.XIDs {
		if x.Count > 0 && !x.Last.Before(last) {
			last, code = x.Last, x.Code
		}
	}
	return model.Optional{Value: float64(code), Known: g.XIDs != nil}
}

func remapFailure(g *gpuView) model.Optional {
	for _, p := range g.Problems {
		if p.Name == model.ProblemRemapFailure {
			return model.Some(truth(p.Active))
		}
	}
	return model.Optional{}
}

// ecc sums the errors of all blocks, unless the driver does.
func ecc(typ, scope string) func(*gpuView) model.Optional {
	return func(g *gpuView) (sum model.Optional) {
		for _, e := range g.Errors {
			switch {
			case e.Type != typ || e.Scope != scope:
			case e.Block == "all":
				return model.Some(float64(e.Count))
			default:
				sum = model.Some(sum.Value + float64(e.Count))
			}
		}
		return sum
	}
}
