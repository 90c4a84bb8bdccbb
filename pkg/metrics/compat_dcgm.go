// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var dcgmNotes = []string{
	"[GPUs](../docs/gpus.md#names-of-dcgm-exporter) compares with dcgm-exporter, name by name, and says what needs GPM.",
	"Sum [shared GPUs](../docs/gpus.md#shared-gpus) over `max by (UUID, GPU_I_ID)`.",
}

// dcgmLabels are dcgm-exporter's labels, the labels that distinguish series first. The node is Hostname before 2026,
// hostname since.
var dcgmLabels = []string{
	"gpu", "UUID", "GPU_I_ID", "GPU_I_PROFILE", "pci_bus_id", "device", "modelName", "Hostname", "hostname", "DCGM_FI_DRIVER_VERSION",
	"container", "namespace", "pod",
}

// dcgmXIDLabels are the labels of the last XID.
var dcgmXIDLabels = slices.Concat(dcgmLabels, []string{"err_code", "err_msg"})

// dcgmValue returns the row of a value of each GPU. A shared GPU's value is repeated for each workload.
func dcgmValue(name string, typ dto.MetricType, help string, of func(*gpuView) model.Optional) metric {
	return metric{
		name: "DCGM_FI_" + name, typ: typ, labels: dcgmLabels, help: help,
		emit: func(v *view, b *exposition.Builder) {
			for _, g := range v.dcgm(b) {
				if o := of(g.gpuView); o.Known {
					for _, w := range g.workloads {
						b.Add(w.labels, o.Value)
					}
				}
			}
		},
	}
}

// dcgmShared returns the row of a value that also exists by workload.
func dcgmShared(name, help string, of func(*gpuView) model.Optional, ofWorkload func(*dcgmWorkload) model.Optional) metric {
	m := dcgmValue(name, gauge, help, of)
	m.emit = func(v *view, b *exposition.Builder) {
		for _, g := range v.dcgm(b) {
			labels := g.workloads[0].labels
			if len(g.workloads) > 1 {
				labels = g.alone
			}
			if o := of(g.gpuView); o.Known {
				b.Add(labels, o.Value)
			}
			for i := range g.workloads {
				if o := ofWorkload(&g.workloads[i]); o.Known && len(g.workloads) > 1 {
					b.Add(g.workloads[i].labels, o.Value)
				}
			}
		}
	}
	return m
}

// dcgmMetrics returns the metrics of dcgm-exporter's lists and other fields of DCGM, with DCGM's names and units.
// Counters are untyped, because DCGM's names do not end in _total.
func dcgmMetrics() []metric {
	return slices.Concat(dcgmBoardMetrics(), dcgmMemoryMetrics(), dcgmErrorMetrics(), dcgmLinkMetrics(), dcgmProfilingMetrics())
}

func dcgmEngine(name string) func(*gpuView) model.Optional {
	return func(g *gpuView) model.Optional { return named(g.Engines, name) }
}

func dcgmBoardMetrics() []metric {
	percentOf := func(engine string) func(*gpuView) model.Optional {
		return func(g *gpuView) model.Optional { return scaled(named(g.Engines, engine), percent) }
	}
	megahertz := func(clock string) func(*gpuView) model.Optional {
		return func(g *gpuView) model.Optional { return scaled(named(g.Clocks, clock), 1/hertzPerMHz) }
	}
	celsius := func(sensor string) func(*gpuView) model.Optional {
		return func(g *gpuView) model.Optional { return named(g.Temperatures, sensor) }
	}
	return []metric{
		dcgmValue("DEV_SM_CLOCK", gauge, "SM clock frequency, in MHz.", megahertz("sm")),
		dcgmValue("DEV_MEM_CLOCK", gauge, "Memory clock frequency, in MHz.", megahertz("memory")),
		dcgmValue("DEV_GPU_TEMP", gauge, "Temperature of the GPU, in degrees Celsius.", celsius("gpu")),
		dcgmValue("DEV_MEMORY_TEMP", gauge, "Temperature of the memory, in degrees Celsius.", celsius("memory")),
		dcgmValue("DEV_POWER_USAGE", gauge, "Power draw, in watts.", func(g *gpuView) model.Optional { return g.Power }),
		dcgmValue("DEV_TOTAL_ENERGY_CONSUMPTION", untyped, "Energy since the driver was loaded, in millijoules.",
			func(g *gpuView) model.Optional { return scaled(g.Energy, milliPerUnit) }),
		dcgmValue("DEV_PCIE_REPLAY_COUNTER", untyped, "PCIe packets sent again.",
			func(g *gpuView) model.Optional { return g.PCIe.Replays }),
		dcgmShared("DEV_GPU_UTIL", "Utilization of the GPU, in percent.",
			func(g *gpuView) model.Optional { return scaled(g.Utilization, percent) },
			func(w *dcgmWorkload) model.Optional { return scaled(w.utilization, percent) }),
		dcgmValue("DEV_MEM_COPY_UTIL", gauge, "Utilization of the memory, in percent.", percentOf("memory")),
		dcgmValue("DEV_ENC_UTIL", gauge, "Utilization of the encoder, in percent.", percentOf("encoder")),
		dcgmValue("DEV_DEC_UTIL", gauge, "Utilization of the decoder, in percent.", percentOf("decoder")),
	}
}

func dcgmMemoryMetrics() []metric {
	mib := func(o model.Optional) model.Optional { return scaled(o, 1.0/bytesPerMiB) }
	return []metric{
		dcgmValue("DEV_FB_FREE", gauge, "Free memory, in MiB.",
			func(g *gpuView) model.Optional { return mib(g.Memory.Free) }),
		dcgmShared("DEV_FB_USED", "Used memory, in MiB.",
			func(g *gpuView) model.Optional { return mib(g.Memory.Used) },
			func(w *dcgmWorkload) model.Optional { return mib(w.memory) }),
		dcgmValue("DEV_FB_RESERVED", gauge, "Reserved memory, in MiB.",
			func(g *gpuView) model.Optional { return mib(g.Memory.Reserved) }),
		dcgmValue("DEV_UNCORRECTABLE_REMAPPED_ROWS", untyped, "Rows remapped for uncorrectable errors.",
			func(g *gpuView) model.Optional { return named(g.RemappedRows, "uncorrectable") }),
		dcgmValue("DEV_CORRECTABLE_REMAPPED_ROWS", untyped, "Rows remapped for correctable errors.",
			func(g *gpuView) model.Optional { return named(g.RemappedRows, "correctable") }),
		dcgmValue("DEV_ROW_REMAP_FAILURE", gauge, "Whether row remapping failed.",
			condition(model.ProblemRemapFailure)),
		dcgmValue("DEV_RETIRED_SBE", untyped, "Pages retired for repeated corrected errors.",
			func(g *gpuView) model.Optional { return named(g.RetiredPages, "correctable") }),
		dcgmValue("DEV_RETIRED_DBE", untyped, "Pages retired for uncorrected errors.",
			func(g *gpuView) model.Optional { return named(g.RetiredPages, "uncorrectable") }),
		dcgmValue("DEV_RETIRED_PENDING", gauge, "Whether pages wait for retirement.",
			condition(model.ProblemRetirePending)),
		dcgmValue("DEV_ECC_SBE_VOL_TOTAL", untyped, "Corrected errors since the driver was loaded.", ecc("corrected", "volatile")),
		dcgmValue("DEV_ECC_DBE_VOL_TOTAL", untyped, "Uncorrected errors since the driver was loaded.", ecc("uncorrected", "volatile")),
		dcgmValue("DEV_ECC_SBE_AGG_TOTAL", untyped, "Corrected errors over the life of the GPU.", ecc("corrected", "aggregate")),
		dcgmValue("DEV_ECC_DBE_AGG_TOTAL", untyped, "Uncorrected errors over the life of the GPU.", ecc("uncorrected", "aggregate")),
	}
}

func dcgmErrorMetrics() []metric {
	violation := func(name, reason, help string) metric {
		return dcgmValue("DEV_"+name+"_VIOLATION", untyped, help,
			func(g *gpuView) model.Optional { return scaled(named(g.Throttled, reason), float64(time.Second)) })
	}
	return []metric{
		{
			name: "DCGM_FI_DEV_XID_ERRORS", typ: gauge, labels: dcgmXIDLabels, help: "Last XID reported, 0 for none.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.dcgm(b) {
					code, known := lastXID(g.gpuView)
					for _, w := range g.workloads {
						if known {
							values := append(slices.Clip(w.values), strconv.FormatUint(code, 10), xidText(code))
							b.Add(b.Labels(b.Schema(dcgmXIDLabels), nil, values...), float64(code))
						}
					}
				}
			},
		},
		violation("POWER", "sw_power_cap", "Slowdown by the power limit, in nanoseconds."),
		violation("THERMAL", "sw_thermal_slowdown", "Slowdown by heat, in nanoseconds."),
		violation("SYNC_BOOST", "sync_boost", "Slowdown by the sync boost group, in nanoseconds."),
		violation("BOARD_LIMIT", "board_limit", "Slowdown by a board limit, in nanoseconds."),
		violation("LOW_UTIL", "low_utilization", "Slowdown by low utilization, in nanoseconds."),
		violation("RELIABILITY", "reliability", "Slowdown by reliability limits, in nanoseconds."),
	}
}

// dcgmMegabyte is the unit of DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL: DCGM divides KiB by 1000.
const dcgmMegabyte = 1024 * 1000

func dcgmLinkMetrics() []metric {
	errors := func(name, typ, help string) metric {
		return dcgmValue("DEV_NVLINK_"+name+"_ERROR_COUNT_TOTAL", untyped, help, func(g *gpuView) model.Optional {
			for _, e := range g.LinkErrors {
				if e.Name == typ {
					return model.Some(float64(e.Value))
				}
			}
			return model.Optional{}
		})
	}
	rate := func(name, rate, help string) metric {
		return dcgmValue("PROF_"+name, gauge, help, func(g *gpuView) model.Optional { return named(g.Rates, rate) })
	}
	return []metric{
		errors("CRC_FLIT", "crc_flit", "Checksum errors in the flow control of all NVLinks."),
		errors("CRC_DATA", "crc_data", "Checksum errors in the data of all NVLinks."),
		errors("REPLAY", "replay", "Packets sent again on all NVLinks."),
		errors("RECOVERY", "recovery", "Recoveries of all NVLinks."),
		dcgmValue("DEV_NVLINK_BANDWIDTH_TOTAL", gauge, "Payload of all NVLinks in both directions, in MB/s as DCGM counts them.",
			func(g *gpuView) model.Optional { return scaled(g.LinkPayload, 1.0/dcgmMegabyte) }),
		rate("NVLINK_TX_BYTES", model.RateNVLinkTransmit, "Data sent over all NVLinks with overhead, in bytes per second."),
		rate("NVLINK_RX_BYTES", model.RateNVLinkReceive, "Data received over all NVLinks with overhead, in bytes per second."),
		rate("C2C_TX_ALL_BYTES", model.RateC2CTransmit, "Data sent over C2C with overhead, in bytes per second."),
		rate("C2C_TX_DATA_BYTES", model.RateC2CTransmitData, "Data sent over C2C without overhead, in bytes per second."),
		rate("C2C_RX_ALL_BYTES", model.RateC2CReceive, "Data received over C2C with overhead, in bytes per second."),
		rate("C2C_RX_DATA_BYTES", model.RateC2CReceiveData, "Data received over C2C without overhead, in bytes per second."),
	}
}

func dcgmProfilingMetrics() []metric {
	active := func(name, engine, help string) metric {
		return dcgmValue("PROF_"+name, gauge, help, dcgmEngine(engine))
	}
	metrics := []metric{
		dcgmValue("PROF_GR_ENGINE_ACTIVE", gauge, "Active fraction of the graphics or compute engine.",
			func(g *gpuView) model.Optional {
				if o := dcgmEngine("gr_active")(g); o.Known {
					return o
				}
				return g.Utilization
			}),
		active("SM_ACTIVE", "sm_active", "Fraction of cycles with a warp on an SM, mean of the SMs."),
		active("SM_OCCUPANCY", "sm_occupancy", "Fraction of the warps for which the SMs have room."),
		active("PIPE_TENSOR_ACTIVE", "tensor_active", "Active fraction of the tensor pipes."),
		active("PIPE_TENSOR_IMMA_ACTIVE", "tensor_imma_active", "Active fraction of tensor integer operations."),
		active("PIPE_TENSOR_HMMA_ACTIVE", "tensor_hmma_active", "Active fraction of tensor half-precision operations."),
		active("PIPE_TENSOR_DFMA_ACTIVE", "tensor_dfma_active", "Active fraction of tensor FP64 operations."),
		active("PIPE_FP64_ACTIVE", "fp64_active", "Active fraction of the FP64 pipes."),
		active("PIPE_FP32_ACTIVE", "fp32_active", "Active fraction of the FP32 pipes."),
		active("PIPE_FP16_ACTIVE", "fp16_active", "Active fraction of the FP16 pipes."),
		active("PIPE_INT_ACTIVE", "integer_active", "Active fraction of the integer pipes."),
		active("DRAM_ACTIVE", "dram_active", "Active fraction of the memory."),
		dcgmValue("PROF_PCIE_TX_BYTES", gauge, "Data sent over PCIe, in bytes per second.",
			func(g *gpuView) model.Optional { return g.PCIe.Transmit }),
		dcgmValue("PROF_PCIE_RX_BYTES", gauge, "Data received over PCIe, in bytes per second.",
			func(g *gpuView) model.Optional { return g.PCIe.Receive }),
	}
	for _, engines := range []struct {
		name, engine string
		n            int
		help         string
	}{
		{"NVDEC", "nvdec", 8, "Active fraction of video decoder %d."},
		{"NVJPG", "nvjpg", 8, "Active fraction of JPEG engine %d."},
		{"NVOFA", "nvofa", 2, "Active fraction of optical flow engine %d."},
	} {
		for i := range engines.n {
			metrics = append(metrics, active(fmt.Sprint(engines.name, i, "_ACTIVE"), fmt.Sprint(engines.engine, i, "_active"),
				fmt.Sprintf(engines.help, i)))
		}
	}
	return metrics
}

func named(figures []model.Figure, name string) model.Optional {
	for _, f := range figures {
		if f.Name == name {
			return model.Some(f.Value)
		}
	}
	return model.Optional{}
}

// lastXID returns the code of the last XID, or 0, and whether XIDs are counted.
func lastXID(g *gpuView) (code uint64, known bool) {
	var last time.Time
	for _, x := range g.XIDs {
		if x.Count > 0 && !x.Last.Before(last) {
			last, code = x.Last, x.Code
		}
	}
	return code, g.XIDs != nil
}

// condition returns whether a GPU has the problem.
func condition(name string) func(*gpuView) model.Optional {
	return func(g *gpuView) model.Optional {
		for _, p := range g.Problems {
			if p.Name == name {
				return model.Some(truth(p.Active))
			}
		}
		return model.Optional{}
	}
}

// ecc adds up the errors of all blocks, unless the driver reports the sum.
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
