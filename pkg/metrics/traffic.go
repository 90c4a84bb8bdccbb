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
	"`method`: `port`, `qp_counter`, `uprobe` or `survey`: [how bytes are measured](../docs/rdma-bytes.md).",
	"If the device counts bytes, shares add up to its counter.",
	"While a workload is counted in surveys only, its `uprobe` bytes stand still, and its families of work requests and " +
		"completions are absent. A removed workload's bytes move to the unattributed share.",
	"`container_rdma_work_requests_total` excludes requests that the provider refused. Receives have opcode `recv`.",
	"`container_rdma_work_request_bytes_total` excludes receives.",
	"`container_rdma_completion_errors_total` excludes completions polled through `ibv_start_poll`.",
	"`container_rdma_datapath_coverage`: for each HCA with the workload's queue pairs, DEVX objects or observed contexts; [the " +
		"reasons](../docs/rdma-bytes.md#coverage).",
	"`container_rdma_unattributed_bytes_limit_total`: an upper bound of [missed " +
		"bytes](../docs/rdma-bytes.md#bytes-that-were-missed).",
	"`container_rdma_completion_duration_seconds`: `opcode` is `write`, `read`, `send` or `atomic`. Completions without an " +
		"observed post are left out.",
	"`container_rdma_oldest_outstanding_seconds`, `container_rdma_stalled_queue_pairs`: signaled work requests " +
		"(`IBV_SEND_SIGNALED`, `sq_sig_all`). Receives, requests without a later signaled request, and queue pairs in the " +
		"error state do not count. A queue pair is stalled if `--rdma.stall-after` has passed since its last completion or " +
		"since it had no outstanding request. See [when both are absent](../docs/limits.md#stalled-queue-pairs).",
	"`container_rdma_receive_wait_seconds_total`, `container_rdma_oldest_receive_seconds`: [waits for " +
		"receives](../docs/limits.md#waits-for-receives).",
}

func trafficMetrics() []metric {
	return slices.Concat(byteMetrics(), []metric{coverage, missedBytes}, operationMetrics(), outstandingMetrics())
}

// coverage distinguishes a workload without traffic from a workload whose traffic is not measured.
var coverage = metric{
	name: "container_rdma_datapath_coverage", typ: gauge, owned: true, labels: []string{"device", "reason"}, detail: []string{"device"},
	help: "Whether all bytes are counted, 1 (complete) or 0 for each reason.",
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

// missedBytes bounds what the bytes of a workload lack since the sensor's start.
var missedBytes = metric{
	name: "container_rdma_unattributed_bytes_limit_total", typ: counter, owned: true,
	labels: []string{"device"}, detail: []string{"device"},
	help: "Upper limit of unattributed bytes that the workload may have moved.",
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
		bytes(model.Transmit, "RDMA bytes sent, by method of measurement."),
		bytes(model.Receive, "RDMA bytes received or read, by method of measurement."),
	}
}

// operationMetrics returns the metrics of operations. They are absent while calls are counted in surveys only, because
// they would not grow. Bytes stay: the shares of a device add up to the device's counter.
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
			"Work requests posted, by opcode.", true,
			func(r model.Requests) uint64 { return r.Count }),
		requests("container_rdma_work_request_bytes_total",
			"Length of the posted work requests, by opcode.", false,
			func(r model.Requests) uint64 { return r.Bytes }),
		{
			name: "container_rdma_completion_errors_total", typ: counter, owned: true,
			labels: []string{"device", "method", "status"}, detail: []string{"status", "device"},
			help: "Completions polled with an error, by status.",
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
			help:   "Time from a signaled post to the poll of its completion, by opcode.",
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
	"`accelscope_budget_limit_ratio`: infinite without a limit.",
	"`accelscope_budget_spent_ratio` is an overestimate: a probe hit or return counts 2 µs, a single-stepped instruction 12 µs.",
	"`accelscope_datapath_late_total`, `container_rdma_datapath_late_total`: [first operations](../docs/rdma-bytes.md#method-uprobe) " +
		"are not counted.",
	"`accelscope_datapath_surveys_total`: `reason` is `scheduled` or [`suspicion`](../docs/collectives.md#slow-jobs).",
}

// budgetMetrics returns the coverage and cost of the probes on the data path.
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
			"Verbs contexts that could send before their provider was probed.",
			func(v *view) []attribution.Share[model.DeviceKey, model.Count] { return v.shares.Late }),
		perDevice("container_rdma_unread_completions_total",
			"Completions of ibv_start_poll with an unknown number of bytes.",
			func(v *view) []attribution.Share[model.DeviceKey, model.Count] { return v.shares.Unread }),
		budget("accelscope_budget_limit_ratio", gauge,
			"CPU budget of data path probes, as a fraction of a process's time.",
			func(d *model.DataPathStats, _ *attribution.BudgetShare) float64 { return d.LimitRatio }),
		budget("accelscope_budget_spent_ratio", gauge,
			"Highest fraction of CPU time that a process spent in data path probes, between surveys.",
			func(_ *model.DataPathStats, s *attribution.BudgetShare) float64 { return s.SpentRatio }),
		budget("accelscope_datapath_spent_seconds_total", counter,
			"CPU time spent in data path probes.",
			func(_ *model.DataPathStats, s *attribution.BudgetShare) float64 { return float64(s.Spent) / 1e9 }),
		{
			name: "accelscope_datapath_surveys_total", typ: counter, labels: []string{"reason"},
			help: "Surveys of verbs providers that began, or became longer on suspicion.",
			emit: func(v *view, b *exposition.Builder) {
				if d := v.facts.DataPath; d != nil {
					b.Value(float64(d.Surveys.Scheduled), "scheduled")
					b.Value(float64(d.Surveys.Suspected), "suspicion")
				}
			},
		},
		stats("accelscope_datapath_processes", gauge, "Processes with an observed data path.",
			func(d *model.DataPathStats) uint64 { return d.Processes }),
		stats("accelscope_datapath_probes", gauge, "Probes attached to verbs providers.",
			func(d *model.DataPathStats) uint64 { return d.Probes }),
		stats("accelscope_datapath_late_total", counter,
			"Verbs contexts that could send before their provider was probed.",
			func(d *model.DataPathStats) uint64 { return d.Late }),
	}
}

var vfNotes = []string{
	"All traffic of the VF, RDMA and other, also in a virtual machine.",
}

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
		vfCounter("transmit_bytes", "Bytes sent by the virtual function.",
			func(f *model.VF) uint64 { return f.TransmitBytes }),
		vfCounter("receive_bytes", "Bytes received by the virtual function.",
			func(f *model.VF) uint64 { return f.ReceiveBytes }),
		vfCounter("transmit_packets", "Packets sent by the virtual function.",
			func(f *model.VF) uint64 { return f.TransmitPackets }),
		vfCounter("receive_packets", "Packets received by the virtual function.",
			func(f *model.VF) uint64 { return f.ReceivePackets }),
		{
			name: "infiniband_vf_info", typ: gauge,
			labels: []string{"pf_device", "vf", "pci_address", "node_guid", "port_guid"},
			help:   "PCI address and GUIDs of the virtual function.",
			emit: each(vfsOf, func(_ *view, b *exposition.Builder, f *model.VF) {
				b.Value(1, f.PF, strconv.Itoa(f.Number), f.PCIAddress, f.NodeGUID, f.PortGUID)
			}),
		},
	}
}
