// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/hca"
)

// vfInfo is an IFLA_VF_INFO as the kernel writes it (net/core/rtnetlink.c), with
// statistics and, for InfiniBand, GUIDs.
func vfInfo(number uint32, stats [4]uint64, guids ...uint64) []byte {
	num := native.AppendUint32(nil, number)
	parts := [][]byte{hca.Attr(unix.IFLA_VF_MAC, append(slices.Clone(num), make([]byte, 32)...)...)}
	parts = append(parts, hca.Attr(unix.IFLA_VF_VLAN, append(slices.Clone(num), make([]byte, 8)...)...))
	for i, g := range guids {
		parts = append(parts, hca.Attr(uint16(unix.IFLA_VF_IB_NODE_GUID+i),
			native.AppendUint64(append(slices.Clone(num), 0, 0, 0, 0), g)...))
	}
	parts = append(parts, hca.Attr(unix.IFLA_VF_STATS, slices.Concat(
		hca.U64(unix.IFLA_VF_STATS_RX_PACKETS, stats[0]), hca.U64(unix.IFLA_VF_STATS_TX_PACKETS, stats[1]),
		hca.U64(unix.IFLA_VF_STATS_RX_BYTES, stats[2]), hca.U64(unix.IFLA_VF_STATS_TX_BYTES, stats[3]),
		hca.Attr(unix.IFLA_VF_STATS_PAD), hca.U64(unix.IFLA_VF_STATS_RX_DROPPED, 9))...))
	return hca.Attr(unix.IFLA_VF_INFO, slices.Concat(parts...)...)
}

func newLink(parent string, count uint32, vfs ...[]byte) []byte {
	return hca.Message(unix.RTM_NEWLINK, 0, 1, make([]byte, unix.SizeofIfInfomsg), hca.Text(unix.IFLA_IFNAME, "ib0"),
		hca.U32(unix.IFLA_NUM_VF, count), hca.Attr(unix.IFLA_VFINFO_LIST, slices.Concat(vfs...)...),
		hca.Text(unix.IFLA_PARENT_DEV_NAME, parent))
}

// pf is a node with a PF, whose interfaces answer RTM_GETLINK from answers.
type pf struct {
	hca.Tree
	*Source
	now     time.Time
	asked   atomic.Int64
	answers map[string][]byte // by name
}

func newPF(t *testing.T, interfaces []string, names ...string) *pf {
	p := &pf{Tree: hca.NewTree(t), now: time.Unix(1000, 0), answers: map[string][]byte{}}
	p.SRIOV(names...)
	const function = "devices/pci0000:15/0000:18:00.0"
	p.Put(function+"/sriov_numvfs", fmt.Sprintf("%d\n", len(names)))
	for _, n := range interfaces {
		p.Dir(function + "/net/" + n)
	}
	p.Source = newSource(t, p.Tree, func(o *Options) {
		o.Netlink = NewNetlink(*o)
		o.Now = func() time.Time { return p.now }
	})
	p.isSysfs = func(string) bool { return true }
	p.dial = fake(t, func([]byte) [][]byte { return [][]byte{hca.Done()} })
	p.dialLink = fake(t, func(r []byte) [][]byte {
		p.asked.Add(1)
		a := netlink.Parse(r[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:])
		for a.Next() {
			if a.Type == unix.IFLA_IFNAME && p.answers[string(a.Text())] != nil {
				return [][]byte{p.answers[string(a.Text())]}
			}
		}
		return [][]byte{hca.Failure(unix.ENODEV)}
	})
	return p
}

// look reads until the result is from the current time.
func (p *pf) look(t *testing.T) model.Snapshot {
	t.Helper()
	settleFunctions(t, p.Source)
	p.now = p.now.Add(functionsEvery)
	mustRead(t, p.Source)
	settleFunctions(t, p.Source)
	return mustRead(t, p.Source)
}

func settleFunctions(t *testing.T, s *Source) {
	t.Helper()
	for range 60000 {
		if p := s.functions.pending; p == nil || p.Returned() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the read does not end")
}

// TestVFs: one VF is an HCA of the namespace, one is in a container or virtual machine, and one has a GUID only in the
// files of the vendor's driver.
func TestVFs(t *testing.T) {
	p := newPF(t, []string{"ib7", "ib0.8001", "ib0"}, "mlx5_1", "", "")
	p.Put("class/infiniband/mlx5_1/ports/1/counters/port_xmit_data", "5\n")
	p.answers["ib0"] = newLink("0000:18:00.0", 3,
		vfInfo(0, [4]uint64{1, 2, 3, 4}, 0xaa01, 0xaa02),
		vfInfo(1, [4]uint64{10, 20, 3000, 4000}, 0xa088c20300001101, 0xa088c20300001201),
		vfInfo(2, [4]uint64{}, 0, 0))
	if snap := mustRead(t, p.Source); snap.VFs != nil {
		t.Errorf("before the first read: %+v", snap.VFs)
	}
	snap := p.look(t)
	want := []model.VF{
		{PF: "mlx5_0", Number: 0, PCIAddress: "0000:18:00.1", NodeGUID: "0xa088c20300000101", PortGUID: "0xa088c20300000201"},
		{
			PF: "mlx5_0", Number: 1, PCIAddress: "0000:18:00.2", NodeGUID: "0xa088c20300001101", PortGUID: "0xa088c20300001201",
			Counted: true, TransmitBytes: 4000, ReceiveBytes: 3000, TransmitPackets: 20, ReceivePackets: 10, Look: 2,
		},
		{
			PF: "mlx5_0", Number: 2, PCIAddress: "0000:18:00.3", NodeGUID: "0xa088c20300000103", PortGUID: "0xa088c20300000203",
			Counted: true, Look: 2,
		},
	}
	if d := cmp.Diff(want, snap.VFs); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := states(snap); got != "mlx5_0=ok mlx5_1=ok" {
		t.Errorf("states %s", got)
	}
	// The interface of the port is known; it is not asked again before it is due.
	asked := p.asked.Load()
	p.now = p.now.Add(functionsEvery - 1)
	for range 3 {
		if d := cmp.Diff(want, mustRead(t, p.Source).VFs); d != "" {
			t.Errorf("without another read (-want +got):\n%s", d)
		}
	}
	settleFunctions(t, p.Source)
	if p.asked.Load() != asked {
		t.Error("asked before it was due")
	}
	if p.look(t); p.asked.Load() != asked+1 {
		t.Errorf("%d requests for one read", p.asked.Load()-asked)
	}
	// All are zero after they were counted: they are still counted.
	p.answers["ib0"] = newLink("", 3, vfInfo(0, [4]uint64{}), vfInfo(1, [4]uint64{}), vfInfo(2, [4]uint64{}))
	if v := p.look(t).VFs; !v[1].Counted || v[1].ReceiveBytes != 0 || v[1].Look != 4 || v[0].Look != 0 {
		t.Errorf("zeroes after other values: %+v", v[1])
	}
	// Without VFs, no request is sent, and the result is empty.
	p.Put("devices/pci0000:15/0000:18:00.0/sriov_numvfs", "0\n")
	asked = p.asked.Load()
	if v := p.look(t).VFs; v == nil || len(v) > 0 || p.asked.Load() != asked {
		t.Errorf("%+v, asked %d times", v, p.asked.Load()-asked)
	}
}

// TestShownVFs: VFs that the namespace shows are not requested, because they have port counters.
func TestShownVFs(t *testing.T) {
	p := newPF(t, []string{"ib0"}, "mlx5_1", "mlx5_2")
	for _, n := range []string{"mlx5_1", "mlx5_2"} {
		p.Put("class/infiniband/"+n+"/ports/1/counters/port_xmit_data", "5\n")
	}
	p.answers["ib0"] = newLink("", 2, vfInfo(0, [4]uint64{1, 1, 1, 1}), vfInfo(1, [4]uint64{1, 1, 1, 1}))
	if v := p.look(t).VFs; len(v) != 2 || v[0].Counted || v[1].Counted || p.asked.Load() != 0 {
		t.Errorf("%+v, asked %d times", v, p.asked.Load())
	}
	// One VF goes to a virtual machine.
	link, err := os.Readlink(p.Path("class/infiniband/mlx5_2"))
	if err != nil {
		t.Fatal(err)
	}
	p.Remove("class/infiniband/mlx5_2")
	if v := p.look(t).VFs; len(v) != 2 || v[0].Counted || !v[1].Counted || p.asked.Load() == 0 {
		t.Errorf("%+v, asked %d times", v, p.asked.Load())
	}
	// The VF comes back: the traffic that its port counts is not reported twice, not even before the next read.
	settleFunctions(t, p.Source)
	p.Link("class/infiniband/mlx5_2", link)
	snap := mustRead(t, p.Source)
	if v := snap.VFs; names(snap) != "mlx5_0 mlx5_1 mlx5_2" || v[1].Counted || v[1].ReceiveBytes != 0 {
		t.Errorf("%s: %+v", names(snap), v)
	}
}

// TestUncountedVFs: the kernel reports zeroes for a driver that does not count.
func TestUncountedVFs(t *testing.T) {
	p := newPF(t, []string{"ens1"}, "", "")
	p.answers["ens1"] = newLink("", 2, vfInfo(0, [4]uint64{}, 1, 2), vfInfo(1, [4]uint64{}))
	if v := p.look(t).VFs; len(v) != 2 || v[0].Counted || v[1].Counted || v[0].NodeGUID != "0x0000000000000001" {
		t.Errorf("%+v", v)
	}
}

// TestWrongInterfaces: three interfaces are not used: an interface of another function, a representor, and an interface
// that is not in this network namespace (sysfs shows another namespace).
func TestWrongInterfaces(t *testing.T) {
	figures := vfInfo(0, [4]uint64{1, 1, 1, 1})
	for name, answer := range map[string][]byte{
		"of another function": newLink("0000:99:00.0", 1, figures),
		"of another number":   newLink("", 2, figures, figures),
		"representor":         hca.Message(unix.RTM_NEWLINK, 0, 1, make([]byte, 16), hca.U32(unix.IFLA_NUM_VF, 1)),
		"not there":           nil,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPF(t, []string{"ib1", "a-longer-name"}, "")
			p.answers["ib1"] = answer
			if v := p.look(t).VFs; len(v) != 1 || v[0].Counted {
				t.Errorf("%+v", v)
			}
			p.answers["a-longer-name"] = newLink("0000:18:00.0", 1, figures)
			if v := p.look(t).VFs; len(v) != 1 || !v[0].Counted {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestBadVFs: a failure is reported, affects no other fact, and pauses the requests.
func TestBadVFs(t *testing.T) {
	p := newPF(t, []string{"ib0"}, "")
	p.answers["ib0"] = hca.Failure(unix.EPERM)
	for range failsBeforePause {
		snap := p.look(t)
		if len(snap.VFs) != 1 || snap.VFs[0].Counted || states(snap) != "mlx5_0=ok sriov=failed" ||
			!strings.Contains(snap.DeviceStates[1].Reason, "virtual functions of mlx5_0: ib0: rtnetlink: ") {
			t.Errorf("%+v %+v", snap.VFs, snap.DeviceStates)
		}
	}
	p.answers["ib0"] = newLink("", 1, vfInfo(0, [4]uint64{1, 1, 1, 1}))
	if snap := p.look(t); snap.VFs[0].Counted || states(snap) != "mlx5_0=ok sriov=failed" {
		t.Errorf("at once: %+v", snap.DeviceStates)
	}
	p.now = p.now.Add(shortestPause)
	if snap := p.look(t); !snap.VFs[0].Counted || states(snap) != "mlx5_0=ok" {
		t.Errorf("later: %+v", snap.DeviceStates)
	}
	// A Read does not wait for a driver that hangs.
	block := make(chan struct{})
	p.dialLink = func() (*nldev.Conn, error) { <-block; return nil, errors.New("gone") }
	p.opt.Deadline = time.Second
	if snap := p.look(t); !strings.Contains(snap.DeviceStates[1].Reason, "no answer in time") {
		t.Errorf("%+v", snap.DeviceStates)
	}
	close(block)
}

// TestManyVFs: the list is longer than the 16 bits of an attribute's length. The kernel writes all functions, and the
// lower 16 bits of the length.
func TestManyVFs(t *testing.T) {
	const n = 520
	var vfs []byte
	for i := range n {
		vfs = append(vfs, vfInfo(uint32(i), [4]uint64{1, 1, 1, uint64(i)})...)
	}
	if len(vfs) < 1<<16 {
		t.Fatal("too short")
	}
	p := newPF(t, []string{"ib0"}, "")
	p.Put("devices/pci0000:15/0000:18:00.0/sriov_numvfs", fmt.Sprintf("%d\n", n))
	list := native.AppendUint16(nil, uint16(len(vfs)+4)) // wraps
	list = append(native.AppendUint16(list, unix.IFLA_VFINFO_LIST), vfs...)
	p.answers["ib0"] = hca.Message(unix.RTM_NEWLINK, 0, 1, make([]byte, 16), hca.U32(unix.IFLA_NUM_VF, n), list)
	snap := p.look(t)
	counted := 0
	for i, v := range snap.VFs {
		if v.Number != i || v.Counted && v.TransmitBytes != uint64(i) {
			t.Errorf("%+v", v)
		}
		if v.Counted {
			counted++
		}
	}
	if counted == 0 || counted == n || states(snap) != "mlx5_0=ok sriov=failed" ||
		!strings.Contains(snap.DeviceStates[1].Reason, fmt.Sprintf("ib0 reports %d of %d", counted, n)) {
		t.Errorf("%d counted: %+v", counted, snap.DeviceStates[1:])
	}
}

// TestRecordedVFs parses the reply of a real kernel (6.1) with the driver in
// testdata/vfs.c, which has a GUID and counters for each of three functions; see TestGuest.
func TestRecordedVFs(t *testing.T) {
	b, err := os.ReadFile("testdata/6.1/getlink_vf.bin")
	if err != nil {
		t.Fatal(err)
	}
	var l link
	done, err := netlink.Messages(b, unix.RTM_NEWLINK, 1, func(p []byte) (err error) { l, err = parseLink(p); return err })
	if err != nil || !done {
		t.Fatal(done, err)
	}
	checkRecorded(t, l)
	r := linkRequest("vfs0")
	if !bytes.Contains(r, []byte("vfs0\x00")) || len(r)%4 != 0 || int(native.Uint32(r)) != len(r) {
		t.Errorf("request %x", r)
	}
}

func checkRecorded(t *testing.T, l link) {
	t.Helper()
	want := link{parent: "vfs", count: 3, listed: true}
	for i := range uint64(3) {
		want.vfs = append(want.vfs, functionOf{
			listed: true, nodeGUID: sysfs.GUIDText(0xa088c20300000100 + i), portGUID: sysfs.GUIDText(0xa088c20300000200 + i),
			rxPackets: 10 + i, txPackets: 20 + i, rxBytes: 1<<40 + i, txBytes: 1<<41 + i,
		})
	}
	if d := cmp.Diff(want, l, cmp.AllowUnexported(link{}, functionOf{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func FuzzLink(f *testing.F) {
	recorded, err := os.ReadFile("testdata/6.1/getlink_vf.bin")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recorded)
	f.Add(newLink("0000:18:00.0", 2, vfInfo(0, [4]uint64{1, 2, 3, 4}, 5, 6), vfInfo(1, [4]uint64{}))[unix.SizeofNlMsghdr:])
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLink(b)
		if l.count > sysfs.MaxFunctions || len(l.vfs) > l.count && l.count > 0 && err == nil || cap(l.vfs) > sysfs.MaxFunctions {
			t.Errorf("%d functions of %d", len(l.vfs), l.count)
		}
	})
}
