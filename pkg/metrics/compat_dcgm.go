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

var dcgmNotes = []string{
	"`gpu`, `UUID` and `device` of a MIG instance are those of its GPU.",
	"`container`, `namespace` and `pod` are the container that is allocated the GPU. They are empty if there are several or " +
		"none.",
	"`DCGM_FI_PROF_GR_ENGINE_ACTIVE`: on chips without GPU performance monitoring it is the utilization of the GPU.",
	"`DCGM_FI_PROF_PIPE_TENSOR_ACTIVE` and `DCGM_FI_PROF_DRAM_ACTIVE` are absent on chips without GPU performance monitoring.",
}

// dcgmLabels are the labels of dcgm-exporter. The labels that distinguish series come
// first. dcgm-exporter called the node Hostname before 2026, and hostname since.
var dcgmLabels = []string{
	"gpu", "UUID", "GPU_I_ID", "GPU_I_PROFILE", "pci_bus_id", "device", "modelName", "Hostname", "hostname", "DCGM_FI_DRIVER_VERSION",
	"container", "namespace", "pod",
}

// dcgmGPU is an NVIDIA GPU with the labels of dcgm-exporter.
type dcgmGPU struct {
	*gpuView
	labels *exposition.LabelSet
}

// dcgmMetrics returns the metrics of dcgm-exporter's public dashboard and most of its
// default set, with DCGM's names and units. Its counters are untyped here, because their
// names do not end in _total.
func dcgmMetrics() []metric {
	row := func(name, help string, of func(*gpuView) model.Optional) metric {
		return metric{
			name: "DCGM_FI_" + name, typ: gauge, labels: dcgmLabels, help: help,
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
		total("DEV_PCIE_REPLAY_COUNTER", "PCIe packets that were sent again.",
			func(g *gpuView) model.Optional { return g.PCIe.Replays }),
		row("DEV_GPU_UTIL", "Utilization of the GPU, in percent.",
			func(g *gpuView) model.Optional { return scaled(g.Utilization, percent) }),
		row("DEV_MEM_COPY_UTIL", "Utilization of the memory, in percent.",
			func(g *gpuView) model.Optional { return scaled(engine("memory")(g), percent) }),
		row("DEV_ENC_UTIL", "Utilization of the encoder, in percent.",
			func(g *gpuView) model.Optional { return scaled(engine("encoder")(g), percent) }),
		row("DEV_DEC_UTIL", "Utilization of the decoder, in percent.",
			func(g *gpuView) model.Optional { return scaled(engine("decoder")(g), percent) }),
		row("DEV_XID_ERRORS", "XID that was reported last, 0 for none.", lastXID),
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
		total("DEV_ECC_SBE_AGG_TOTAL", "Corrected errors over the life of the GPU.", ecc("corrected", "aggregate")),
		total("DEV_ECC_DBE_AGG_TOTAL", "Uncorrected errors over the life of the GPU.", ecc("uncorrected", "aggregate")),
		row("PROF_GR_ENGINE_ACTIVE", "Fraction of time in which the graphics or compute engine was active (0 to 1).",
			func(g *gpuView) model.Optional {
				if o := engine("gr_active")(g); o.Known {
					return o
				}
				return g.Utilization
			}),
		row("PROF_PIPE_TENSOR_ACTIVE", "Fraction of time in which the tensor pipes were active (0 to 1).",
			engine("tensor_active")),
		row("PROF_DRAM_ACTIVE", "Fraction of time in which the memory was sending or receiving (0 to 1).",
			engine("dram_active")),
		row("PROF_PCIE_TX_BYTES", "Data sent over PCIe, in bytes per second.",
			func(g *gpuView) model.Optional { return g.PCIe.Transmit }),
		row("PROF_PCIE_RX_BYTES", "Data received over PCIe, in bytes per second.",
			func(g *gpuView) model.Optional { return g.PCIe.Receive }),
	}
}

// dcgm returns the NVIDIA GPUs with their labels, computed once per refresh.
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
	parts := map[string]bool{} // GPUs that have some
	for _, g := range v.gpus {
		whole[g.UUID] = g.GPU
		parts[g.Parent] = true
	}
	given := v.givenTo()
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
		owner := given[g.GPU]
		if parts[g.UUID] { // only the parts report memory, or sums would count it twice
			board, own := *g.GPU, *g
			board.Memory, own.GPU = model.VideoMemory{}, &board
			g = &own
		}
		v.dcgmGPUs = append(v.dcgmGPUs, dcgmGPU{g, b.Labels(b.Schema(dcgmLabels), nil,
			board.ID, board.UUID, instance, g.Profile, busID(board.PCIAddress), nvidiaNode(board.Nodes), board.Name,
			v.node, v.node, version, owner.Container, owner.Namespace, owner.Pod)})
	}
	return v.dcgmGPUs
}

// givenTo returns the owner of each GPU that is allocated, the zero Owner for several.
func (v *view) givenTo() map[*model.GPU]identity.Owner {
	given := map[*model.GPU]identity.Owner{}
	for i := range v.shares.GPUs {
		s := &v.shares.GPUs[i]
		if s.Assigned == nil {
			continue
		}
		owner := v.shares.Owners[s.Owner]
		if _, several := given[s.GPU]; several {
			owner = identity.Owner{}
		}
		given[s.GPU] = owner
	}
	return given
}

// busID formats a PCI address as NVML does: with eight digits of the domain, in
// capitals.
func busID(address string) string {
	if address == "" {
		return ""
	}
	return "0000" + strings.ToUpper(address)
}

// nvidiaNode returns the name of the device node, such as nvidia0.
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
