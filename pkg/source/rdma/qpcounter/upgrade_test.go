// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// ends are how a sensor ends before the next sensor starts. A killed sensor does nothing: it is closed after the test.
var ends = map[string]func(t *testing.T, s *source){
	"in order": func(_ *testing.T, s *source) { s.Close() },
	"killed":   func(t *testing.T, s *source) { t.Helper(); t.Cleanup(s.Close) },
}

// upgrade starts a sensor that manages, and jobs 1 and 2 with queue pairs 10 and 20. It ends the sensor. While no
// sensor runs, job 3 creates queue pair 30, and all jobs send.
func upgrade(t *testing.T, end func(*testing.T, *source)) (hca.Tree, *statKernel, *statDevice) {
	t.Helper()
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	d := k.devices[0]
	older := newManage(t, tr, k)
	k.create(d, 10, 101)
	k.create(d, 20, 201)
	k.move(d, 10, 5, 7)
	k.move(d, 20, 3, 4)
	wantTraffic(t, older, "older", [3]uint64{1, 5, 7}, [3]uint64{2, 3, 4})
	end(t, older)
	const bound = ", 10:1 20:2,"
	wantPort(t, k, d, "older ended", strings.Replace(taken, ",,", bound, 1))
	k.create(d, 30, 301)
	for _, n := range []uint32{10, 20, 30} {
		k.move(d, n, 1000, 1000)
	}
	return tr, k, d
}

// TestUpgrade: the bytes of running queue pairs continue in the next sensor. The bytes of queue pairs that were created
// meanwhile begin there. Nothing is counted twice, and the next sensor changes nothing.
func TestUpgrade(t *testing.T) {
	for end, f := range ends {
		for _, mode := range []string{ModeManage, ModeUse} {
			t.Run(end+", then "+mode, func(t *testing.T) {
				tr, k, d := upgrade(t, f)
				before := len(k.asked())
				var younger *source
				if mode == ModeManage {
					younger = newManage(t, tr, k)
				} else {
					younger = counterSource(t, tr, k, mode)
				}
				wantTraffic(t, younger, "first read", [3]uint64{1, 0, 0}, [3]uint64{2, 0, 0}, [3]uint64{3, 0, 0})
				k.move(d, 10, 6, 1)
				k.move(d, 30, 8, 2)
				k.create(d, 40, 401)
				k.move(d, 40, 2, 9)
				want := [][3]uint64{{1, 6, 1}, {2, 0, 0}, {3, 8, 2}, {4, 2, 9}}
				wantTraffic(t, younger, "younger", want...)
				wantTraffic(t, younger, "again", want...)
				if r := refusal(t, younger); r.State != "" {
					t.Errorf("%+v", r)
				}
				if n := len(k.asked()); n != before {
					t.Errorf("the younger sensor changed %v", k.asked()[before:])
				}
			})
		}
	}
}

// TestUpgradeOff: a sensor with the mode off reads no counter, and the kernel continues to bind queue pairs. A sensor
// that manages afterwards continues with all of them.
func TestUpgradeOff(t *testing.T) {
	tr, k, d := upgrade(t, ends["in order"])
	off := counterSource(t, tr, k, "off")
	queried := k.queried()
	k.create(d, 40, 401)
	if got := traffic(t, off); got != "not collected" || k.queried() != queried {
		t.Errorf("off: %s, %d queries", got, k.queried()-queried)
	}
	off.Close()
	wantPort(t, k, d, "off", strings.Replace(taken, ",,", ", 10:1 20:2 30:3 40:4,", 1))
	s := newManage(t, tr, k)
	wantTraffic(t, s, "first read", [3]uint64{1, 0, 0}, [3]uint64{2, 0, 0}, [3]uint64{3, 0, 0}, [3]uint64{4, 0, 0})
	k.move(d, 10, 1, 2)
	k.move(d, 40, 3, 4)
	wantTraffic(t, s, "managed again", [3]uint64{1, 1, 2}, [3]uint64{2, 0, 0}, [3]uint64{3, 0, 0}, [3]uint64{4, 3, 4})
}

// TestUpgradeOtherMode: a mode that another tool set between two sensors is not changed. Queue pairs that are still bound are read.
func TestUpgradeOtherMode(t *testing.T) {
	tr, k, d := upgrade(t, ends["in order"])
	k.setStat(t, d, nldev.AttrStatMode, netlink.AppendU32(netlink.AppendU32(nil, nldev.AttrStatMode, nldev.ModeAuto), nldev.AttrStatMask, 0)) // auto off
	k.create(d, 40, 401)
	s := newManage(t, tr, k)
	if r := refusal(t, s); r.State != model.StateUnsupported || !strings.Contains(r.Reason, "the mode is manual already") {
		t.Errorf("%+v", r)
	}
	wantTraffic(t, s, "first read", [3]uint64{1, 0, 0}, [3]uint64{2, 0, 0}, [3]uint64{3, 0, 0})
	k.move(d, 10, 6, 1)
	k.move(d, 40, 9, 9)
	wantTraffic(t, s, "read", [3]uint64{1, 6, 1}, [3]uint64{2, 0, 0}, [3]uint64{3, 0, 0})
	for _, n := range []uint32{10, 20, 30} {
		k.destroy(d, n)
	}
	s.manager.tick()
	wantPort(t, k, d, "no queue pair is bound", taken)
}

// TestSideBySide: two sensors manage during a rolling update. The older sensor ends, and the younger one continues.
func TestSideBySide(t *testing.T) {
	for end, f := range ends {
		t.Run(end, func(t *testing.T) {
			tr := hca.NewTree(t)
			k := newStatKernel(t, tr, 1)
			d := k.devices[0]
			older := newManage(t, tr, k)
			k.create(d, 10, 101)
			k.move(d, 10, 5, 5)
			younger := newManage(t, tr, k)
			wantTraffic(t, older, "older", [3]uint64{1, 5, 5})
			k.create(d, 20, 201)
			k.move(d, 10, 1, 1)
			k.move(d, 20, 2, 2)
			wantTraffic(t, older, "older, of two", [3]uint64{1, 6, 6}, [3]uint64{2, 2, 2})
			wantTraffic(t, younger, "younger, of two", [3]uint64{1, 1, 1}, [3]uint64{2, 2, 2})
			f(t, older)
			k.move(d, 10, 3, 3)
			k.create(d, 30, 301)
			k.move(d, 30, 4, 4)
			younger.manager.tick()
			wantTraffic(t, younger, "alone", [3]uint64{1, 4, 4}, [3]uint64{2, 2, 2}, [3]uint64{3, 4, 4})
			if n := len(k.asked()); n != 2 {
				t.Errorf("changes %v, want two of the older sensor", k.asked())
			}
		})
	}
}

// TestAdoptCompletes: byte counters that are off in the mode of the manager are switched on. Queue pairs that are bound
// later are counted.
func TestAdoptCompletes(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	d := k.devices[0]
	d.ports[1].mode, d.ports[1].mask, d.ports[1].opcnt = nldev.ModeAuto, nldev.MaskPID, true
	s := newManage(t, tr, k)
	wantPort(t, k, d, "adopted", taken)
	if r := refusal(t, s); r.State != "" || len(k.asked()) != 1 {
		t.Errorf("%+v, changes %v", r, k.asked())
	}
}

// TestRemoveBindings: the commands of docs/rdma-bytes.md leave the port as it was before the first sensor. The requests
// are rdma-tool's.
func TestRemoveBindings(t *testing.T) {
	_, k, d := upgrade(t, ends["in order"])
	unbind := func(counter, qpn uint32) {
		t.Helper()
		k.setStat(t, d, cmdStatDel, netlink.AppendU32(netlink.AppendU32(nil, nldev.AttrCounterID, counter), nldev.AttrLQPN, qpn))
	}
	// rdma statistic qp set link mlx5_0/1 auto off
	k.setStat(t, d, nldev.AttrStatMode, netlink.AppendU32(netlink.AppendU32(nil, nldev.AttrStatMode, nldev.ModeAuto), nldev.AttrStatMask, 0))
	k.create(d, 40, 401) // is not bound
	wantPort(t, k, d, "auto off", strings.Replace(strings.Replace(taken, "mode 1 mask 2 true", "mode 2 mask 0 false", 1), ",,", ", 10:1 20:2 30:3,", 1))
	// rdma statistic qp unbind link mlx5_0/1 cntn N
	unbind(1, 10)
	unbind(2, 20)
	unbind(3, 30)
	// rdma statistic set link mlx5_0/1 optional-counters cc_rx_ce_pkts
	k.setStat(t, d, nldev.AttrHWCounters, netlink.Append(nil, nldev.AttrHWCounters|1<<15, netlink.AppendU32(nil, nldev.AttrHWIndex, 30)...))
	wantPort(t, k, d, "removed", free)
}

// setStat sends a request of another tool for port 1.
func (k *statKernel) setStat(t *testing.T, d *statDevice, what uint16, attrs []byte) {
	t.Helper()
	c, err := k.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := nldev.Request{Cmd: nldev.CmdStatSet, Index: &d.index, Port: 1, Acknowledge: true}
	if what == cmdStatDel {
		r.Cmd = cmdStatDel
	}
	r.Attrs = slices.Concat(netlink.AppendU32(nil, nldev.AttrStatRes, nldev.AttrQP), attrs)
	if err := c.Request(r, time.Now().Add(time.Minute), func([]byte) error { return nil }); err != nil {
		t.Errorf("%v: %v", what, err)
	}
}
