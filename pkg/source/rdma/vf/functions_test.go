// SPDX-License-Identifier: Apache-2.0

package vf

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
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The backoff of hang.Backoff: failures before the first pause, and its length.
const (
	failsBeforePause = 3
	shortestPause    = time.Minute
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
	*Functions
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
	p.Functions = New(p.Path("class/infiniband"), time.Minute) // long enough for a busy machine
	p.dial = hca.Kernel(t, func(r []byte) [][]byte {
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

// hcas reads the devices of the tree, with the values of counters/.
func (p *pf) hcas(t *testing.T) (all []model.HCA) {
	t.Helper()
	entries, err := os.ReadDir(p.Path("class/infiniband"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := p.Path("class/infiniband/" + e.Name())
		d := sysfs.NewDevice(e.Name(), path, path+"/device", new(atomic.Int64))
		d.Reader.Buffer = make([]byte, sysfs.BufferSize)
		if _, err := d.Open(func(string) (int, error) { return boundedfile.Open(unix.AT_FDCWD, path, unix.O_DIRECTORY) }); err != nil {
			t.Fatal(err)
		}
		h := d.HCA
		for _, port := range d.Ports {
			d.ReadPort(port, p.now)
			port.Base.Counters = d.ReadGroup(&port.Counters, p.now, &sysfs.Tally{})
			h.Ports = append(h.Ports, port.Base)
		}
		d.Close()
		all = append(all, h)
	}
	return all
}

// read returns the virtual functions, and the reason of a failure.
func (p *pf) read(t *testing.T) (vfs []model.VF, failed string) {
	t.Helper()
	vfs, states := p.Read(p.hcas(t), true, p.now)
	for _, s := range states {
		if s.Source != "rdma" || s.Device != "sriov" || s.State != model.StateFailed || len(states) > 1 {
			t.Errorf("%+v", states)
		}
		failed = s.Reason
	}
	return vfs, failed
}

// look reads until the result is from the current time.
func (p *pf) look(t *testing.T) (vfs []model.VF, failed string) {
	t.Helper()
	p.settle(t)
	p.now = p.now.Add(functionsEvery)
	p.read(t)
	p.settle(t)
	return p.read(t)
}

// settle waits for the read in progress.
func (p *pf) settle(t *testing.T) {
	t.Helper()
	for range 60000 {
		if p := p.pending; p == nil || p.Returned() {
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
	if v, _ := p.read(t); v != nil {
		t.Errorf("before the first read: %+v", v)
	}
	got, failed := p.look(t)
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
	if d := cmp.Diff(want, got); d != "" || failed != "" {
		t.Errorf("%s (-want +got):\n%s", failed, d)
	}
	// The interface of the port is known; it is not asked again before it is due.
	asked := p.asked.Load()
	p.now = p.now.Add(functionsEvery - 1)
	for range 3 {
		if v, _ := p.read(t); !cmp.Equal(want, v) {
			t.Errorf("without another read (-want +got):\n%s", cmp.Diff(want, v))
		}
	}
	p.settle(t)
	if p.asked.Load() != asked {
		t.Error("asked before it was due")
	}
	if p.look(t); p.asked.Load() != asked+1 {
		t.Errorf("%d requests for one read", p.asked.Load()-asked)
	}
	// All are zero after they were counted: they are still counted.
	p.answers["ib0"] = newLink("", 3, vfInfo(0, [4]uint64{}), vfInfo(1, [4]uint64{}), vfInfo(2, [4]uint64{}))
	if v, _ := p.look(t); !v[1].Counted || v[1].ReceiveBytes != 0 || v[1].Look != 4 || v[0].Look != 0 {
		t.Errorf("zeroes after other values: %+v", v[1])
	}
	// Without VFs, no request is sent, and the result is empty.
	p.Put("devices/pci0000:15/0000:18:00.0/sriov_numvfs", "0\n")
	asked = p.asked.Load()
	if v, _ := p.look(t); v == nil || len(v) > 0 || p.asked.Load() != asked {
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
	if v, _ := p.look(t); len(v) != 2 || v[0].Counted || v[1].Counted || p.asked.Load() != 0 {
		t.Errorf("%+v, asked %d times", v, p.asked.Load())
	}
	// One VF goes to a virtual machine.
	link, err := os.Readlink(p.Path("class/infiniband/mlx5_2"))
	if err != nil {
		t.Fatal(err)
	}
	p.Remove("class/infiniband/mlx5_2")
	if v, _ := p.look(t); len(v) != 2 || v[0].Counted || !v[1].Counted || p.asked.Load() == 0 {
		t.Errorf("%+v, asked %d times", v, p.asked.Load())
	}
	// The VF comes back: the traffic that its port counts is not reported twice, not even before the next read.
	p.settle(t)
	p.Link("class/infiniband/mlx5_2", link)
	if v, _ := p.read(t); v[1].Counted || v[1].ReceiveBytes != 0 {
		t.Errorf("%+v", v)
	}
}

// TestUncountedVFs: the kernel reports zeroes for a driver that does not count.
func TestUncountedVFs(t *testing.T) {
	p := newPF(t, []string{"ens1"}, "", "")
	p.answers["ens1"] = newLink("", 2, vfInfo(0, [4]uint64{}, 1, 2), vfInfo(1, [4]uint64{}))
	if v, _ := p.look(t); len(v) != 2 || v[0].Counted || v[1].Counted || v[0].NodeGUID != "0x0000000000000001" {
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
			if v, _ := p.look(t); len(v) != 1 || v[0].Counted {
				t.Errorf("%+v", v)
			}
			p.answers["a-longer-name"] = newLink("0000:18:00.0", 1, figures)
			if v, _ := p.look(t); len(v) != 1 || !v[0].Counted {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestManyInterfaces: of the interfaces of a physical function, the maxInterfaces with the shortest names are asked.
func TestManyInterfaces(t *testing.T) {
	var names []string
	for i := range 2 * maxInterfaces {
		names = append(names, fmt.Sprintf("ib%02d", i))
	}
	p := newPF(t, append(names, "the-longest-name"), "")
	p.answers["the-longest-name"] = newLink("0000:18:00.0", 1, vfInfo(0, [4]uint64{1, 1, 1, 1}))
	p.look(t)
	p.asked.Store(0)
	if v, _ := p.look(t); len(v) != 1 || v[0].Counted || p.asked.Load() != maxInterfaces {
		t.Errorf("%d interfaces are asked, want %d: %+v", p.asked.Load(), maxInterfaces, v)
	}
}

// TestBadVFs: a failure is reported, and pauses the requests.
func TestBadVFs(t *testing.T) {
	p := newPF(t, []string{"ib0"}, "")
	p.answers["ib0"] = hca.Failure(unix.EPERM)
	for range failsBeforePause {
		v, failed := p.look(t)
		if len(v) != 1 || v[0].Counted || !strings.Contains(failed, "virtual functions of mlx5_0: ib0: rtnetlink: ") {
			t.Errorf("%+v %s", v, failed)
		}
	}
	p.answers["ib0"] = newLink("", 1, vfInfo(0, [4]uint64{1, 1, 1, 1}))
	if v, failed := p.look(t); v[0].Counted || failed == "" {
		t.Errorf("at once: %+v %s", v, failed)
	}
	p.now = p.now.Add(shortestPause)
	if v, failed := p.look(t); !v[0].Counted || failed != "" {
		t.Errorf("later: %+v %s", v, failed)
	}
	// A Read does not wait for a driver that hangs.
	block := make(chan struct{})
	p.dial = func() (*netlink.Conn, error) { <-block; return nil, errors.New("gone") }
	p.limit = time.Second
	if _, failed := p.look(t); !strings.Contains(failed, "no answer in time") {
		t.Error(failed)
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
	found, failed := p.look(t)
	counted := 0
	for i, v := range found {
		if v.Number != i || v.Counted && v.TransmitBytes != uint64(i) {
			t.Errorf("%+v", v)
		}
		if v.Counted {
			counted++
		}
	}
	if counted == 0 || counted == n || !strings.Contains(failed, fmt.Sprintf("ib0 reports %d of %d", counted, n)) {
		t.Errorf("%d counted: %s", counted, failed)
	}
}

// TestRecordedVFs parses the reply of a real kernel (6.1) with the driver in
// testdata/vfs.c, which has a GUID and counters for each of three functions; see TestGuestVFs.
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
