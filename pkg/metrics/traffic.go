// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// trafficMetrics are what workloads do on the data path, and what it costs them
// to know. What was scaled up from windows of time has families of its own: it
// is never in one sum with what was counted.
func trafficMetrics() []metric {
	return slices.Concat(
		byteMetrics(false, "", ""),
		operationMetrics(exact, "", whole),
		byteMetrics(true, "_sampled", estimated),
		operationMetrics(sampled, "_sampled", estimated),
		budgetMetrics(),
		vfMetrics(),
	)
}

// estimated ends the help of all families that are scaled.
const estimated = " Estimated: counted in windows of time and scaled up by the time between them, of which " +
	"accelscope_datapath_sampling_ratio tells the part that was watched; never added to the family without _sampled."

// whole ends the help of the families of operations that are not.
const whole = " Absent while calls that tell it are sampled: it goes on where it was when all are watched again."

// exact and sampled choose the rows of a family. While a figure is sampled its
// exact one rests: that would be a counter that stands still while the workload
// does not. Bytes are shown nevertheless, or the sum over a device would not be
// its figure.
func exact(sampled, resting bool) bool { return !sampled && !resting }
func sampled(sampled, _ bool) bool     { return sampled }

func byteMetrics(sampled bool, twin, more string) []metric {
	bytes := func(d model.Direction, help string) metric {
		return metric{
			name: "container_rdma_" + string(d) + "_bytes" + twin + "_total", typ: counter, owned: true,
			labels: []string{"device", "method"}, help: help + more,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Traffic {
					if s := &v.shares.Traffic[i]; s.Direction == d && s.Sampled == sampled {
						b.Share(float64(s.Bytes), v.owners[s.Owner], s.Device, string(s.Method))
					}
				}
			},
		}
	}
	const methods = ", by the method that tells it: port (the counters of a port that the workload has alone: all bytes on the " +
		"wire), qp_counter (hardware counters of its queue pairs) or uprobe (payload of what it posted and polled). No byte " +
		"is in two methods. Where the device counts bytes, the shares add up to its own figure; what nobody is known to own " +
		"(headers, retransmissions, the kernel's traffic, one-sided operations of the other end, calls that bypass " +
		"ibv_post_send) has empty identity labels. While a workload's calls are sampled its uprobe bytes stand still, and what " +
		"it moves is in that share, too; so are, with a jump, all bytes of a workload that is gone."
	if twin != "" {
		return []metric{
			bytes(model.Transmit, "Bytes that the workload has sent by RDMA, by work requests posted."),
			bytes(model.Receive, "Bytes that the workload has received by RDMA, by reads posted and receives completed."),
		}
	}
	return []metric{
		bytes(model.Transmit, "Bytes that the workload has sent by RDMA"+methods),
		bytes(model.Receive, "Bytes that the workload has received by RDMA, those that it read included"+methods),
	}
}

func operationMetrics(chosen func(sampled, resting bool) bool, twin, more string) []metric {
	const receive = "recv"
	requests := func(name, help string, receives bool, of func(model.Requests) uint64) metric {
		return metric{
			name: name + twin + "_total", typ: counter, owned: true, labels: []string{"device", "method", "opcode"},
			help: help + more,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.WorkRequests {
					s := &v.shares.WorkRequests[i]
					if chosen(s.Key.Sampled, s.Resting) && (receives || s.Key.Opcode != receive) {
						b.Share(float64(of(s.Value)), v.owners[s.Owner], s.Key.Device, string(model.MethodUprobe), s.Key.Opcode)
					}
				}
			},
		}
	}
	durations := "container_rdma_completion_duration_seconds"
	if twin != "" {
		durations = "container_rdma_completion_duration_sampled_seconds"
	}
	return []metric{
		requests("container_rdma_work_requests",
			"Work requests that the workload has posted, by opcode, recv for receives: all of a chain, those that the provider "+
				"refused left out.", true, func(r model.Requests) uint64 { return r.Count }),
		requests("container_rdma_work_request_bytes",
			"Length of the scatter/gather lists of the work requests that the workload has posted, in bytes, by opcode. "+
				"Not of receives, whose bytes are in container_rdma_receive_bytes_total once they have completed.",
			false, func(r model.Requests) uint64 { return r.Bytes }),
		{
			name: "container_rdma_completion_errors" + twin + "_total", typ: counter, owned: true,
			labels: []string{"device", "method", "status"},
			help: "Completions that the workload has polled with a status other than success, by status. Those taken through " +
				"ibv_start_poll are not seen." + more,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.CompletionErrors {
					if s := &v.shares.CompletionErrors[i]; chosen(s.Key.Sampled, s.Resting) {
						b.Share(float64(s.Value), v.owners[s.Owner], s.Key.Device, string(model.MethodUprobe), s.Key.Status)
					}
				}
			},
		},
		{
			name: durations, typ: histogram, owned: true, labels: []string{"device", "method", "opcode"},
			help: "How long signaled work requests took from being posted to their completion being polled, in seconds, by opcode " +
				"(write, read, send, atomic): the time until the workload polled is in it. Those whose completion could not be " +
				"matched with a post are left out." + more,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Completions {
					if s := &v.shares.Completions[i]; chosen(s.Key.Sampled, s.Resting) {
						b.FineHistogram(&s.Value, v.owners[s.Owner], s.Key.Device, string(model.MethodUprobe), s.Key.Opcode)
					}
				}
			},
		},
	}
}

// budgetMetrics are what is watched, and what that takes of the workloads.
func budgetMetrics() []metric {
	budget := func(name string, typ dto.MetricType, help string,
		of func(*model.DataPathStats, *attribution.BudgetShare) float64,
	) metric {
		return metric{name: name, typ: typ, owned: true, help: help, emit: func(v *view, b *exposition.Builder) {
			if v.facts.DataPath == nil {
				return
			}
			for i := range v.shares.Budgets {
				b.Share(of(v.facts.DataPath, &v.shares.Budgets[i]), v.owners[v.shares.Budgets[i].Owner])
			}
		}}
	}
	stats := func(name string, typ dto.MetricType, help string, of func(*model.DataPathStats) uint64) metric {
		return metric{name: name, typ: typ, help: help, emit: func(v *view, b *exposition.Builder) {
			if d := v.facts.DataPath; d != nil {
				b.Value(float64(of(d)))
			}
		}}
	}
	return []metric{
		{
			name: "accelscope_datapath_sampling_ratio", typ: gauge, owned: true, labels: []string{"device", "calls"},
			help: "Part of the time during which the workload's calls are watched, 1 for all of it: post (what it sends), poll " +
				"(what it receives, errors, durations).",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Sampling {
					b.Share(s.Ratio, v.owners[s.Owner], s.Device, string(s.Calls))
				}
			},
		},
		budget("accelscope_budget_limit_ratio", gauge,
			"Part of a process's CPU time that probes on the data path may take (--rdma.datapath-budget), infinite without a limit.",
			func(d *model.DataPathStats, _ *attribution.BudgetShare) float64 { return d.LimitRatio }),
		budget("accelscope_budget_spent_ratio", gauge,
			"Part of its CPU time that probes on the data path took in the last minute, of the workload's process of which "+
				"it was most. The cost of a hit is measured when the first probe is attached.",
			func(_ *model.DataPathStats, s *attribution.BudgetShare) float64 { return s.SpentRatio }),
		budget("accelscope_datapath_spent_seconds_total", counter,
			"CPU time that probes on the data path took of all processes of the workload, in seconds.",
			func(_ *model.DataPathStats, s *attribution.BudgetShare) float64 { return float64(s.Spent) / 1e9 }),
		stats("accelscope_datapath_processes", gauge, "Processes whose data path is watched.",
			func(d *model.DataPathStats) uint64 { return d.Processes }),
		stats("accelscope_datapath_probes", gauge, "Probes that are attached to functions of verbs providers.",
			func(d *model.DataPathStats) uint64 { return d.Probes }),
		stats("accelscope_datapath_late_total", counter,
			"Verbs contexts that were ready to send before the functions of their provider were probed: what they did first "+
				"is not counted.", func(d *model.DataPathStats) uint64 { return d.Late }),
	}
}

// vfMetrics are what physical functions tell of their virtual ones.
func vfMetrics() []metric {
	figure := func(what, help string, of func(*model.VF) uint64) metric {
		return metric{
			name: "infiniband_vf_" + what + "_total", typ: counter, labels: []string{"pf_device", "vf"},
			help: help + ", RDMA and otherwise, as the driver of the physical function counts it, wherever the function is.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.facts.VFs {
					if f := &v.facts.VFs[i]; f.Counted {
						b.Value(float64(of(f)), f.PF, strconv.Itoa(f.Number))
					}
				}
			},
		}
	}
	return []metric{
		figure("transmit_bytes", "Bytes that the virtual function has sent", func(f *model.VF) uint64 { return f.TransmitBytes }),
		figure("receive_bytes", "Bytes that the virtual function has received", func(f *model.VF) uint64 { return f.ReceiveBytes }),
		figure("transmit_packets", "Packets that the virtual function has sent",
			func(f *model.VF) uint64 { return f.TransmitPackets }),
		figure("receive_packets", "Packets that the virtual function has received",
			func(f *model.VF) uint64 { return f.ReceivePackets }),
		{
			name: "infiniband_vf_info", typ: gauge,
			labels: []string{"pf_device", "vf", "pci_address", "node_guid", "port_guid"},
			help: "What the physical function tells of a virtual one that is no number; what the kernel does not tell is empty. " +
				"The value is always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.facts.VFs {
					f := &v.facts.VFs[i]
					b.Value(1, f.PF, strconv.Itoa(f.Number), f.PCIAddress, f.NodeGUID, f.PortGUID)
				}
			},
		},
	}
}
