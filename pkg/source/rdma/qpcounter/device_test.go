// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// traffic returns the bytes that a Read finds as "device cgroup direction bytes".
func traffic(t *testing.T, s *source) string {
	t.Helper()
	rows, _ := s.read()
	if rows == nil {
		return "not collected"
	}
	var all []string
	for _, f := range rows {
		if f.Method != model.MethodQPCounter {
			t.Errorf("%+v", f)
		}
		all = append(all, fmt.Sprintf("%s %d %s %d", f.Device, f.Cgroup, f.Direction, f.Bytes))
	}
	return strings.Join(all, ", ")
}

// rows returns the expected traffic of one device, for rows of cgroup, transmitted and received
// bytes.
func rows(of ...[3]uint64) string {
	var all []string
	for _, r := range of {
		all = append(all, fmt.Sprintf("mlx5_0 %d receive %d", r[0], r[2]), fmt.Sprintf("mlx5_0 %d transmit %d", r[0], r[1]))
	}
	return strings.Join(all, ", ")
}

func wantTraffic(t *testing.T, s *source, what string, of ...[3]uint64) {
	t.Helper()
	if got, want := traffic(t, s), rows(of...); got != want {
		t.Errorf("%s:\n%s, want\n%s", what, got, want)
	}
}

// resting returns the rows without a live counter as "device cgroup direction".
func resting(t *testing.T, s *source) string {
	t.Helper()
	rows, _ := s.read()
	var all []string
	for _, f := range rows {
		if f.Resting {
			all = append(all, fmt.Sprintf("%s %d %s", f.Device, f.Cgroup, f.Direction))
		}
	}
	return strings.Join(all, ", ")
}

// newUse creates a device in auto mode by PID with byte counters, as set by an administrator.
func newUse(t *testing.T) (*statKernel, *statDevice, *source) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	d := k.devices[0]
	*d.ports[1] = statPort{mode: nldev.ModeAuto, mask: nldev.MaskPID, opcnt: true}
	return k, d, counterSource(t, tr, k, ModeUse)
}

func TestUseCounters(t *testing.T) {
	k, d, s := newUse(t)
	k.create(d, 10, 101)
	k.move(d, 10, 1<<40, 1<<41)
	wantTraffic(t, s, "bytes before the first read are not credited", [3]uint64{1, 0, 0})
	k.move(d, 10, 5, 7)
	wantTraffic(t, s, "after it", [3]uint64{1, 5, 7})

	// Another thread, a second queue pair of the first thread, another container.
	k.create(d, 11, 102)
	k.create(d, 12, 101)
	k.create(d, 20, 201)
	k.move(d, 11, 1000, 0)
	k.move(d, 12, 100, 0)
	k.move(d, 20, 3, 4)
	wantTraffic(t, s, "threads and containers", [3]uint64{1, 1105, 7}, [3]uint64{2, 3, 4})

	// A thread ends, but its queue pairs stay.
	k.exit(102)
	k.move(d, 11, 10, 0)
	wantTraffic(t, s, "thread ended", [3]uint64{1, 1115, 7}, [3]uint64{2, 3, 4})

	// A counter ends with its last queue pair; its bytes stay.
	k.destroy(d, 11)
	k.destroy(d, 20)
	wantTraffic(t, s, "counters ended", [3]uint64{1, 1115, 7}, [3]uint64{2, 3, 4})

	s.Forget([]model.CgroupID{2, 9})
	wantTraffic(t, s, "cgroup forgotten", [3]uint64{1, 1115, 7})
	if len(d.counters) != 1 || len(s.devices["mlx5_0"].known) != 1 {
		t.Errorf("device has %d counters, source has %d", len(d.counters), len(s.devices["mlx5_0"].known))
	}
	if k.asked() != nil {
		t.Errorf("mode use changed settings: %v", k.asked())
	}
}

// TestResting: a row without a live counter is resting.
func TestResting(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 2)
	d := k.devices[0]
	for _, d := range k.devices {
		*d.ports[1] = statPort{mode: nldev.ModeAuto, mask: nldev.MaskPID, opcnt: true}
	}
	s := counterSource(t, tr, k, ModeUse)
	want := func(what string, of ...string) {
		t.Helper()
		if got := resting(t, s); got != strings.Join(of, ", ") {
			t.Errorf("%s: resting rows %q, want %q", what, got, of)
		}
	}
	const one, two = "mlx5_0 1 receive, mlx5_0 1 transmit", "mlx5_0 2 receive, mlx5_0 2 transmit"
	k.create(d, 10, 101)
	k.create(d, 20, 201)
	k.create(k.devices[1], 20, 201)
	want("all counted")
	want("no traffic")
	k.destroy(d, 20)
	want("ended", two)
	want("again", two)
	k.mu.Lock()
	d.ports[1].mode = nldev.ModeManual // auto mode was switched off
	k.mu.Unlock()
	k.create(d, 21, 201)
	want("not bound", two)
	k.mu.Lock()
	d.qp(21).counter = d.counters[0]
	d.counters[0].mode = nldev.ModeManual
	k.mu.Unlock()
	want("shared", one, two)
	k.destroy(d, 10)
	want("queue pair without counter", one)
	k.destroy(d, 21)
	k.mu.Lock()
	*d.ports[1] = statPort{mode: nldev.ModeAuto, mask: nldev.MaskPID, opcnt: true}
	k.mu.Unlock()
	k.create(d, 22, 101)
	want("counter of the first cgroup again", two)

	// Bytes of a failed read are credited later. The third failure begins a pause.
	k.refuse(nldev.CmdStatGet, unix.EIO)
	for range 4 {
		want("during failures", two)
	}
	k.mu.Lock()
	k.refuses[nldev.CmdStatGet] = unix.EOPNOTSUPP
	k.mu.Unlock()
	for _, d := range s.devices {
		d.stat.Done(time.Now(), nil)
	}
	want("kernel without support", one, two, "mlx5_1 2 receive, mlx5_1 2 transmit")
}

// TestCountedQPs: a row has the number of counted queue pairs.
func TestCountedQPs(t *testing.T) {
	k, d, s := newUse(t)
	want := func(what string, n uint64) {
		t.Helper()
		rows, _ := s.read()
		for _, f := range rows {
			if f.QPs != n {
				t.Errorf("%s: %d queue pairs, want %d: %+v", what, f.QPs, n, f)
			}
		}
	}
	k.create(d, 10, 101)
	k.create(d, 11, 101)
	want("two", 2)
	k.destroy(d, 10)
	want("one", 1)
	k.destroy(d, 11)
	want("none", 0)
}

// TestRestingWithoutDevice: the counters ended with the device.
func TestRestingWithoutDevice(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	*k.devices[0].ports[1] = statPort{mode: nldev.ModeAuto, mask: nldev.MaskPID, opcnt: true}
	s := counterSource(t, tr, k, ModeUse)
	k.create(k.devices[0], 10, 101)
	if got := resting(t, s); got != "" {
		t.Errorf("%q", got)
	}
	tr.Remove("class/infiniband/mlx5_0")
	if got := resting(t, s); got != "mlx5_0 1 receive, mlx5_0 1 transmit" {
		t.Errorf("%q", got)
	}
}

func TestReusedCounterNumbers(t *testing.T) {
	k, d, s := newUse(t)
	wantTraffic(t, s, "nothing")
	k.create(d, 10, 101)
	k.move(d, 10, 500, 500)
	wantTraffic(t, s, "the first", [3]uint64{1, 500, 500})
	again := func(qpn, pid uint32, tx, rx uint64) {
		t.Helper()
		k.destroy(d, qpn-1)
		k.create(d, qpn, pid)
		k.move(d, qpn, tx, rx)
		if c := d.counters; len(c) != 1 || c[0].id != 1 {
			t.Fatalf("counter %+v", c)
		}
	}
	again(11, 201, 900, 900)
	wantTraffic(t, s, "another thread, with more", [3]uint64{1, 500, 500}, [3]uint64{2, 900, 900})
	again(12, 201, 100, 1900)
	wantTraffic(t, s, "the same thread, with less", [3]uint64{1, 500, 500}, [3]uint64{2, 1000, 2800})
	again(13, 201, 1100, 100)
	wantTraffic(t, s, "fewer received bytes", [3]uint64{1, 500, 500}, [3]uint64{2, 2100, 2900})
	again(14, 201, 1110, 150)
	// It may be the same counter: in doubt no byte is credited twice.
	wantTraffic(t, s, "the same thread, with more", [3]uint64{1, 500, 500}, [3]uint64{2, 2110, 2950})
	again(15, 301, 2000, 2000)
	k.exit(301)
	wantTraffic(t, s, "unknown cgroup", [3]uint64{1, 500, 500}, [3]uint64{2, 2110, 2950})
	again(16, 301, 3000, 3000)
	wantTraffic(t, s, "another cgroup", [3]uint64{1, 500, 500}, [3]uint64{2, 2110, 2950}, [3]uint64{3, 3000, 3000})

	// Counters other than byte counters have 32 bits and wrap.
	k.mu.Lock()
	d.counters[0].errors = 1<<32 - 1
	k.mu.Unlock()
	s.read()
	k.mu.Lock()
	d.counters[0].errors = 3
	k.mu.Unlock()
	wantTraffic(t, s, "wrapped", [3]uint64{1, 500, 500}, [3]uint64{2, 2110, 2950}, [3]uint64{3, 3000, 3000})
}

// TestOwnersWithoutPID: without a PID the source looks up the creator of the queue pair. The
// bytes of an unknown creator are not credited.
func TestOwnersWithoutPID(t *testing.T) {
	k, d, s := newUse(t)
	var visible atomic.Bool
	cgroupOf := s.opt.CgroupOf
	s.opt.CgroupOf = func(pid int) (model.CgroupID, error) {
		if pid >= 1000 && visible.Load() {
			return 10, nil
		}
		return cgroupOf(pid)
	}
	wantTraffic(t, s, "nothing")
	k.create(d, 10, 101)
	k.create(d, 20, 201)
	k.create(d, 30, 301)
	k.create(d, 40, 1000) // its cgroup is not known yet
	for _, q := range d.qps {
		q.pd = q.qpn
		d.pds[q.pd] = q.qpn
	}
	d.contexts[10] = 100 // the main thread opened the device
	d.contexts[20] = 200
	for _, pid := range []uint32{101, 201, 301} {
		k.exit(pid)
	}
	for _, q := range []uint32{10, 20, 30, 40} {
		k.move(d, q, 8, 8)
	}
	wantTraffic(t, s, "through the context", [3]uint64{1, 8, 8}, [3]uint64{2, 8, 8})
	before := k.queried()
	wantTraffic(t, s, "again", [3]uint64{1, 8, 8}, [3]uint64{2, 8, 8})
	if n := k.queried() - before; n != len(d.counters) {
		t.Errorf("%d queries of the firmware for %d counters: queue pairs were looked up again", n, len(d.counters))
	}

	// The bytes of one thread are credited when its cgroup becomes known.
	visible.Store(true)
	k.move(d, 40, 1, 1)
	wantTraffic(t, s, "later", [3]uint64{1, 8, 8}, [3]uint64{2, 8, 8}, [3]uint64{10, 9, 9})
}

// TestManualCounters: a manually bound counter may have queue pairs of several containers.
func TestManualCounters(t *testing.T) {
	k, d, s := newUse(t)
	*d.ports[1] = statPort{}
	k.create(d, 10, 101)
	k.create(d, 11, 102)
	k.create(d, 20, 201)
	wantTraffic(t, s, "nothing is bound")
	if k.queried() != 0 {
		t.Errorf("%d queries of the firmware for no counter", k.queried())
	}
	k.bind(d, 10, 11)
	k.move(d, 10, 3, 3)
	k.move(d, 20, 9, 9)
	wantTraffic(t, s, "of one container", [3]uint64{1, 3, 3})
	k.mu.Lock()
	d.qp(20).counter = d.counters[0]
	k.mu.Unlock()
	k.move(d, 20, 100, 100)
	wantTraffic(t, s, "of two containers", [3]uint64{1, 3, 3})
	k.destroy(d, 20)
	k.move(d, 11, 4, 4)
	wantTraffic(t, s, "of one container again", [3]uint64{1, 7, 7})
}

// TestLookupFails: the creator of a queue pair is looked up until the result is final.
func TestLookupFails(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(k *statKernel, s *source)
		again bool
	}{
		"busy":          {func(k *statKernel, _ *source) { k.refuse(nldev.CmdQPGet, unix.EBUSY) }, true},
		"firmware":      {func(k *statKernel, _ *source) { k.refuse(nldev.CmdQPGet, unix.EIO) }, true},
		"no object":     {func(k *statKernel, _ *source) { k.refuse(nldev.CmdQPGet, unix.ENOENT) }, false},
		"before 5.3":    {func(k *statKernel, _ *source) { k.refuse(nldev.CmdQPGet, unix.EOPNOTSUPP) }, false},
		"no file":       {func(_ *statKernel, s *source) { s.cgroupFails(unix.EMFILE) }, true},
		"process ended": {func(_ *statKernel, s *source) { s.cgroupFails(unix.ESRCH) }, false},
		"no cgroup":     {func(_ *statKernel, s *source) { s.cgroupFails(os.ErrNotExist) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, d, s := newUse(t)
			*d.ports[1] = statPort{}
			s.read()
			b := s.devices["mlx5_0"]
			cgroupOf := b.cgroupOf
			k.create(d, 10, 101)
			k.bind(d, 10)
			c.set(k, s)
			for i := range 3 {
				wantTraffic(t, s, "not known")
				if asked := b.lookups == 1; asked != (c.again || i == 0) {
					t.Errorf("read %d: lookups %v", i, asked)
				}
			}
			b.cgroupOf = cgroupOf
			k.mu.Lock()
			delete(k.refuses, nldev.CmdQPGet)
			k.mu.Unlock()
			if !c.again {
				wantTraffic(t, s, "never known")
				return
			}
			wantTraffic(t, s, "known", [3]uint64{1, 0, 0})
			k.move(d, 10, 7, 8)
			wantTraffic(t, s, "counted", [3]uint64{1, 7, 8})
			if wantTraffic(t, s, "counted", [3]uint64{1, 7, 8}); b.lookups != 0 {
				t.Error("looked up again")
			}
		})
	}
}

func (s *source) cgroupFails(err error) {
	s.devices["mlx5_0"].cgroupOf = func(int) (model.CgroupID, error) { return 0, err }
}

// TestLookupsAreBounded: a read looks up fewer queue pairs than a container can create.
func TestLookupsAreBounded(t *testing.T) {
	k, d, s := newUse(t)
	*d.ports[1] = statPort{}
	s.read()
	var qpns []uint32
	for n := range uint32(2*maxLookups + 1) {
		k.create(d, n+1, 101)
		qpns = append(qpns, n+1)
	}
	k.bind(d, qpns...)
	before := k.queried()
	s.read()
	if n := k.queried() - before; n != maxLookups+1 {
		t.Errorf("%d queries", n)
	}
	s.read()
	wantTraffic(t, s, "all are known", [3]uint64{1, 0, 0})
	k.move(d, 1, 6, 0)
	wantTraffic(t, s, "after it", [3]uint64{1, 6, 0})
}

// TestCountersFail: a driver or kernel without the command gets one request, and nothing fails. Any other error
// omits the counters of this read, and sums do not fall.
func TestCountersFail(t *testing.T) {
	for _, e := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP} {
		k, _, s := newUse(t)
		k.refuse(nldev.CmdStatGet, e)
		if got := traffic(t, s); got != "" {
			t.Errorf("%v: %s", e, got)
		}
		if _, failed := s.read(); !s.devices["mlx5_0"].never || failed != "" {
			t.Errorf("%v: %+v, %s", e, s.devices["mlx5_0"], failed)
		}
	}
	k, d, s := newUse(t)
	s.read()
	k.create(d, 10, 101)
	k.move(d, 10, 5, 5)
	s.read()
	k.refuse(nldev.CmdStatGet, unix.EIO)
	for range 2 {
		wantTraffic(t, s, "during failures", [3]uint64{1, 5, 5})
	}
	if _, failed := s.read(); !strings.Contains(failed, "input/output error") {
		t.Errorf("reason %q", failed)
	}
}

func TestCountersOff(t *testing.T) {
	for _, mode := range []string{"", "off"} {
		k, d, _ := newUse(t)
		tr := hca.NewTree(t)
		tr.HCA(0, 1)
		k.create(d, 10, 101)
		s := counterSource(t, tr, k, mode)
		if got := traffic(t, s); got != "not collected" || k.queried() != 0 {
			t.Errorf("%q: %s, %d queries", mode, got, k.queried())
		}
	}
}
