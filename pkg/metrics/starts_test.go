// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// withoutStart are the counters of workloads for which the time of the value 0 is unknown.
var withoutStart = map[string]string{
	"container_network_receive_bytes_total":            "an interface may have counted before it was moved into the namespace",
	"container_network_receive_packets_total":          "as above",
	"container_network_receive_errors_total":           "as above",
	"container_network_receive_packets_dropped_total":  "as above",
	"container_network_transmit_bytes_total":           "as above",
	"container_network_transmit_packets_total":         "as above",
	"container_network_transmit_errors_total":          "as above",
	"container_network_transmit_packets_dropped_total": "as above",
	"container_restarts_total":                         "the runtime counts, also before the sensor knows the container",
	"container_rdma_unattributed_bytes_limit_total":    "a limit: it includes intervals in which the workload was not known",
}

func oneRow[K comparable, V any](key K, value V) []model.Series[K, V] {
	return []model.Series[K, V]{{Cgroup: 101, Key: key, Value: value}}
}

// startedFacts are all counters of a container. The first refresh has no values.
func startedFacts(first bool) model.Snapshot {
	var h model.Histogram
	h.Count, h.Buckets[3] = 2, 2
	var fine model.FineHistogram
	fine.Count, fine.Buckets[3] = 2, 2
	s := nodeHCAs()
	s.DataPath = &model.DataPathStats{}
	s.Objects = []model.Objects{{Cgroup: 101, Device: "mlx5_0", Type: model.QP, Current: 6}}
	s.Created = oneRow(model.ObjectKey{Device: "mlx5_0", Type: model.QP}, model.Count(8))
	s.Verbs = oneRow(model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, h)
	s.VerbErrors = oneRow(model.VerbErrorKey{Device: "mlx5_0", Verb: "reg_mr", Errno: "ENOMEM"}, model.Count(1))
	s.Traffic = []model.Traffic{
		{Cgroup: 101, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: 100},
		{Cgroup: 101, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Receive, Bytes: 100},
	}
	s.WorkRequests = oneRow(model.WorkRequestKey{Device: "mlx5_0", Opcode: "send"}, model.Requests{Count: 1, Bytes: 100})
	s.CompletionErrors = oneRow(model.CompletionErrorKey{Device: "mlx5_0", Status: "retry_exceeded"}, model.Count(1))
	s.Completions = oneRow(model.CompletionKey{Device: "mlx5_0", Opcode: "send"}, fine)
	s.Late = oneRow(model.DeviceKey{Device: "mlx5_0"}, model.Count(1))
	s.Unread = oneRow(model.DeviceKey{Device: "mlx5_0"}, model.Count(1))
	s.ReceiveWaits = oneRow(model.DeviceKey{Device: "mlx5_0"}, model.WaitTime(1e9))
	s.Budgets = []model.Budget{{Cgroup: 101}}
	s.Spent = oneRow(model.SpentKey{}, model.CPUTime(1e9))
	s.DeviceOpens = oneRow(model.OpenKey{Device: "/dev/nvidia0", Class: model.ClassNVIDIA}, model.Opens{Allowed: 1, Denied: 1})
	s.FailedAllocations = oneRow(model.AllocationKey{Vendor: model.NVIDIA, API: "cuMemAlloc"}, model.Allocations{Count: 1, Bytes: 5})
	fault := model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:c1:00.0", Code: "31"}
	s.Faults, s.FaultTotals = oneRow(fault, model.Count(1)), []model.FaultTotal{{FaultKey: fault, Count: 1}}
	s.DriverCalls = oneRow(model.DriverCallKey{Driver: "nvidia"}, h)
	s.Collectives = oneRow(model.CollectiveKey{Library: "nccl", Communicator: "late", Operation: "all_reduce"}, model.Launches{Count: 1, Bytes: 5})
	s.OwnerLosses = oneRow(model.LossKey{Reason: "verbs_map_share"}, model.Count(1))
	s.GPUs = []model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Energy: model.Some(2)}}
	s.GPUUses = []model.GPUUse{{GPU: "GPU-0", Listed: 2}, {GPU: "GPU-0", Cgroup: 101, Rounds: 1}}
	s.Node = poweredNode(2)
	if first {
		s.Node = poweredNode(1)
		s.GPUs[0].Energy, s.GPUUses = model.Some(1), []model.GPUUse{{GPU: "GPU-0", Listed: 1}}
		s.Created, s.Verbs, s.VerbErrors, s.Traffic = s.Created[:0], s.Verbs[:0], s.VerbErrors[:0], nil
		s.WorkRequests, s.CompletionErrors, s.Completions = s.WorkRequests[:0], s.CompletionErrors[:0], s.Completions[:0]
		s.Late, s.Unread, s.Spent, s.DeviceOpens = s.Late[:0], s.Unread[:0], s.Spent[:0], s.DeviceOpens[:0]
		s.FailedAllocations, s.Faults, s.FaultTotals = s.FailedAllocations[:0], s.Faults[:0], s.FaultTotals[:0]
		s.DriverCalls, s.OwnerLosses, s.Objects = s.DriverCalls[:0], s.OwnerLosses[:0], s.Objects[:0]
		s.Collectives, s.ReceiveWaits = s.Collectives[:0], s.ReceiveWaits[:0]
		return s
	}
	for _, c := range []string{"port_xmit_data", "port_rcv_data"} {
		counters := s.HCAs[0].Ports[0].Counters
		counters[slices.IndexFunc(counters, func(x model.Counter) bool { return x.Name == c })].Value += 1000
	}
	return s
}

// poweredNode is a node whose CPUs have used energy and time.
func poweredNode(times uint64) *model.Node {
	return &model.Node{
		CPUs: []model.CPU{{Seconds: [model.CPUModes]float64{float64(100 * times)}}}, EnergyRead: time.Now(),
		Energy: []model.EnergyZone{{
			Name: "package", Path: "/intel-rapl:0", Domain: model.EnergyOfPackage, Microjoules: 1e8 * times, Limit: 1 << 40,
		}},
	}
}

func startOf(m *dto.Metric) *timestamppb.Timestamp {
	if m.Histogram != nil {
		return m.Histogram.CreatedTimestamp
	}
	return m.Counter.GetCreatedTimestamp()
}

// TestStarts: counters and histograms of a workload that began after the first refresh have, and keep, the time before
// their first value as their start. Workloads of the first refresh, the unattributed share, and other metrics have no
// start.
func TestStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts, begun := startedFacts(true), time.Now()
		probe := &fake{name: "probe", read: func(context.Context) (model.Snapshot, error) { return facts, nil }}
		namer := names(nodeNames())
		sources := append([]engine.Registration{{Source: probe}, {Source: namer}}, containerNode()[:2]...)
		usages := sources[2].Source.(*fake)
		full := usages.facts.Usages
		usages.facts.Usages = full[1:]
		c := newCollector(setup{Sources: sources})
		defer c.Close() //nolint:errcheck // nothing to lose
		for _, f := range mustGather(t, c) {
			for _, m := range f.Metric {
				if startOf(m) != nil {
					t.Errorf("first refresh: %s has the start %v", f.GetName(), startOf(m).AsTime())
				}
			}
		}
		time.Sleep(2 * time.Second)
		facts = startedFacts(false)
		facts.Communicators = []model.Communicator{{Cgroup: 101, Library: "nccl", Key: "a", Rank: "0", Since: begun, Late: model.Some(1)}}
		full[0].Since, usages.facts.Usages = begun, full
		for range 2 {
			checkStarts(t, mustGather(t, c), begun)
			time.Sleep(2 * time.Second)
		}
	})
}

func checkStarts(t *testing.T, families []*dto.MetricFamily, want time.Time) {
	t.Helper()
	owned := map[string]*metric{}
	rows := table(nil)
	for i := range rows {
		if m := &rows[i]; m.compat == "" && m.owned && (m.typ == counter || m.typ == histogram) {
			owned[m.name] = m
		}
	}
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			start := startOf(m)
			switch reason, none := withoutStart[f.GetName()]; {
			case owned[f.GetName()] == nil || none:
				if start != nil {
					t.Errorf("%s has a start: %q", f.GetName(), reason)
				}
			case !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == "ml/train-0/main" }):
				if start != nil {
					t.Errorf("%s of another owner has a start: %v", f.GetName(), m.Label)
				}
				continue
			case start == nil || !start.AsTime().Equal(want):
				t.Errorf("%s began at %v, want %v", f.GetName(), start, want)
			}
			seen[f.GetName()] = true
		}
	}
	for name := range owned {
		if !seen[name] && withoutStart[name] == "" {
			t.Errorf("%s has no series of the workload", name)
		}
	}
}
