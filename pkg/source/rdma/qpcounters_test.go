// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/qpcounter"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// boundKernel is a FAKE kernel with one device, whose queue pair 10 is bound to a counter that has counted tx bytes.
// Package qpcounter tests the counters; here they belong to a Source.
type boundKernel struct {
	t     *testing.T
	index uint32
	name  string
	guid  uint64
	tx    atomic.Uint64
	modes atomic.Int64 // requests for the mode of a port
}

func (k *boundKernel) dial() (*nldev.Conn, error) {
	return fake(k.t, func(r []byte) [][]byte {
		switch native.Uint16(r[4:]) {
		case nldev.MessageType(nldev.CmdGet):
			return [][]byte{getReply(k.index, k.name, k.guid), hca.Done()}
		case nldev.MessageType(nldev.CmdStatGet):
			if native.Uint16(r[6:])&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
				return [][]byte{k.counter(), hca.Done()}
			}
			if strings.Contains(string(r[unix.SizeofNlMsghdr:]), string(hca.U32(nldev.AttrStatRes, nldev.AttrQP))) {
				k.modes.Add(1)
			}
			return [][]byte{hca.Failure(unix.EOPNOTSUPP)}
		case nldev.MessageType(nldev.CmdResGet):
			if native.Uint16(r[6:])&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
				return [][]byte{counted(k.index, k.name, 1)}
			}
		}
		return [][]byte{hca.Done()}
	})()
}

func (k *boundKernel) counter() []byte {
	return hca.Reply(nldev.CmdStatGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, k.index), hca.Text(nldev.AttrDevName, k.name),
		hca.Nest(nldev.AttrStatCounter, hca.Nest(nldev.AttrStatCounter+1,
			hca.U32(nldev.AttrPortIndex, 1), hca.U32(nldev.AttrCounterID, 1), hca.U32(nldev.AttrStatMode, nldev.ModeAuto), hca.U32(nldev.AttrPID, 101),
			hca.Nest(nldev.AttrQP, hca.Nest(nldev.AttrQPEntry, hca.U32(nldev.AttrLQPN, 10))),
			hca.Nest(nldev.AttrHWCounters, hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, nldev.TxBytes), hca.U64(nldev.AttrHWValue, k.tx.Load()))))))
}

func cgroupOfPID(pid int) (model.CgroupID, error) { return model.CgroupID(pid), nil }

// qpTraffic returns the Traffic of a Read, with "resting" for a row without a live counter.
func qpTraffic(t *testing.T, s *Source) string {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil && !errors.Is(err, model.ErrAbsent) {
		t.Fatal(err)
	}
	if snap.Traffic == nil {
		return "not collected"
	}
	var all []string
	for _, f := range snap.Traffic {
		row := fmt.Sprintf("%s %d %s %d", f.Device, f.Cgroup, f.Direction, f.Bytes)
		if f.Resting {
			row += " resting"
		}
		all = append(all, row)
	}
	return strings.Join(all, ", ")
}

// boundSource returns a source for a tree with the device of a boundKernel.
func boundSource(t *testing.T, mode string) (*boundKernel, hca.Tree, *Source) {
	tr := hca.NewTree(t)
	path := tr.HCA(0, 1)
	tr.Link(path+"/device/driver", "../../../bus/pci/drivers/mlx5_core")
	k := &boundKernel{t: t, index: 3, name: "mlx5_0", guid: 0xa088c20300000000}
	s := newSource(t, tr, func(o *Options) {
		o.QPCounters, o.CgroupOf, o.Netlink = mode, cgroupOfPID, NewNetlink(*o)
	})
	s.isSysfs = func(string) bool { return true }
	s.dial = k.dial
	return k, tr, s
}

// TestQPCounters: a Read credits the bytes of bound queue pairs. The rows of a removed device rest, until Forget.
func TestQPCounters(t *testing.T) {
	k, tr, s := boundSource(t, qpcounter.ModeUse)
	k.tx.Store(1000)
	mustRead(t, s)
	k.tx.Store(1003)
	if got := qpTraffic(t, s); got != "mlx5_0 101 transmit 3" {
		t.Error(got)
	}
	tr.Remove("class/infiniband/mlx5_0")
	if got := qpTraffic(t, s); got != "mlx5_0 101 transmit 3 resting" {
		t.Error(got)
	}
	if s.Forget([]model.CgroupID{101}); qpTraffic(t, s) != "" || k.modes.Load() != 0 {
		t.Errorf("forgotten: %s; asked for %d modes", qpTraffic(t, s), k.modes.Load())
	}
	_, _, s = boundSource(t, "off")
	if got := qpTraffic(t, s); got != "not collected" {
		t.Errorf("off: %s", got)
	}
}

// TestCloseWhileRead: the first Read starts the manager, whose states a Read reports. Close waits for a Read.
func TestCloseWhileRead(t *testing.T) {
	k, _, s := boundSource(t, qpcounter.ModeManage)
	eventually(t, func() bool { return states(mustRead(t, s)) == "mlx5_0=ok mlx5_0/1/qp-counters=unsupported" })
	s.mu.Lock()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed during a Read: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.mu.Unlock()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if mustRead(t, s); k.modes.Load() != 1 {
		t.Errorf("asked %d times for the mode: the manager runs after Close", k.modes.Load())
	}
}
