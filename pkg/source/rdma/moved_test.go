// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/qpcounter"
	"github.com/accelscope/accelscope/tests/fakes/hca"
	"github.com/accelscope/accelscope/tests/fixtures"
)

func TestVirtualFunctions(t *testing.T) {
	tr := hca.NewTree(t)
	tr.SRIOV("mlx5_1", "mlx5_2")
	tr.Put("devices/pci0000:15/0000:18:00.0/sriov_numvfs", "2\n")
	tr.Put("class/infiniband/mlx5_2/ports/1/gids/0", "fe80:0000:0000:0000:a088:c203:0000:0abc\n")
	s := newSource(t, tr)
	type function struct {
		vf                       bool
		pf, address, node, guid0 string
	}
	got := map[string]function{}
	for _, h := range mustRead(t, s).HCAs {
		got[h.Name] = function{h.VF, h.PF, h.PCIAddress, h.NodeGUID, h.Ports[0].PortGUID}
	}
	want := map[string]function{
		"mlx5_0": {false, "", "0000:18:00.0", "0xa088c20300000000", "0xa088c20300000000"},
		"mlx5_1": {true, "mlx5_0", "0000:18:00.1", "0xa088c20300000101", "0xa088c20300000201"}, // from the PF
		"mlx5_2": {true, "mlx5_0", "0000:18:00.2", "0xa088c20300000102", "0xa088c20300000abc"}, // of the port
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(function{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	eventually(t, func() bool { return len(mustRead(t, s).VFs) == 2 }) // read in the background
	// The PF is in another namespace, or belongs to a virtual machine.
	tr.Remove("devices/pci0000:15/0000:18:00.0/infiniband")
	tr.Remove("class/infiniband/mlx5_0")
	tr.Remove("devices/pci0000:15/0000:18:00.0/sriov")
	h := mustRead(t, newSource(t, tr)).HCAs[0]
	if h.Name != "mlx5_1" || !h.VF || h.PF != "" || h.Ports[0].PortGUID != "" {
		t.Errorf("without the PF: %+v", h)
	}
}

// TestCrowdedNode compares the HCAs of a full node with the written tree.
func TestCrowdedNode(t *testing.T) {
	dir := t.TempDir()
	m, err := fixtures.Write(dir, fixtures.Options{ComputeHCAs: 2, VFs: 2, InfiniBand: true, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, h := range mustRead(t, newSource(t, hca.Tree{T: t, Root: filepath.Join(dir, "sys")})).HCAs {
		got[h.Name] = fmt.Sprint(h.VF, " ", h.PF, " ", h.PCIAddress, " ", h.NodeGUID, " ", h.CharDevice)
	}
	want := map[string]string{}
	for _, h := range m.HCAs {
		want[h.Name] = fmt.Sprint(h.PhysicalFn != "", " ", h.PhysicalFn, " ", h.PCIAddress, " ", "0x"+strings.ReplaceAll(h.NodeGUID, ":", ""), " ", h.CharDevice)
	}
	if d := cmp.Diff(want, got); d != "" || len(got) != 4 {
		t.Errorf("%d HCAs (-want +got):\n%s", len(got), d)
	}
}

// exclusive is a node in the exclusive mode: netlink replies depend on the network namespace of the socket. The replies
// are constructed from the kernel headers (include/uapi/rdma/rdma_netlink.h).
type exclusive struct {
	t      *testing.T
	mode   [][]byte            // the reply to SYS_GET
	shows  map[uint64][][]byte // devices, by namespace
	refuse map[uint64]error    // error of entering the namespace
	shut   map[uint64]error    // error of opening a device in its sysfs
	hang   map[uint64]chan struct{}
	sysfs  map[uint64]hca.Tree // sysfs by namespace; a device without files has one active port
	stats  []byte              // the reply to STAT_GET, or nil
	counts []byte              // the reply to RES_GET, or nil
	dials  atomic.Int64        // number of dials into namespaces

	mu      sync.Mutex // protects the fields below and the fields that a test changes
	entered []uint64
	asked   atomic.Int64 // SYS_GET requests
	hanging atomic.Int64 // number of calls that hang or hung
}

// in returns the opener of a namespace.
func (x *exclusive) in(n model.Namespace) opener {
	return opener{
		func() (*nldev.Conn, error) { return x.dialIn(n) },
		func(device string) (int, error) { return x.openIn(n, device) },
	}
}

// openIn opens a device in a fake sysfs of the namespace.
func (x *exclusive) openIn(n model.Namespace, device string) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := errors.Join(x.refuse[n.Inode], x.shut[n.Inode]); err != nil {
		return -1, err
	}
	tr, ok := x.sysfs[n.Inode]
	if !ok {
		tr = hca.NewTree(x.t)
		for file, content := range map[string]string{
			"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
		} {
			tr.Put("class/infiniband/"+device+"/ports/1/"+file, content+"\n")
		}
	}
	return unix.Open(tr.Path("class/infiniband/"+device), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// dialIn opens a socket in a namespace, for its devices or the counters of a device.
func (x *exclusive) dialIn(n model.Namespace) (*nldev.Conn, error) {
	if c := x.hang[n.Inode]; c != nil {
		x.hanging.Add(1)
		<-c
		return nil, errOther
	}
	if err := x.refuse[n.Inode]; err != nil {
		return nil, err
	}
	x.dials.Add(1)
	shows := append(slices.Clone(x.shows[n.Inode]), hca.Done())
	return fake(x.t, func(r []byte) [][]byte {
		x.mu.Lock()
		defer x.mu.Unlock()
		var b []byte
		switch native.Uint16(r[4:]) {
		case nldev.MessageType(nldev.CmdGet):
			x.entered = append(x.entered, n.Inode)
			return shows
		case nldev.MessageType(nldev.CmdStatGet):
			b = x.stats
		case nldev.MessageType(nldev.CmdResGet):
			b = x.counts
		case nldev.MessageType(nldev.CmdPDGet):
			b = hca.Done()
		}
		if b == nil {
			b = hca.Failure(unix.EINVAL)
		}
		return [][]byte{b}
	})()
}

// counted returns the RES_GET reply of one device.
func counted(index uint32, name string, pds uint64) []byte {
	entry := func(name string, n uint64) []byte {
		return hca.Nest(nldev.AttrSummaryEntry, hca.Text(nldev.AttrSummaryName, name), hca.U64(nldev.AttrSummaryCurr, n))
	}
	return hca.Reply(nldev.CmdResGet, 0, hca.U32(nldev.AttrDevIndex, index), hca.Text(nldev.AttrDevName, name),
		hca.Nest(nldev.AttrSummary, entry("pd", pds), entry("qp", pds+1)))
}

// dial opens a socket in the namespace of the node, which shows no devices.
func (x *exclusive) dial() (*nldev.Conn, error) {
	return fake(x.t, func(r []byte) [][]byte {
		if native.Uint16(r[4:]) != nldev.MessageType(nldev.CmdSysGet) {
			return [][]byte{hca.Done()}
		}
		x.asked.Add(1)
		return x.mode
	})()
}

func mode(shared byte) [][]byte {
	return [][]byte{hca.Reply(nldev.CmdSysGet, 0, hca.Attr(nldev.AttrSharedNetns, shared))}
}

func getReply(index uint32, name string, guid uint64) []byte {
	return hca.Reply(nldev.CmdGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, index), hca.Text(nldev.AttrDevName, name), hca.U32(nldev.AttrPortIndex, 1),
		hca.Text(nldev.AttrFirmware, "28.39.3004"), hca.U64(nldev.AttrNodeGUID, guid), hca.U64(nldev.AttrSysImageGUID, 0xa088c20300000000),
		hca.Attr(nldev.AttrNodeType, 1))
}

// movedSource returns a source for tr, which lacks the devices of x.
func movedSource(t *testing.T, tr hca.Tree, x *exclusive, spaces *[]model.Namespace, change ...func(*Options)) *Source {
	t.Helper()
	x.t = t
	s := newSource(t, tr, append(change, func(o *Options) {
		o.Netlink = NewNetlink(*o)
		o.Namespaces = func() []model.Namespace { return *spaces }
	})...)
	s.isSysfs = func(string) bool { return true }
	s.dial, s.search.in = x.dial, x.in
	return s
}

// settle waits for the search that the last Read started.
func settle(t *testing.T, s *Source) {
	t.Helper()
	for range 60000 {
		s.search.mu.Lock()
		busy := s.search.pending != nil && !s.search.pending.Returned()
		s.search.mu.Unlock()
		if !busy {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the search does not end")
}

func TestMoved(t *testing.T) {
	tr := hca.NewTree(t)
	tr.SRIOV("mlx5_1", "", "")
	tr.Uverbs(42, "mlx5_2", "0000:18:00.2") // mlx5_3 has no uverbs device
	pod := hca.NewTree(t)
	pod.HCA(2, 1000)
	pod.Put("class/infiniband/mlx5_2/node_guid", "a088:c203:0000:0102\n")
	pod.Put("class/infiniband/mlx5_2/device/numa_node", "1\n")
	x := &exclusive{
		mode: mode(0),
		shows: map[uint64][][]byte{
			11: {getReply(2, "mlx5_2", 0xa088c20300000102), getReply(9, "mlx5_9", 0xdead)},
			12: {getReply(3, "mlx5_3", 0xa088c20300000103)},
		},
		sysfs:  map[uint64]hca.Tree{11: pod},
		shut:   map[uint64]error{12: unix.EPERM},
		stats:  hca.Reply(nldev.CmdStatGet, 0, statsReply()),
		counts: counted(2, "renamed", 5),
	}
	spaces := []model.Namespace{
		{Inode: 1, PID: 1, Host: true}, {Inode: 12, PID: 120}, {Inode: 11, PID: 110}, {Inode: 11, PID: 111}, {Inode: 13},
	}
	now := time.Unix(1000, 0)
	s := movedSource(t, tr, x, &spaces, func(o *Options) {
		o.Now = func() time.Time { return now }
		o.Exclude = regexp.MustCompile("mlx5_9")
	})
	mustRead(t, s)
	settle(t, s)
	snap := mustRead(t, s)
	want := []model.HCA{
		{
			Name: "mlx5_2", Index: 2, Firmware: "28.39.3004", NodeType: "CA", NodeGUID: "0xa088c20300000102",
			SysImageGUID: "0xa088c20300000002", PCIAddress: "0000:18:00.2", NUMANode: "1", CharDevice: "uverbs42",
			VF: true, PF: "mlx5_0", Netns: 11, Type: "MT4129", Board: "MT_0000000838", NodeDesc: "node-0 mlx5_2",
			Ports: []model.Port{{
				Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "InfiniBand", Netdev: "ib2", LID: "0x1", SMLID: "0x2",
				PortGUID: "0xa088c20300000002", RateBits: 400e9, Width: 4, Speed: "NDR",
				HWCounters: []model.Counter{
					{Name: "out_of_buffer", Value: 7}, {Name: "np_cnp_sent", Value: 1 << 63}, {Name: "rdma_tx_bytes", Value: 5},
				},
			}},
		},
		// This device cannot be read but is reported.
		{
			Name: "mlx5_3", Index: 3, Firmware: "28.39.3004", NodeType: "CA", NodeGUID: "0xa088c20300000103",
			SysImageGUID: "0xa088c20300000000", PCIAddress: "0000:18:00.3", NUMANode: "1", VF: true, PF: "mlx5_0", Netns: 12,
		},
	}
	for i, c := range hca.PMACounters {
		want[0].Ports[0].Counters = append(want[0].Ports[0].Counters, model.Counter{Name: c, Value: 1000 + uint64(i)})
	}
	if got := names(snap); got != "mlx5_0 mlx5_1 mlx5_2 mlx5_3" {
		t.Fatalf("HCAs %q", got)
	}
	if d := cmp.Diff(want, snap.HCAs[2:]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := states(snap); got != "mlx5_0=ok mlx5_1=ok mlx5_2=ok mlx5_3=failed names=unsupported" || snap.DeviceStates[2].Reason != "" {
		t.Errorf("states %s: %+v", got, snap.DeviceStates)
	}
	// Resources that the own namespace hides are read in the namespace of the device.
	resources := []model.Resource{{Device: "mlx5_2", Type: model.PD, Count: 5}, {Device: "mlx5_2", Type: model.QP, Count: 6}}
	if d := cmp.Diff(resources, snap.Resources); d != "" {
		t.Errorf("resources (-want +got):\n%s", d)
	}
	// The counters are from the time of the Read.
	pod.Put("class/infiniband/mlx5_2/ports/1/counters/port_xmit_data", "77\n")
	x.mu.Lock()
	delete(x.shut, 12)
	x.mu.Unlock()
	dials := x.dials.Load()
	snap = mustRead(t, s)
	if c := snap.HCAs[2].Ports[0].Counters; !slices.Contains(c, model.Counter{Name: "port_xmit_data", Value: 77}) || x.dials.Load() != dials+1 {
		t.Errorf("counters %v, %d sockets", c, x.dials.Load()-dials)
	}
	if p := snap.HCAs[3].Ports; len(p) != 1 || p[0].State != "ACTIVE" || snap.HCAs[3].Netns != 12 {
		t.Errorf("mlx5_3: %+v", snap.HCAs[3])
	}
	if d := cmp.Diff([]uint64{11, 12}, slices.Sorted(slices.Values(x.entered))); d != "" {
		t.Errorf("entered (-want +got):\n%s", d)
	}
	if names, err := s.DeviceNames(t.Context()); err != nil || names[3] != "mlx5_3" {
		t.Errorf("names by index %v, %v", names, err)
	}

	// The device moved to another namespace or came back: its descriptors are closed.
	old := s.moved["mlx5_2"]
	shows := x.shows[11]
	x.shows[11], x.shows[12] = nil, append(x.shows[12], shows...)
	x.sysfs[12] = pod
	pod.HCA(3, 5)
	now = now.Add(movedEvery)
	mustRead(t, s)
	settle(t, s)
	if snap = mustRead(t, s); snap.HCAs[2].Name != "mlx5_2" || snap.HCAs[2].Netns != 12 || old.files.IsOpen() {
		t.Errorf("after another move: %+v, open %v", snap.HCAs[2], old.files.IsOpen())
	}
	x.shows[11], x.shows[12] = shows, x.shows[12][:1]
	now = now.Add(movedEvery)
	mustRead(t, s)
	settle(t, s)
	x.asked.Store(1)

	// No search before it is due, unless the namespaces change.
	read := func() string {
		t.Helper()
		mustRead(t, s)
		settle(t, s)
		return names(mustRead(t, s))
	}
	now = now.Add(movedEvery - 1)
	if read(); x.asked.Load() != 1 {
		t.Errorf("%d searches", x.asked.Load())
	}
	now = now.Add(1)
	if read(); x.asked.Load() != 2 {
		t.Errorf("%d searches", x.asked.Load())
	}
	// Devices of an ended namespace disappear at once.
	spaces = spaces[:2]
	if got := names(mustRead(t, s)); got != "mlx5_0 mlx5_1 mlx5_3" {
		t.Errorf("HCAs %q", got)
	}
	if settle(t, s); x.asked.Load() != 3 {
		t.Errorf("%d searches", x.asked.Load())
	}
	// In the shared mode no device is moved.
	x.mode = mode(1)
	now = now.Add(movedEvery)
	if got := read(); got != "mlx5_0 mlx5_1" {
		t.Errorf("HCAs %q", got)
	}
}

// TestMovedResources: a failing RES_GET omits the resources of this device and backs off.
func TestMovedResources(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	pod := hca.NewTree(t)
	pod.HCA(2, 1)
	x := &exclusive{
		mode: mode(0), shows: map[uint64][][]byte{11: {getReply(2, "mlx5_2", 0xa088c20300000002)}}, sysfs: map[uint64]hca.Tree{11: pod},
		stats: hca.Reply(nldev.CmdStatGet, 0, statsReply()),
	}
	now := time.Unix(1000, 0)
	s := movedSource(t, tr, x, &[]model.Namespace{{Inode: 11, PID: 110}}, func(o *Options) {
		o.Now = func() time.Time { return now }
	})
	mustRead(t, s)
	settle(t, s)
	for range failsBeforePause {
		snap := mustRead(t, s)
		if st := snap.DeviceStates[1]; st.State != model.StateOK || !strings.Contains(st.Reason, "the first is RES_GET: ") {
			t.Errorf("%+v", st)
		}
		if names(snap) != "mlx5_0 mlx5_2" || snap.Resources == nil || len(snap.Resources) != 0 {
			t.Errorf("%s: resources %+v", names(snap), snap.Resources)
		}
	}
	x.mu.Lock()
	x.counts = counted(2, "mlx5_2", 5)
	x.mu.Unlock()
	if snap := mustRead(t, s); len(snap.Resources) != 0 {
		t.Errorf("no backoff: %+v", snap.Resources)
	}
	now = now.Add(shortestPause)
	mustRead(t, s)
	settle(t, s)
	if snap := mustRead(t, s); len(snap.Resources) != 2 || snap.DeviceStates[1].Reason != "" {
		t.Errorf("%+v %+v", snap.Resources, snap.DeviceStates)
	}
}

// TestMovedCounters: the bytes of bound queue pairs of a moved device are credited.
func TestMovedCounters(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	pod := hca.NewTree(t)
	pod.HCA(2, 1)
	k := &boundKernel{t: t, index: 5, name: "mlx5_2", guid: 0xa088c20300000002}
	x := &exclusive{mode: mode(0), sysfs: map[uint64]hca.Tree{11: pod}}
	s := movedSource(t, tr, x, &[]model.Namespace{{Inode: 11, PID: 110}}, func(o *Options) {
		o.QPCounters, o.CgroupOf = qpcounter.ModeUse, cgroupOfPID
	})
	s.search.in = func(n model.Namespace) opener { return opener{k.dial, x.in(n).open} }
	k.tx.Store(1000)
	mustRead(t, s)
	settle(t, s)
	mustRead(t, s)
	k.tx.Store(1003)
	if got := qpTraffic(t, s); got != "mlx5_2 101 transmit 3" {
		t.Error(got)
	}
}

func TestNoMovedDevices(t *testing.T) {
	for name, reply := range map[string][][]byte{
		"shared":           mode(1),
		"before Linux 5.2": {hca.Failure(unix.EOPNOTSUPP)},
		"no attribute":     {hca.Reply(nldev.CmdSysGet, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			tr := hca.NewTree(t)
			tr.HCA(0, 1)
			x := &exclusive{mode: reply, shows: map[uint64][][]byte{11: {getReply(2, "mlx5_2", 1)}}}
			s := movedSource(t, tr, x, &[]model.Namespace{{Inode: 11, PID: 110}})
			mustRead(t, s)
			settle(t, s)
			if snap := mustRead(t, s); names(snap) != "mlx5_0" || states(snap) != "mlx5_0=ok" || x.asked.Load() != 1 {
				t.Errorf("%q %q, %d requests", names(snap), states(snap), x.asked.Load())
			}
			if len(x.entered) > 0 {
				t.Errorf("entered %v", x.entered)
			}
		})
	}
}

// TestAllMoved: a node with all HCAs in pods has HCAs. A node without drivers gets no netlink request.
func TestAllMoved(t *testing.T) {
	tr := hca.NewTree(t)
	pod := hca.NewTree(t)
	pod.Put("class/infiniband/mlx5_2/node_guid", "a088:c203:0000:0102\n")
	x := &exclusive{
		mode:  mode(0),
		shows: map[uint64][][]byte{11: {getReply(2, "mlx5_2", 0xa088c20300000102)}},
		sysfs: map[uint64]hca.Tree{11: pod},
	}
	s := movedSource(t, tr, x, &[]model.Namespace{{Inode: 11, PID: 110}})
	if _, err := s.Read(t.Context()); err != nil && !errors.Is(err, model.ErrAbsent) {
		t.Error(err)
	}
	settle(t, s)
	snap := mustRead(t, s)
	if h := snap.HCAs; len(h) != 1 || h[0].NodeGUID != "0xa088c20300000102" || h[0].PCIAddress != "" || h[0].VF {
		t.Errorf("HCAs %+v", h)
	}
	tr.Remove("class/infiniband")
	s.search.began = time.Time{}
	before := x.asked.Load()
	for range 2 {
		if _, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
			t.Errorf("without drivers: %v", err)
		}
		settle(t, s)
	}
	if x.asked.Load() != before {
		t.Error("sent a netlink request, which loads ib_core")
	}
}

// TestBadNamespaces: an unreadable namespace does not affect others, and the reason names the
// missing capability.
func TestBadNamespaces(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	hang := make(chan struct{})
	x := &exclusive{
		mode:  mode(0),
		shows: map[uint64][][]byte{11: {getReply(2, "mlx5_2", 1)}, 12: {getReply(3, "mlx5_3", 1), {1, 2, 3}}},
		refuse: map[uint64]error{
			13: errOther, 14: fmt.Errorf("setns: %w: add CAP_SYS_ADMIN", unix.EPERM),
		},
		hang: map[uint64]chan struct{}{10: hang},
	}
	spaces := []model.Namespace{{Inode: 10, PID: 1}, {Inode: 11, PID: 1}, {Inode: 12, PID: 1}, {Inode: 13, PID: 1}, {Inode: 14, PID: 1}}
	now := time.Unix(1000, 0)
	s := movedSource(t, tr, x, &spaces, func(o *Options) {
		o.Deadline = 3 * time.Second
		o.Now = func() time.Time { return now }
	})
	start := time.Now()
	mustRead(t, s)
	if took := time.Since(start); took >= s.opt.Deadline {
		t.Errorf("a Read took %v: it waited", took)
	}
	settle(t, s)
	snap := mustRead(t, s)
	// Devices before the garbage are kept.
	if got := names(snap); got != "mlx5_0 mlx5_2 mlx5_3" || states(snap) != "mlx5_0=ok mlx5_2=ok mlx5_3=ok netns=failed" {
		t.Errorf("HCAs %q, states %q", got, states(snap))
	}
	if reason := snap.DeviceStates[3].Reason; !strings.HasPrefix(reason, "3 of 5 network namespaces could not be searched") {
		t.Errorf("reason %q", reason)
	}
	// While the call hangs, no other call is started for the namespace. Then the call returns.
	now = now.Add(movedEvery)
	mustRead(t, s)
	settle(t, s)
	close(hang)
	spaces = []model.Namespace{{Inode: 11, PID: 1}, {Inode: 14, PID: 1}}
	mustRead(t, s)
	settle(t, s)
	snap = mustRead(t, s)
	if d := snap.DeviceStates; len(d) != 3 || !strings.Contains(d[2].Reason, "CAP_SYS_ADMIN") {
		t.Errorf("states %+v", d)
	}
	spaces = spaces[:1]
	mustRead(t, s)
	settle(t, s)
	if snap = mustRead(t, s); states(snap) != "mlx5_0=ok mlx5_2=ok" || names(snap) != "mlx5_0 mlx5_2" {
		t.Errorf("HCAs %q, states %q", names(snap), states(snap))
	}
}

// TestManyHang: a search ends before hanging calls use up the threads.
func TestManyHang(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	never := make(chan struct{})
	x := &exclusive{mode: mode(0), hang: map[uint64]chan struct{}{}}
	var spaces []model.Namespace
	for i := range uint64(maxNamespaces + 100) {
		spaces = append(spaces, model.Namespace{Inode: 100 + i, PID: 1})
		x.hang[100+i] = never
	}
	s := movedSource(t, tr, x, &spaces, func(o *Options) { o.Deadline = 50 * time.Millisecond })
	s.opt.Deadline = time.Minute // only the search must time out
	mustRead(t, s)
	settle(t, s)
	snap := mustRead(t, s)
	if reason := snap.DeviceStates[1].Reason; !strings.Contains(reason, "1024 of 1024") || !strings.Contains(reason, "100 of 1124") {
		t.Errorf("reason %q", reason)
	}
	if hung := x.hanging.Load(); hung == 0 || hung > hang.MaxHanging {
		t.Errorf("%d hang", hung)
	}
	close(never)
}

// TestStuckSearch: SYS_GET hangs.
func TestStuckSearch(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	now := time.Unix(1000, 0)
	hang := make(chan struct{})
	x := &exclusive{mode: mode(0)}
	s := movedSource(t, tr, x, &[]model.Namespace{{Inode: 11, PID: 1}}, func(o *Options) {
		o.Now = func() time.Time { return now }
	})
	var dials atomic.Int64
	s.dial = func() (*nldev.Conn, error) {
		if dials.Add(1) > 0 {
			<-hang
		}
		return x.dial()
	}
	s.node = &node{complete: true, opener: s.opener()} // readNode sends no request
	s.opt.Deadline = 10 * time.Millisecond
	_, _ = s.Read(t.Context())
	now = now.Add(movedStuck + time.Second)
	snap, _ := s.Read(t.Context())
	if d := snap.DeviceStates[len(snap.DeviceStates)-1]; d.Device != "netns" || d.State != model.StateStuck {
		t.Errorf("states %+v", snap.DeviceStates)
	}
	close(hang)
	settle(t, s)
}

// statsReply is the payload of a reply to STAT_GET, with a refused and an optional counter.
func statsReply() []byte {
	counter := func(name string, v uint64, more ...[]byte) []byte {
		return hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, name), hca.U64(nldev.AttrHWValue, v), slices.Concat(more...))
	}
	return slices.Concat(hca.U32(nldev.AttrDevIndex, 3), hca.Text(nldev.AttrDevName, "mlx5_0"), hca.U32(nldev.AttrPortIndex, 1), hca.Nest(nldev.AttrHWCounters,
		counter("out_of_buffer", 7), counter("np_cnp_sent", 1<<63), counter("rdma_tx_bytes", 5, hca.U32(94, 31), hca.Attr(95, 1)),
		counter("bad/name", 9)))
}
