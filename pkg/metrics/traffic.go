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

var trafficNotes = []string{
	"`method` is how the bytes are measured: `port` (counters of a port with one exclusive owner: all bytes on the wire), " +
		"`qp_counter` (hardware counters of the workload's queue pairs), `uprobe` (payload of the work requests that the " +
		"workload posts and polls) or `survey` (a part of the bytes that the port counted, " +
		"[split by the last survey](../docs/rdma-bytes.md#surveys): the only estimate). No byte is counted by two methods.",
	"Where the device counts bytes, the shares add up to the counter of the device. The unattributed share has empty identity " +
		"labels: headers, retransmissions, traffic of the kernel, one-sided operations of the remote end, and calls that bypass " +
		"`ibv_post_send`.",
	"While the calls of a workload are counted in surveys only, its `uprobe` byte counters stand still and its traffic is in `survey` " +
		"or, where it cannot be split, in the unattributed share. When a workload is removed, all its bytes move to the unattributed " +
		"share at once.",
	"The families of work requests and completions are absent while calls of the workload on the device are counted in surveys only. " +
		"They continue at the same value when all calls are counted again.",
	"`container_rdma_work_requests_total`: all requests of a chain, without those that the provider refused. The opcode of " +
		"receives is `recv`.",
	"`container_rdma_work_request_bytes_total`: without receives, which `container_rdma_receive_bytes_total` counts when they " +
		"complete.",
	"`container_rdma_completion_errors_total`: completions that are polled through `ibv_start_poll` are not counted.",
	"`container_rdma_datapath_coverage`: 1 with the reason `complete`, or 0 for each reason why bytes are missing, so that no " +
		"traffic and no measurement are different. A workload has it for each HCA on which it has queue pairs, DEVX objects or " +
		"observed contexts. `complete` also holds where counters of the port or of queue pairs have the bytes.",
	"Reasons: `off` (`--rdma.datapath=off`), `refused` (the kernel or a missing right prevents probes: `accelscope doctor`), " +
		"`not_selected` (`--rdma.datapath-select`), `late` (an open context could send before its functions were probed), " +
		"`survey` (calls are counted in surveys only), `extended_poll` (of completions of `ibv_start_poll`, the length was not read), " +
		"`provider_unsupported` (the functions of its provider were not found), `direct_wqe` (the provider lets programs write to " +
		"its queues, and no call was seen for 10 s: idle, or UCX's accelerated transports, DPDK, a GPU), `devx` (DEVX objects, " +
		"which may be queue pairs), `full` (no room for more contexts), `not_seen` (queue pairs that are " +
		"not connected yet, or were missed), `unattributed` (all bytes are counted now, and some were not since the sensor started).",
	"`container_rdma_unattributed_bytes_limit_total`: in an interval between two scrapes the device sent or received bytes that no " +
		"method attributes, and the workload had objects that could move bytes. What it moved of them is " +
		"not known; a byte counts for each such workload. " +
		"Absent for a workload without such bytes, and from then on where a counter of the device was reset or could not be read, so " +
		"that there is no limit.",
	"`container_rdma_completion_duration_seconds`: `opcode` is `write`, `read`, `send` or `atomic`. The duration includes the " +
		"time until the workload polls. Completions that match no observed post are left out.",
	"`container_rdma_oldest_outstanding_seconds`, `container_rdma_stalled_queue_pairs`: work requests that were posted with " +
		"`IBV_SEND_SIGNALED` (or `sq_sig_all`) and that the workload has not polled a completion of, whether it arrived or not. " +
		"Receives, and work requests that no signaled one follows, do not count, nor do queue pairs in the error state. A queue " +
		"pair is stalled if it has such work requests and `--rdma.stall-after` passed since it got the last completion, or since " +
		"it had none outstanding. Both are absent unless all queue pairs of the workload on the device are " +
		"[traced without gaps](../docs/limits.md#stalled-queue-pairs) (`container_rdma_outstanding_coverage`), except that queue " +
		"pairs which are stalled for certain count anyway. Of a queue pair with more than 128 signaled work requests, the age " +
		"may be that of a later one.",
}

// trafficMetrics returns the metrics of workloads on the data path.
func trafficMetrics() []metric {
	return slices.Concat(byteMetrics(), []metric{coverage, missedBytes}, operationMetrics(), outstandingMetrics())
}

// coverage distinguishes a workload without traffic from one whose traffic is not measured.
var coverage = metric{
	name: "container_rdma_datapath_coverage", typ: gauge, owned: true, labels: []string{"device", "reason"}, detail: []string{"device"},
	help: "Whether all bytes that the workload moves are counted, 1 with the reason complete or 0 for each reason why not.",
	emit: func(v *view, b *exposition.Builder) {
		for i := range v.shares.Coverage {
			s := &v.shares.Coverage[i]
			if s.Gap == "" {
				b.Share(1, v.owners[s.Owner], s.Device, "complete")
			} else {
				b.Share(0, v.owners[s.Owner], s.Device, string(s.Gap))
			}
		}
	},
}

// missedBytes bounds what is missing in the bytes of a workload since the sensor started.
var missedBytes = metric{
	name: "container_rdma_unattributed_bytes_limit_total", typ: counter, owned: true,
	labels: []string{"device"}, detail: []string{"device"},
	help: "Unattributed bytes of the device that the workload may have moved, at most.",
	emit: func(v *view, b *exposition.Builder) {
		for i := range v.shares.Missed {
			if s := &v.shares.Missed[i]; !s.Unlimited {
				b.Share(float64(s.Bytes), v.owners[s.Owner], s.Device)
			}
		}
	},
}

func byteMetrics() []metric {
	bytes := func(d model.Direction, help string) metric {
		return metric{
			name: "container_rdma_" + string(d) + "_bytes_total", typ: counter, owned: true,
			labels: []string{"device", "method"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Traffic {
					if s := &v.shares.Traffic[i]; s.Direction == d {
						b.Since(s.Since).Share(float64(s.Bytes), v.owners[s.Owner], s.Device, string(s.Method))
					}
				}
			},
		}
	}
	return []metric{
		bytes(model.Transmit, "Bytes that the workload has sent by RDMA, by method of measurement."),
		bytes(model.Receive, "Bytes that the workload has received or read by RDMA, by method of measurement."),
	}
}

// operationMetrics returns the metrics of operations. Their counters are left out while they rest: they do not grow while calls are
// counted in surveys only. Bytes are exported nevertheless: the shares of a device add up to the counter of the device.
func operationMetrics() []metric {
	const receive = "recv"
	requests := func(name, help string, receives bool, of func(model.Requests) uint64) metric {
		return metric{
			name: name, typ: counter, owned: true, labels: []string{"device", "method", "opcode"},
			detail: []string{"opcode", "device"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.WorkRequests {
					s := &v.shares.WorkRequests[i]
					if !s.Resting && (receives || s.Key.Opcode != receive) {
						b.Since(s.Since).Share(float64(of(s.Value)), v.owners[s.Owner],
							s.Key.Device, string(model.MethodUprobe), s.Key.Opcode)
					}
				}
			},
		}
	}
	return []metric{
		requests("container_rdma_work_requests_total",
			"Work requests that the workload has posted, by opcode.", true,
			func(r model.Requests) uint64 { return r.Count }),
		requests("container_rdma_work_request_bytes_total",
			"Length of the scatter/gather lists of the work requests that the workload has posted, by opcode.", false,
			func(r model.Requests) uint64 { return r.Bytes }),
		{
			name: "container_rdma_completion_errors_total", typ: counter, owned: true,
			labels: []string{"device", "method", "status"}, detail: []string{"status", "device"},
			help: "Completions that the workload has polled with an error status, by status.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.CompletionErrors {
					if s := &v.shares.CompletionErrors[i]; !s.Resting {
						b.Since(s.Since).Share(float64(s.Value), v.owners[s.Owner], s.Key.Device, string(model.MethodUprobe), s.Key.Status)
					}
				}
			},
		},
		{
			name: "container_rdma_completion_duration_seconds", typ: histogram, owned: true, labels: []string{"device", "method", "opcode"},
			detail: []string{"opcode", "device"},
			help:   "Time from posting a signaled work request to polling its completion, by opcode.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Completions {
					if s := &v.shares.Completions[i]; !s.Resting {
						b.Since(s.Since).FineHistogram(&s.Value, v.owners[s.Owner], s.Key.Device, string(model.MethodUprobe), s.Key.Opcode)
					}
				}
			},
		},
	}
}

var budgetNotes = []string{
	"`accelscope_budget_limit_ratio`: the flag `--rdma.datapath-budget`, infinite without a limit.",
	"`accelscope_budget_spent_ratio`: a probe hit counts 2 µs, 12 µs if the kernel single-steps the instruction, and a return 2 µs, " +
		"which is more than natively.",
	"`accelscope_datapath_late_total`, `container_rdma_datapath_late_total`: the first operations of these contexts are not " +
		"counted. Only the first process that uses a provider file can be late, or one that runs when the sensor starts.",
	"`container_rdma_unread_completions_total`: the process did not read the opcode of the completion, or of a receive not its length " +
		"(or in a verbs context with datagrams its queue pair). The bytes that these completions received are not counted.",
}

// budgetMetrics returns the metrics of the probes on the data path: coverage and cost.
func budgetMetrics() []metric {
	budget := func(name string, typ dto.MetricType, help string,
		of func(*model.DataPathStats, *attribution.BudgetShare) float64,
	) metric {
		return metric{name: name, typ: typ, owned: true, help: help, emit: func(v *view, b *exposition.Builder) {
			if v.facts.DataPath == nil {
				return
			}
			for i := range v.shares.Budgets {
				s := &v.shares.Budgets[i]
				b.Since(s.Since).Share(of(v.facts.DataPath, s), v.owners[s.Owner])
			}
		}}
	}
	stats := func(name string, typ dto.MetricType, help string, of func(*model.DataPathStats) uint64) metric {
		return single(name, typ, help, func(v *view) *model.DataPathStats { return v.facts.DataPath },
			func(d *model.DataPathStats) model.Optional { return model.Some(float64(of(d))) })
	}
	perDevice := func(name, help string, of func(*view) []attribution.Share[model.DeviceKey, model.Count]) metric {
		return metric{
			name: name, typ: counter, owned: true, labels: []string{"device"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range of(v) {
					b.Since(s.Since).Share(float64(s.Value), v.owners[s.Owner], s.Key.Device)
				}
			},
		}
	}
	return []metric{
		perDevice("container_rdma_datapath_late_total",
			"Verbs contexts of the workload that were ready to send before the functions of their provider were probed.",
			func(v *view) []attribution.Share[model.DeviceKey, model.Count] { return v.shares.Late }),
		perDevice("container_rdma_unread_completions_total",
			"Completions polled with ibv_start_poll with an unknown number of received bytes.",
			func(v *view) []attribution.Share[model.DeviceKey, model.Count] { return v.shares.Unread }),
		budget("accelscope_budget_limit_ratio", gauge,
			"Maximum fraction of a process's CPU time that probes on the data path may use.",
			func(d *model.DataPathStats, _ *attribution.BudgetShare) float64 { return d.LimitRatio }),
		budget("accelscope_budget_spent_ratio", gauge,
			"Highest fraction of its CPU time that a process of the workload spent in data-path probes, between two surveys.",
			func(_ *model.DataPathStats, s *attribution.BudgetShare) float64 { return s.SpentRatio }),
		budget("accelscope_datapath_spent_seconds_total", counter,
			"CPU time that all processes of the workload spent in probes on the data path.",
			func(_ *model.DataPathStats, s *attribution.BudgetShare) float64 { return float64(s.Spent) / 1e9 }),
		stats("accelscope_datapath_processes", gauge, "Processes with an observed data path.",
			func(d *model.DataPathStats) uint64 { return d.Processes }),
		stats("accelscope_datapath_probes", gauge, "Probes attached to functions of verbs providers.",
			func(d *model.DataPathStats) uint64 { return d.Probes }),
		stats("accelscope_datapath_late_total", counter,
			"Verbs contexts that were ready to send before the functions of their provider were probed.",
			func(d *model.DataPathStats) uint64 { return d.Late }),
	}
}

var vfNotes = []string{
	"The driver of the physical function counts all traffic of the virtual function, RDMA and other, also while the virtual " +
		"function is assigned to a virtual machine or a network namespace.",
	"`infiniband_vf_info`: values that the kernel does not report are empty.",
}

// vfMetrics returns the metrics that physical functions report about their virtual functions.
func vfMetrics() []metric {
	vfCounter := func(what, help string, of func(*model.VF) uint64) metric {
		return metric{
			name: "infiniband_vf_" + what + "_total", typ: counter, labels: []string{"pf_device", "vf"},
			help: help,
			emit: each(vfsOf, func(_ *view, b *exposition.Builder, f *model.VF) {
				if f.Counted {
					b.Value(float64(of(f)), f.PF, strconv.Itoa(f.Number))
				}
			}),
		}
	}
	return []metric{
		vfCounter("transmit_bytes", "Bytes that the virtual function has sent, RDMA and other traffic.",
			func(f *model.VF) uint64 { return f.TransmitBytes }),
		vfCounter("receive_bytes", "Bytes that the virtual function has received, RDMA and other traffic.",
			func(f *model.VF) uint64 { return f.ReceiveBytes }),
		vfCounter("transmit_packets", "Packets that the virtual function has sent, RDMA and other traffic.",
			func(f *model.VF) uint64 { return f.TransmitPackets }),
		vfCounter("receive_packets", "Packets that the virtual function has received, RDMA and other traffic.",
			func(f *model.VF) uint64 { return f.ReceivePackets }),
		{
			name: "infiniband_vf_info", typ: gauge,
			labels: []string{"pf_device", "vf", "pci_address", "node_guid", "port_guid"},
			help:   "PCI address and GUIDs of the virtual function, always 1.",
			emit: each(vfsOf, func(_ *view, b *exposition.Builder, f *model.VF) {
				b.Value(1, f.PF, strconv.Itoa(f.Number), f.PCIAddress, f.NodeGUID, f.PortGUID)
			}),
		},
	}
}
