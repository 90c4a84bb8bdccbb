// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestQueryHangs: while a query of a port hangs, the device is stuck and its ports have no state, not even an earlier
// state. Everything else is read at each Read. When the query returns, the ports have the state that it found.
func TestQueryHangs(t *testing.T) {
	for _, file := range []string{"state", "phys_state", "rate", "lid", "sm_lid"} {
		for _, when := range []string{"from the start", "later"} {
			t.Run(file+" "+when, func(t *testing.T) {
				t.Parallel()
				tr := hca.NewTree(t)
				tr.HCA(0, 1)
				dev := tr.HCA(1, 1)
				now := time.Unix(1e9, 0)
				s := newSource(t, tr, func(o *Options) { o.Now = func() time.Time { return now } })
				s.kept.Store(0) // each read opens the file
				if when == "later" {
					if p := mustRead(t, s).HCAs[1].Ports[0]; p.State != "ACTIVE" || p.LID != "0x1" || p.SMLID != "0x2" {
						t.Fatalf("%+v", p)
					}
				}
				unblock := tr.Fifo(dev + "/ports/1/" + file)
				now = now.Add(sysfs.AttrsAge) // all attributes are read again
				s.opt.Deadline = time.Second
				eventually(t, func() bool { return states(mustRead(t, s)) == "mlx5_0=ok mlx5_1=stuck" }) // mlx5_0 may time out once
				s.opt.Deadline = time.Hour                                                               // a Read that waits for the query blocks
				for value := uint64(100); value < 103; value++ {
					tr.Counters(dev, value)
					tr.Put(dev+"/ports/1/gid_attrs/ndevs/0", "eth7\n")
					now = now.Add(sysfs.AttrsAge)
					snap := mustRead(t, s)
					if got := states(snap); got != "mlx5_0=ok mlx5_1=stuck" {
						t.Fatalf("states %q", got)
					}
					if got := snap.DeviceStates[1].Reason; !strings.Contains(got, "state, rate and LIDs of its ports") {
						t.Errorf("reason %q", got)
					}
					if p := snap.HCAs[0].Ports[0]; p.State != "ACTIVE" || p.RateBits != 400e9 {
						t.Errorf("the other device: %+v", p)
					}
					want := model.Port{
						Number: 1, LinkLayer: "InfiniBand", Netdev: "eth7", PortGUID: "0xa088c20300000001",
						Counters: counters(hca.PMACounters, value), HWCounters: counters(hca.HWCounters, value+100),
					}
					if d := cmp.Diff(want, snap.HCAs[1].Ports[0]); d != "" {
						t.Errorf("(-want +got):\n%s", d)
					}
				}
				tr.Remove(dev + "/ports/1/" + file)
				for name, content := range map[string]string{
					"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)", "lid": "0x7", "sm_lid": "0x8",
				} {
					tr.Put(dev+"/ports/1/"+name, content+"\n")
				}
				tr.Put(dev+"/ports/1/gid_attrs/ndevs/0", "eth8\n")
				unblock()
				eventually(t, func() bool { return states(mustRead(t, s)) == "mlx5_0=ok mlx5_1=ok" })
				now = now.Add(sysfs.SMAge)
				p := mustRead(t, s).HCAs[1].Ports[0]
				got := []any{p.State, p.PhysState, p.RateBits, p.Width, p.Speed, p.LID, p.SMLID, p.Netdev}
				if d := cmp.Diff([]any{"DOWN", "Disabled", 10e9, 4, "SDR", "0x7", "0x8", "eth8"}, got); d != "" {
					t.Errorf("after the query has returned (-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestQueryHangsAndRemoved: a device that is removed while a query hangs leaves no descriptor.
func TestQueryHangsAndRemoved(t *testing.T) {
	t.Parallel()
	tr := hca.NewTree(t)
	dev := tr.HCA(0, 1)
	unblock := tr.Fifo(dev + "/ports/1/phys_state")
	s := newSource(t, tr, func(o *Options) { o.Deadline = 100 * time.Millisecond })
	kept := s.kept.Load()
	eventually(t, func() bool {
		return names(mustRead(t, s)) == "mlx5_0" && s.devices[0].query.Running()
	})
	hung := s.devices[0]
	tr.Remove(dev)
	tr.HCA(1, 1)
	s.opt.Deadline = time.Minute
	if got := states(mustRead(t, s)); got != "mlx5_1=ok" {
		t.Errorf("states %q", got)
	}
	unblock()
	eventually(t, func() bool { return !hung.call.Running() && !hung.query.Running() })
	if hung.files.IsOpen() || hung.queries.IsOpen() || len(hung.files.Ports)+len(hung.queries.Ports) != 0 {
		t.Errorf("open: %v, %v; %d and %d ports", hung.files.IsOpen(), hung.queries.IsOpen(), len(hung.files.Ports), len(hung.queries.Ports))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := s.kept.Load(); got != kept {
		t.Errorf("%d descriptors are kept after Close", kept-got)
	}
}

// TestManyQueriesHang: more devices hang in queries than are read at the same time. Only the first Read waits for these
// queries, and all counters are read. If the counters of a device hang, too, it has no values until the call for the
// counters returns.
func TestManyQueriesHang(t *testing.T) {
	t.Parallel()
	const many = 2 * sysfs.InFlight
	tr := hca.NewTree(t)
	var unblock []func()
	for n := range many {
		unblock = append(unblock, tr.Fifo(tr.HCA(n, 1)+"/ports/1/state"))
	}
	tr.HCA(90, 1)
	s := newSource(t, tr, func(o *Options) { o.Deadline = time.Second })
	s.kept.Store(0) // each read opens the file
	stuck := func(snap model.Snapshot) (n int) {
		for _, d := range snap.DeviceStates {
			if d.State == model.StateStuck {
				n++
			}
		}
		return n
	}
	eventually(t, func() bool { return stuck(mustRead(t, s)) == many }) // mlx5_90 may time out once
	s.opt.Deadline = time.Hour                                          // a Read that waits for a query blocks
	snap := mustRead(t, s)
	if stuck(snap) != many || len(snap.HCAs) != many+1 {
		t.Fatalf("%d of %d HCAs are stuck", stuck(snap), len(snap.HCAs))
	}
	for _, h := range snap.HCAs {
		if p := h.Ports[0]; len(p.Counters) != len(hca.PMACounters) || (p.State == "ACTIVE") != (h.Name == "mlx5_90") {
			t.Errorf("%s: %d counters, state %q", h.Name, len(p.Counters), p.State)
		}
	}

	const both = "class/infiniband/mlx5_0/ports/1/"
	counts := tr.Fifo(both + "counters/link_downed")
	s.opt.Deadline = time.Second
	eventually(t, func() bool { return len(mustRead(t, s).HCAs) == many && s.devices[0].call.Running() })
	s.opt.Deadline = time.Hour
	tr.Remove(both + "state")
	tr.Put(both+"state", "1: DOWN\n")
	unblock[0]()
	eventually(t, func() bool { return !s.devices[0].query.Running() })
	if snap := mustRead(t, s); len(snap.HCAs) != many || snap.DeviceStates[0].State != model.StateStuck {
		t.Errorf("%d HCAs, %+v", len(snap.HCAs), snap.DeviceStates[0])
	}
	tr.Remove(both + "counters/link_downed")
	tr.Put(both+"counters/link_downed", "7\n")
	counts()
	eventually(t, func() bool { return stuck(mustRead(t, s)) == many-1 })
	if p := mustRead(t, s).HCAs[0].Ports[0]; p.State != "DOWN" || len(p.Counters) != len(hca.PMACounters) {
		t.Errorf("%+v", p)
	}
}
