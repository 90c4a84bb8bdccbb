// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// fake is a source with fixed answers.
type fake struct {
	name  string
	facts model.Snapshot
	err   error
	read  func(context.Context) (model.Snapshot, error) // instead of facts and err

	mu     sync.Mutex
	reads  int
	closed int
}

func (f *fake) Name() string { return f.name }

func (f *fake) Read(ctx context.Context) (model.Snapshot, error) {
	f.mu.Lock()
	f.reads++
	f.mu.Unlock()
	if f.read != nil {
		return f.read(ctx)
	}
	return f.facts, f.err
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// fakeNames is a fake Resolver.
type fakeNames struct {
	fake
	resolve  func(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error)
	onForget func([]model.CgroupID)
}

func (f *fakeNames) Resolve(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
	return f.resolve(ctx, ids)
}

func (f *fakeNames) Forget(cgroups []model.CgroupID) { f.onForget(cgroups) }

// fakeForgetter is a fake Forgetter.
type fakeForgetter struct {
	fake
	onForget func([]model.CgroupID)
}

func (f *fakeForgetter) Forget(cgroups []model.CgroupID) { f.onForget(cgroups) }

func names(entities map[model.CgroupID]identitytest.Entity) *fakeNames {
	return &fakeNames{
		fake: fake{name: "cgroup"},
		resolve: func(_ context.Context, ids []model.CgroupID) (model.Snapshot, error) {
			unresolved := uint64(0)
			known := map[model.CgroupID]identitytest.Entity{}
			for _, id := range ids {
				if e, ok := entities[id]; ok {
					known[id] = e
				} else {
					unresolved++
				}
			}
			s := *identitytest.Facts(known)
			s.UnresolvedCgroups = &unresolved
			return s, nil
		},
		onForget: func([]model.CgroupID) {},
	}
}

// nodeHCAs returns an InfiniBand HCA with all attributes, a RoCE HCA without counters/ and with invalid counter names,
// and a port that is down.
func nodeHCAs() model.Snapshot {
	return model.Snapshot{
		HCAs: []model.HCA{
			{
				Name: "mlx5_0", Firmware: "28.39.1002", Board: "MT_0000000838", Type: "MT4129", NodeType: "CA",
				NodeGUID: "0x946dae0300123456", SysImageGUID: "0x946dae0300123456", NodeDesc: "gpu01 mlx5_0",
				PCIAddress: "0000:18:00.0", NUMANode: "0", CharDevice: "uverbs0",
				Ports: []model.Port{{
					Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "InfiniBand", LID: "0x1", SMLID: "0x1",
					PortGUID: "0x946dae0300123456", RateBits: 400e9, Width: 4, Speed: "NDR",
					GIDs:  []model.GID{{Type: model.GIDInfiniBand, Address: netip.MustParseAddr("fe80::946d:ae03:12:3456")}},
					PKeys: []model.PKey{{Partition: model.DefaultPartition}, {Index: 3, Partition: 0x12, Full: true}}, SMChanges: 2,
					Counters: []model.Counter{
						{Name: "port_rcv_data", Value: 1000},
						{Name: "port_xmit_data", Value: 2000},
						{Name: "port_rcv_packets", Value: 10},
						{Name: "port_xmit_packets", Value: 20},
						{Name: "unicast_rcv_packets", Value: 9},
						{Name: "unicast_xmit_packets", Value: 19},
						{Name: "multicast_rcv_packets", Value: 1},
						{Name: "multicast_xmit_packets", Value: 1},
						{Name: "port_xmit_wait", Value: 77},
						{Name: "symbol_error", Value: 0},
						{Name: "link_error_recovery", Value: 1},
						{Name: "link_downed", Value: 2},
						{Name: "port_rcv_errors", Value: 3},
						{Name: "VL15_dropped", Value: 4},
					},
					HWCounters: []model.Counter{
						{Name: "out_of_buffer", Value: 5},
						{Name: "np_cnp_sent", Value: 6},
						{Name: "np_cnp_sent", Value: 7}, // listed twice
					},
				}},
				HWCounters: []model.Counter{{Name: "cmds_err", Value: 1}},
			},
			{
				Name: "rocep1s0", CharDevice: "uverbs1", NodeType: "CA",
				Ports: []model.Port{{
					Number: 1, State: "DOWN", PhysState: "Disabled", LinkLayer: "Ethernet", Netdev: "ens1",
					GIDs: []model.GID{ // only the link-local address
						{Index: 0, Type: model.GIDRoCEv1, Address: netip.MustParseAddr("fe80::1"), Netdev: "ens1"},
						{Index: 1, Type: model.GIDRoCEv2, Address: netip.MustParseAddr("fe80::1"), Netdev: "ens1"},
					},
					HWCounters: []model.Counter{
						{Name: "out_of_buffer", Value: 0},
						{Name: "rx-odd name", Value: 1},
						{Name: "rx_odd_name", Value: 2}, // equal to the previous name after it is made valid
						{Name: "", Value: 3},
					},
				}},
			},
		},
		Resources: []model.Resource{
			{Device: "mlx5_0", Type: model.PD, Count: 4},
			{Device: "mlx5_0", Type: model.CQ, Count: 9},
			{Device: "mlx5_0", Type: model.QP, Count: 12},
			{Device: "mlx5_0", Type: model.MR, Count: 5},
			{Device: "mlx5_0", Type: model.Context, Count: 3},
			{Device: "rocep1s0", Type: model.QP, Count: 1},
		},
		DeviceStates: []model.DeviceState{{Source: "rdma", Device: "mlx5_0", State: model.StateOK}},
	}
}

func created(id model.CgroupID, device string, typ model.ObjectType, n uint64) model.Series[model.ObjectKey, model.Count] {
	return model.Series[model.ObjectKey, model.Count]{
		Cgroup: id, Key: model.ObjectKey{Device: device, Type: typ}, Value: model.Count(n),
	}
}

func verbs(id model.CgroupID, device, verb string, h model.Histogram) model.Series[model.VerbKey, model.Histogram] {
	return model.Series[model.VerbKey, model.Histogram]{Cgroup: id, Key: model.VerbKey{Device: device, Verb: verb}, Value: h}
}

func verbErrors(id model.CgroupID, device, verb, errno string, n uint64) model.Series[model.VerbErrorKey, model.Count] {
	return model.Series[model.VerbErrorKey, model.Count]{
		Cgroup: id, Key: model.VerbErrorKey{Device: device, Verb: verb, Errno: errno}, Value: model.Count(n),
	}
}

// probeFacts returns three workloads and a cgroup without a name.
func probeFacts() model.Snapshot {
	latency := model.Histogram{Count: 7, Sum: 20e6}
	latency.Buckets[6], latency.Buckets[7], latency.Buckets[14] = 4, 2, 1
	slow := model.Histogram{Count: 1, Sum: 100e9}
	slow.Buckets[model.HistogramBuckets-1] = 1
	return model.Snapshot{
		Objects: []model.Objects{
			{Cgroup: 101, Device: "mlx5_0", Type: model.QP, Current: 6},
			{Cgroup: 101, Device: "mlx5_0", Type: model.MR, Current: 2},
			{Cgroup: 102, Device: "mlx5_0", Type: model.QP, Current: 1},
			{Cgroup: 103, Device: "mlx5_0", Type: model.QP, Current: 2},
			{Cgroup: 103, Device: "mlx5_0", Type: model.DEVXObj, Current: 3},
			{Cgroup: 999, Device: "mlx5_0", Type: model.QP, Current: 1},
		},
		Created: []model.Series[model.ObjectKey, model.Count]{
			created(101, "mlx5_0", model.QP, 8), created(101, "mlx5_0", model.MR, 2), created(102, "mlx5_0", model.QP, 1),
			created(103, "mlx5_0", model.QP, 5), created(103, "mlx5_0", model.DEVXObj, 3), created(999, "mlx5_0", model.QP, 1),
		},
		Registered: []model.Registered{
			{Cgroup: 101, Device: "mlx5_0", Memory: model.HostMemory, Bytes: 1 << 20},
			{Cgroup: 101, Device: "mlx5_0", Memory: model.GPUMemory, Bytes: 1 << 30},
		},
		Verbs: []model.Series[model.VerbKey, model.Histogram]{
			verbs(101, "mlx5_0", "reg_mr", latency), verbs(102, "mlx5_0", "create_qp", slow),
		},
		OwnerLosses: []model.Series[model.LossKey, model.Count]{
			{Cgroup: 101, Key: model.LossKey{Reason: "verbs_map_share"}, Value: 4},
		},
		VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{verbErrors(101, "mlx5_0", "reg_mr", "ENOMEM", 3)},
		Hooks: []model.Hook{
			{Name: "ib_uverbs_ioctl", Tier: "fentry", State: model.StateOK},
			{Name: "ib_umem_dmabuf_get", State: model.StateUnsupported, Reason: "no such function"},
		},
		Maps:    []model.Map{{Name: "objects", Entries: 6, Capacity: 16384}},
		Losses:  []model.Loss{{Reason: "map_full", Count: 0}},
		Repairs: []model.Repair{{Change: "added", Count: 1}, {Change: "removed", Count: 0}},
		Children: []model.ChildProcesses{
			{Source: "nvidia", Ends: []model.Loss{{Reason: "crash", Count: 2}, {Reason: "hang", Count: 1}}, Stuck: 1},
		},
	}
}

func nodeNames() map[model.CgroupID]identitytest.Entity {
	return map[model.CgroupID]identitytest.Entity{
		101: {
			Workload: "ml/train-0/main", Namespace: "ml", Pod: "train-0", Container: "main", ContainerID: "0a1b",
			PodUID: "11111111-2222", Runtime: "containerd", Cgroup: "/kubepods/pod11111111-2222/0a1b",
		},
		102: {Workload: "slurm:42", Runtime: "slurm", Step: "0", Cgroup: "/slurm/job_42/step_0"},
		103: {Workload: "slurm:42", Runtime: "slurm", Step: "1", Cgroup: "/slurm/job_42/step_1"},
	}
}

// pciFacts are a function with errors at both ends of its link, a suspended function, and a function that is not an HCA
// or GPU.
func pciFacts() model.Snapshot {
	link := model.PCILink{Speed: 16e9, MaxSpeed: 32e9, Width: 8, MaxWidth: 16}
	return model.Snapshot{PCI: []model.PCIFunction{
		{
			Address: "0000:18:00.0",
			PCIEnd: model.PCIEnd{Link: link, AER: []model.AERErrors{
				{Severity: "correctable", Total: 4, Types: []model.Counter{{Name: "RxErr", Value: 3}}}, {Severity: "nonfatal"}, {Severity: "fatal"},
			}},
			Upstream: model.PCIUpstream{
				Address: "0000:15:01.0", SlotPower: model.Some(75),
				PCIEnd: model.PCIEnd{
					Link: model.PCILink{Speed: 16e9, MaxSpeed: 16e9, Width: 8, MaxWidth: 16},
					AER:  []model.AERErrors{{Severity: "correctable", Total: 2, Types: []model.Counter{{Name: "BadTLP", Value: 2}}}},
				},
			},
		},
		{Address: "0000:2a:00.0"},
		{Address: "0000:99:00.0", PCIEnd: model.PCIEnd{Link: link}},
	}}
}

func cgroupFacts() model.Snapshot {
	return model.Snapshot{RDMACgroups: []model.RDMACgroup{{Cgroup: 101, Device: "mlx5_0", Handles: 1, Objects: 9}}}
}

func node() []engine.Registration {
	n := names(nodeNames())
	n.facts = cgroupFacts()
	return []engine.Registration{
		{Source: &fake{name: "rdma", facts: nodeHCAs()}},
		{Source: &fake{name: "probe", facts: probeFacts()}},
		{Source: n},
		{Source: &fake{name: "pci", facts: pciFacts()}},
	}
}

func hangs(release <-chan struct{}) func(context.Context) (model.Snapshot, error) {
	return func(context.Context) (model.Snapshot, error) {
		<-release
		return model.Snapshot{}, fmt.Errorf("released")
	}
}
