// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

var native = binary.NativeEndian

// fake answers requests in place of RDMA netlink.
func fake(t testing.TB, answer func(r []byte) [][]byte) func() (*nldev.Conn, error) {
	dial := hca.Kernel(t, answer)
	return func() (*nldev.Conn, error) {
		c, err := dial()
		return &nldev.Conn{Conn: c}, err
	}
}

// recordedReply returns a reply of a live 6.1 kernel with two Soft-RoCE devices, as written by TestGuest.
func recordedReply(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("nldev/testdata/6.1", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// recordings are the names of the recorded replies, by the commands of rdma_netlink.h.
var recordings = map[uint16]string{
	1: "get", 9: "res", 10: "res_qp", 11: "res_cm_id", 12: "res_cq", 13: "res_mr", 14: "res_pd", 17: "stat", 22: "res_ctx", 23: "res_srq",
}

// recordedKernel answers with the recorded replies.
func recordedKernel(t *testing.T) func() (*nldev.Conn, error) {
	all := map[uint16][]byte{}
	for cmd, name := range recordings {
		all[cmd] = recordedReply(t, name)
	}
	return fake(t, func(r []byte) [][]byte { return [][]byte{all[native.Uint16(r[4:])&0x3ff]} })
}

// netlinkSource returns a source for a fake tree with the devices that answer lists.
func netlinkSource(t *testing.T, tr hca.Tree, dial func() (*nldev.Conn, error)) *Source {
	t.Helper()
	s := newSource(t, tr, func(o *Options) { o.Netlink = NewNetlink(*o) })
	s.isSysfs = func(string) bool { return true }
	s.dial = dial
	return s
}

func TestReadThroughNetlink(t *testing.T) {
	all, err := nldev.Devices(recordedKernel(t), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	tr := hca.NewTree(t)
	for _, d := range all {
		dev := "class/infiniband/" + d.Name
		tr.Put(dev+"/ports/1/state", "4: ACTIVE\n")
		tr.Put(dev+"/ports/1/hw_counters/sent_pkts", "0\n")
		tr.Put(dev+"/node_guid", d.GUID[2:6]+":"+d.GUID[6:10]+":"+d.GUID[10:14]+":"+d.GUID[14:]+"\n")
	}
	tr.Put("class/infiniband/rxe1/node_guid", "0000:0000:0000:0bad\n") // another device with this name
	s := netlinkSource(t, tr, recordedKernel(t))
	s.opt.Holdings = func() bool { return true }
	s.opt.CgroupOf = func(pid int) (model.CgroupID, error) { return model.CgroupID(pid) + 1, nil }
	snap := mustRead(t, s)
	if n := len(snap.HCAs[0].Ports[0].HWCounters); n != 15 {
		t.Errorf("rxe0 has %d counters, want the 15 of netlink", n)
	}
	if n := len(snap.HCAs[1].Ports[0].HWCounters); n != 1 {
		t.Errorf("rxe1 has %d counters, want the one of the files", n)
	}
	if len(snap.Resources) != 14 || len(snap.Holdings) == 0 {
		t.Errorf("resources %v, holdings %v", snap.Resources, snap.Holdings)
	}
	for _, h := range snap.Holdings {
		if h.Cgroup != model.CgroupID(h.PID)+1 {
			t.Errorf("not in the cgroup of its process: %+v", h)
		}
	}

	// A source for a copy of sysfs sends no netlink request.
	s = newSource(t, tr, func(o *Options) { o.Netlink = NewNetlink(*o) })
	s.dial = func() (*nldev.Conn, error) { t.Error("netlink request for a copy"); return nil, unix.EPERM }
	if snap := mustRead(t, s); snap.Resources != nil || len(snap.HCAs[0].Ports[0].HWCounters) != 1 {
		t.Errorf("resources %v, counters %v", snap.Resources, snap.HCAs[0].Ports[0].HWCounters)
	}
}

// TestStatFallsBackToFiles: a driver without counters in netlink, or with more than fit in a message, gets one request;
// then the files are read.
func TestStatFallsBackToFiles(t *testing.T) {
	for _, e := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.EMSGSIZE} {
		asked := make(chan bool, 10)
		tr := hca.NewTree(t)
		tr.HCA(0, 1)
		s := netlinkSource(t, tr, fake(t, func(r []byte) [][]byte {
			switch native.Uint16(r[4:]) {
			case nldev.MessageType(nldev.CmdGet):
				return [][]byte{slices.Concat(hca.Reply(nldev.CmdGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, 4),
					hca.Text(nldev.AttrDevName, "mlx5_0"), hca.U64(nldev.AttrNodeGUID, 0xa088c20300000000)), hca.Done())}
			case nldev.MessageType(nldev.CmdStatGet):
				asked <- true
				return [][]byte{hca.Failure(e)}
			}
			return [][]byte{hca.Done()}
		}))
		for range 5 {
			h := mustRead(t, s).HCAs[0]
			if d := cmp.Diff(counters(hca.HWCounters, 101), h.Ports[0].HWCounters); d != "" || h.Index != 4 {
				t.Errorf("%v: index %d (-want +got):\n%s", e, h.Index, d)
			}
		}
		// One request for each scan of the device directory.
		if len(asked) != 2 {
			t.Errorf("%v: %d requests", e, len(asked))
		}
	}
}

// TestObjects: objects of all types, or of one type without a dump of the queue pairs.
func TestObjects(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	var dumpsOfQPs atomic.Int32
	s := netlinkSource(t, tr, fake(t, func(r []byte) [][]byte {
		cmd := native.Uint16(r[4:]) & 0x3ff
		entry := func(table uint16, of ...[]byte) []byte {
			return hca.Reply(cmd, unix.NLM_F_MULTI, hca.Text(nldev.AttrDevName, "mlx5_0"), hca.Nest(table, hca.Nest(table+1, of...)))
		}
		switch cmd {
		case nldev.CmdGet:
			return [][]byte{hca.Reply(nldev.CmdGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, 4), hca.Text(nldev.AttrDevName, "mlx5_0")), hca.Done()}
		case nldev.CmdCtxGet, nldev.CmdSRQGet: // like 5.10
			return [][]byte{hca.Failure(unix.EINVAL)}
		case nldev.CmdPDGet:
			return [][]byte{
				entry(nldev.AttrPD, hca.U32(nldev.AttrPDN, 5), hca.U32(nldev.AttrPID, 41), hca.U32(nldev.AttrCtxN, 2)),
				entry(nldev.AttrPD, hca.U32(nldev.AttrPDN, 9), hca.U32(nldev.AttrCtxN, 3)), hca.Done(),
			}
		case nldev.CmdCQGet:
			return [][]byte{entry(nldev.AttrCQ, hca.U32(nldev.AttrCQN, 1), hca.U32(nldev.AttrPID, 42), hca.U32(nldev.AttrCtxN, 3)), hca.Done()}
		case nldev.CmdMRGet:
			return [][]byte{
				entry(nldev.AttrMR, hca.U32(nldev.AttrMRN, 6), hca.U64(nldev.AttrMRLen, 1<<40), hca.U32(nldev.AttrPDN, 5)),
				entry(nldev.AttrMR, hca.U32(nldev.AttrMRN, 7), hca.U64(nldev.AttrMRLen, 1), hca.U32(nldev.AttrPDN, 9)),
				entry(nldev.AttrMR, hca.U32(nldev.AttrMRN, 8), hca.U64(nldev.AttrMRLen, math.MaxUint64), hca.U32(nldev.AttrPDN, 5)), // implicit ODP
				entry(nldev.AttrMR, hca.U32(nldev.AttrMRN, 9), hca.U32(nldev.AttrPDN, 5)), hca.Done(),
			}
		case nldev.CmdQPGet:
			dumpsOfQPs.Add(1)
			return [][]byte{
				entry(nldev.AttrQP, hca.U32(nldev.AttrLQPN, 1), hca.Text(nldev.AttrKernName, "ib_core")),
				entry(nldev.AttrQP, hca.U32(nldev.AttrPortIndex, 2), hca.U32(nldev.AttrLQPN, 17), hca.U32(nldev.AttrRQPN, 1<<24-1),
					hca.Attr(nldev.AttrQPType, 2), hca.Attr(nldev.AttrQPState, 3), hca.U32(nldev.AttrPDN, 5)), hca.Done(),
			}
		}
		return [][]byte{hca.Done()}
	}))
	got, err := s.Objects(t.Context())
	want := []model.Object{
		{Device: "mlx5_0", Index: 4, Type: model.PD, ID: 5, PID: 41},
		{Device: "mlx5_0", Index: 4, Type: model.PD, ID: 9, PID: 42}, // through the CQ in its context
		{Device: "mlx5_0", Index: 4, Type: model.CQ, ID: 1, PID: 42},
		{
			Device: "mlx5_0", Index: 4, Type: model.QP, ID: 17, PID: 41,
			RemoteQPN: 1<<24 - 1, Port: 2, QPType: 2, QPState: 3,
		},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 6, PID: 41, Bytes: 1 << 40, Memory: model.UnknownMemory},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 7, PID: 42, Bytes: 1, Memory: model.UnknownMemory},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 8, PID: 41, Memory: model.ImplicitODPMemory},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 9, PID: 41, Memory: model.UnknownMemory},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	dumpsOfQPs.Store(0)
	got, err = s.Objects(t.Context(), model.MR)
	want = slices.DeleteFunc(want, func(o model.Object) bool { return o.Type != model.MR })
	if d := cmp.Diff(want, got); d != "" || err != nil || dumpsOfQPs.Load() != 0 {
		t.Errorf("memory regions: %v, %d dumps of queue pairs (-want +got):\n%s", err, dumpsOfQPs.Load(), d)
	}
}

// TestNoNetlink: without RDMA netlink the error is ErrUnsupported.
func TestNoNetlink(t *testing.T) {
	c, err := nldev.Dial()
	if err == nil {
		c.Close()
		t.Skip("this kernel has RDMA netlink")
	}
	if !errors.Is(err, model.ErrUnsupported) || !strings.Contains(err.Error(), "ib_core") {
		t.Errorf("%v: want ErrUnsupported and the module to load", err)
	}
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	s := netlinkSource(t, tr, nldev.Dial)
	if snap := mustRead(t, s); snap.Resources != nil || len(snap.HCAs) != 1 {
		t.Errorf("resources %v of %d HCAs, want nil of 1", snap.Resources, len(snap.HCAs))
	}
	if _, err := s.Objects(t.Context()); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("objects: %v", err)
	}
}
