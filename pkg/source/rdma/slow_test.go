// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestSlowStatistics: if many counters are bound to a port, its counters are slow to read, and are not read each time.
func TestSlowStatistics(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	var delay atomic.Int64
	var asked atomic.Int32
	now := time.Unix(1e9, 0)
	s := netlinkSource(t, tr, fake(t, func(r []byte) [][]byte {
		switch native.Uint16(r[4:]) {
		case nldev.MessageType(nldev.CmdGet):
			return [][]byte{getReply(3, "mlx5_0", 0xa088c20300000000), hca.Done()}
		case nldev.MessageType(nldev.CmdStatGet):
			time.Sleep(time.Duration(delay.Load()))
			n := asked.Add(1)
			return [][]byte{hca.Reply(nldev.CmdStatGet, 0, hca.Nest(nldev.AttrHWCounters,
				hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, "n"), hca.U64(nldev.AttrHWValue, uint64(n)))))}
		}
		return [][]byte{hca.Done()}
	}))
	s.opt.Now = func() time.Time { return now }
	read := func(after time.Duration, want uint64) {
		t.Helper()
		now = now.Add(after)
		began := time.Now()
		if c := mustRead(t, s).HCAs[0].Ports[0].HWCounters; len(c) != 1 || c[0].Value != want {
			t.Errorf("%v, want %d", c, want)
		}
		if delay.Load() == 0 && time.Since(began) >= slowRead { // because the machine is busy
			s.devices[0].ports[0].slow = slowCounters{}
		}
	}
	read(0, 1)
	read(time.Millisecond, 2)
	delay.Store(int64(slowRead))
	read(time.Millisecond, 3)
	slow := s.devices[0].ports[0].slow
	read(time.Millisecond, 3)
	read(slowPause*slowRead/2, 3)
	delay.Store(0)
	now = slow.until
	read(0, 4)
	read(time.Millisecond, 5)
}
