// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// fakeKernel answers like the kernel for mlx5. It stands in for hardware.
type fakeKernel struct {
	t        testing.TB
	calls    atomic.Int64 // requests, without identify
	inside   atomic.Int64
	hang     map[string]chan struct{} // requests about these interfaces wait for the channel
	slow     map[string]time.Duration // requests take this time
	missing  map[string]bool          // EOPNOTSUPP for everything
	priority int                      // with PFC
	strange  bool                     // other hardware addresses
	old      bool                     // Linux 5.10: no FEC_GET, no statistics of the state of links
	mu       sync.Mutex               // of the fields above
	closed   atomic.Bool
}

func (k *fakeKernel) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func (k *fakeKernel) pfc() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.priority
}

// enter begins a request. Only one request is made at a time.
func (k *fakeKernel) enter(name string) error {
	k.calls.Add(1)
	if k.inside.Add(1) > 1 {
		k.t.Error("two requests at a time")
	}
	defer k.inside.Add(-1)
	k.mu.Lock()
	c, slow, missing := k.hang[name], k.slow[name], k.missing[name]
	k.mu.Unlock()
	if c != nil {
		<-c
	}
	time.Sleep(slow)
	if missing {
		return fmt.Errorf("fake: %w", unix.EOPNOTSUPP)
	}
	return nil
}

func (k *fakeKernel) identify(name string) (int, []byte, error) {
	var index int
	if _, err := fmt.Sscanf(name, "eth%d", &index); err != nil {
		return 0, nil, unix.ENODEV
	}
	address := []byte{0x52, 0x54, 0, 0, 0, byte(index), 0, 0, 0, 0, 0, 0, 0, 0}
	if k.strange {
		address[0] = 0x66
	}
	return index, address, nil
}

func (k *fakeKernel) dcb(name string) ([]byte, error) {
	return dcbMessage(nlattr(2, pfcStruct(1<<k.pfc(), [8]uint64{}, [8]uint64{})...), apps([4]byte{5, 3, 26, 0})), k.enter(name)
}

func (k *fakeKernel) ethtool(cmd uint8, index int, statistics bool) ([]byte, error) {
	if err := k.enter(fmt.Sprint("eth", index)); err != nil {
		return nil, err
	}
	if k.old && (cmd == cmdFEC || cmd == cmdLinkState && statistics) {
		return nil, map[uint8]error{cmdFEC: unix.EOPNOTSUPP, cmdLinkState: unix.EINVAL}[cmd]
	}
	if cmd == cmdLinkState && !statistics {
		return stateMessage(1), nil
	}
	switch cmd {
	case cmdPause:
		return pauseMessage(0, 0, 1, 2), nil
	case cmdFEC:
		return fecMessage(50, []uint64{10}, []uint64{1}, []uint64{900}), nil
	case cmdLinkState:
		return stateMessage(1, nlattr(7, le32(3)...)), nil
	}
	return nil, unix.EOPNOTSUPP
}

func (k *fakeKernel) names() []string {
	p := fmt.Sprint(k.pfc())
	return []string{"rx_prio" + p + "_pause", "rx_prio" + p + "_pause_duration", "tx_pause_storm_error_events", "link_down_events_phy", "rx_corrected_bits_phy"}
}

func (k *fakeKernel) statisticNames(name string) ([]byte, error) {
	return stringSet(k.names()...), k.enter(name)
}

func (k *fakeKernel) statistics(name string) ([]byte, error) {
	return le64(100, 2e6, 3, 4, 5), k.enter(name)
}

func (k *fakeKernel) close() { k.closed.Store(true) }

// node makes a source of a node with HCAs mlx5_1 to mlx5_n and interfaces eth1 to ethn.
func node(t *testing.T, n int, k *fakeKernel) (tree, *Source) {
	t.Helper()
	f := newTree(t)
	for i := 1; i <= n; i++ {
		f.netdev(fmt.Sprint("eth", i), i, "mlx5_core")
		f.hca(fmt.Sprint("mlx5_", i), fmt.Sprint("eth", i))
	}
	k.t = t
	s, err := New(Options{Sysfs: f.root, kernel: k, isSysfs: func(string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	return f, s
}

func read(t *testing.T, s *Source) model.Snapshot {
	t.Helper()
	begin := time.Now()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 0 {
		t.Errorf("Read took %v", took)
	}
	return snap
}

func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{priority: 3}
		_, s := node(t, 1, k)
		began := time.Now()
		got := read(t, s)
		want := []model.Link{{
			Device: "mlx5_1", Port: 1, Netdev: "eth1", Driver: "mlx5_core", Read: began,
			DCB:    &model.DCB{PFC: [8]bool{3: true}, Trust: "dscp"},
			Pause:  []model.PauseCount{{Priority: "3", Frames: new(uint64(100)), Micros: new(uint64(2e6))}},
			Storms: []model.PauseStorm{{Type: "error", Count: 3}},
			FEC:    &model.FEC{Mode: "rs", Corrected: new(uint64(10)), Uncorrectable: new(uint64(1)), CorrectedBits: new(uint64(900))},
			Phy:    &model.Phy{Downs: new(uint64(3))},
			// From the files.
			Carrier: &model.Carrier{Up: true, Admin: true, Changes: 3, Downs: 1},
		}}
		if diff := cmp.Diff(want, got.Links); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if got.LinkFlaps == nil || len(got.LinkFlaps)+len(got.DeviceStates) > 0 {
			t.Errorf("%+v, %+v", got.LinkFlaps, got.DeviceStates)
		}
		// Another priority is enabled: the names are read again with the configuration.
		k.change(func() { k.priority = 5 })
		time.Sleep(configInterval + interval + time.Second) // no reading is in progress when the source is closed
		if p := read(t, s).Links[0]; p.Pause[0].Priority != "5" || !p.DCB.PFC[5] || p.DCB.PFC[3] {
			t.Errorf("after a change: %+v, %+v", p.Pause, p.DCB)
		}
		if err := s.Close(); err != nil || !k.closed.Load() {
			t.Errorf("closed: %v", err)
		}
	})
}

// TestRequests counts the requests in half an hour: the configuration and names every 5 minutes, counters every 30 s.
// What a driver lacks is requested once.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{priority: 3, missing: map[string]bool{"eth2": true}}
		_, s := node(t, 2, k)
		defer s.Close() //nolint:errcheck // nothing to lose
		const time30 = 30 * time.Minute
		time.Sleep(time30 - time.Second)
		const want = (time30/configInterval)*2 + time30/interval*4 + time.Duration(stepCount+1) // of eth1 and eth2; eth2: the state twice
		if n := k.calls.Load(); n > int64(want) || n < int64(want)*9/10 {
			t.Errorf("%d requests, want %d", n, want)
		}
		if got := read(t, s); len(got.Links) != 2 || got.Links[1].FEC != nil || got.Links[1].Read.IsZero() {
			t.Errorf("%+v", got.Links[1])
		}
	})
}

// TestOldKernel: Linux 5.10 has FEC and the losses of the link in `ethtool -S` only. What it lacks is requested once.
func TestOldKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{priority: 3, old: true}
		_, s := node(t, 1, k)
		defer s.Close() //nolint:errcheck // nothing to lose
		l := read(t, s).Links[0]
		if diff := cmp.Diff(&model.FEC{CorrectedBits: new(uint64(5))}, l.FEC); diff != "" || l.Phy == nil || *l.Phy.Downs != 4 || l.Read.IsZero() {
			t.Errorf("FEC (-want +got):\n%s%+v", diff, l.Phy)
		}
		calls := k.calls.Load()
		time.Sleep(interval + poll)
		if n := k.calls.Load() - calls; n != 3 {
			t.Errorf("%d requests, want pause, statistics and state", n)
		}
	})
}

// TestInfiniBand: an IPoIB interface has statistics only, and its carrier is not the link's.
func TestInfiniBand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{t: t}
		f := newTree(t)
		f.netdev("eth1", 1, "mlx5_core") // the name does not matter
		f.write("class/net/eth1/type", "32")
		f.write("class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand")
		f.write("class/infiniband/mlx5_1/device/net/eth1/mtu", "2044")
		s, err := New(Options{Sysfs: f.root, kernel: k, isSysfs: func(string) bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close() //nolint:errcheck // nothing to lose
		got := read(t, s).Links
		want := []model.Link{{
			Device: "mlx5_1", Port: 1, Netdev: "eth1", Driver: "mlx5_core", Read: got[0].Read, Storms: []model.PauseStorm{{Type: "error", Count: 3}},
			Pause: []model.PauseCount{{Priority: "0", Frames: new(uint64(100)), Micros: new(uint64(2e6))}},
			FEC:   &model.FEC{CorrectedBits: new(uint64(5))}, Phy: &model.Phy{Downs: new(uint64(4))},
		}}
		if diff := cmp.Diff(want, got); diff != "" || k.calls.Load() != 2 {
			t.Errorf("%d requests (-want +got):\n%s", k.calls.Load(), diff)
		}
	})
}

// TestPauses: which priorities are listed.
func TestPauses(t *testing.T) {
	counts := func(list ...model.PauseCount) *counted {
		c := &counted{pauses: map[pauseKey]*model.PauseCount{}}
		for _, p := range list {
			c.pauses[pauseKey{p.Transmit, p.Priority}] = &p
		}
		return c
	}
	frames := func(transmit bool, priority string, n uint64) model.PauseCount {
		return model.PauseCount{Transmit: transmit, Priority: priority, Frames: &n}
	}
	pfc := func(priorities ...int) *dcbReply {
		d := &dcbReply{sent: [8]uint64{1, 2, 3, 4, 5, 6, 7, 8}, received: [8]uint64{11, 12, 13, 14, 15, 16, 17, 18}}
		for _, p := range priorities {
			d.PFC[p] = true
		}
		return d
	}
	for name, c := range map[string]struct {
		reader driverReader
		want   []model.PauseCount
	}{
		"ice: of eight priorities, the one with PFC": {
			driverReader{dcb: pfc(5), counted: counts(frames(false, "5", 0), frames(false, "4", 9), frames(true, "5", 1), frames(true, "4", 2))},
			[]model.PauseCount{frames(false, "5", 0), frames(true, "5", 1)},
		},
		"mlx5: the counters in DCB are stale": {
			driverReader{iface: iface{driver: "mlx5_core"}, dcb: pfc(3), counted: counts(frames(false, "3", 7))}, []model.PauseCount{frames(false, "3", 7)},
		},
		"i40e: the counters in DCB": {
			driverReader{iface: iface{driver: "i40e"}, dcb: pfc(3)}, []model.PauseCount{frames(false, "3", 14), frames(true, "3", 4)},
		},
		"ionic and mana: no configuration, from the first pause on": {
			driverReader{counted: counts(frames(false, "tc0", 0), frames(false, "tc1", 1), frames(true, "any", 0), frames(false, "3", 2))},
			[]model.PauseCount{frames(false, "3", 2), frames(false, "tc1", 1)},
		},
		"pause of the link, received only": {
			driverReader{dcb: pfc(), global: &pauseReply{rx: true}, counted: counts(frames(false, "global", 0), frames(true, "global", 3), frames(true, "0", 4))},
			[]model.PauseCount{frames(false, "global", 0)},
		},
		"pause of the link, standard statistics": {
			driverReader{
				global:  &pauseReply{rx: true, tx: true, received: new(uint64(21)), sent: new(uint64(22))},
				counted: counts(frames(false, "global", 5)),
			},
			[]model.PauseCount{frames(false, "global", 21), frames(true, "global", 22)},
		},
		"nothing": {driverReader{}, nil},
	} {
		if diff := cmp.Diff(c.want, c.reader.pauses()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	r := driverReader{global: &pauseReply{storms: new(uint64(4))}, counted: &counted{storms: map[string]uint64{"warning": 1, "error": 3}}}
	if diff := cmp.Diff([]model.PauseStorm{{Type: "error", Count: 4}, {Type: "warning", Count: 1}}, r.storms()); diff != "" {
		t.Errorf("storms (-want +got):\n%s", diff)
	}
}

// TestHangingDriver: a driver hangs for an hour. Read returns at once, facts stay and their age grows, no further
// request is made, and the carriers are still read. Afterwards all interfaces are read again.
func TestHangingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{priority: 3, hang: map[string]chan struct{}{}}
		f, s := node(t, 3, k)
		before := read(t, s)
		began := time.Now()
		release := make(chan struct{})
		k.change(func() { k.hang["eth2"] = release })
		time.Sleep(time.Hour)
		calls := k.calls.Load()
		f.carrier("eth1", "0x1003", "down", 4, 2)
		time.Sleep(time.Minute)
		f.carrier("eth1", "0x1003", "up", 5, 2)
		time.Sleep(time.Minute)
		got := read(t, s)
		if n := k.calls.Load(); n != calls {
			t.Errorf("%d requests while one hangs", n-calls)
		}
		if diff := cmp.Diff(before.Links, got.Links, cmpopts.IgnoreFields(model.Link{}, "Read", "Carrier")); diff != "" {
			t.Errorf("facts (-before +then):\n%s", diff)
		}
		for _, l := range got.Links {
			if age := time.Since(l.Read); age < time.Hour {
				t.Errorf("%s: %v old", l.Netdev, age)
			}
		}
		if c := got.Links[0].Carrier; c.Flaps != 1 || c.Changes != 5 || len(got.LinkFlaps) != 1 {
			t.Errorf("carrier %+v, flaps %+v", c, got.LinkFlaps)
		}
		var states []string
		for _, d := range got.DeviceStates {
			states = append(states, d.Device+" "+string(d.State))
			if waits := d.Waiting.Sub(began); waits < 0 || waits > interval+poll {
				t.Errorf("%s waits since %v", d.Device, waits)
			}
		}
		if diff := cmp.Diff([]string{"eth1 blocked", "eth2 stuck", "eth3 blocked"}, states); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		close(release)
		time.Sleep(2*time.Minute + poll)
		got = read(t, s)
		for _, l := range got.Links {
			if age := time.Since(l.Read); age > interval+poll {
				t.Errorf("%s is %v old after the driver has returned", l.Netdev, age)
			}
		}
		if len(got.DeviceStates) > 0 {
			t.Errorf("states %+v", got.DeviceStates)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseWhileHanging: Close does not wait for the driver. The sockets are closed when it returns.
func TestCloseWhileHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		k := &fakeKernel{hang: map[string]chan struct{}{"eth1": release}}
		_, s := node(t, 1, k)
		time.Sleep(time.Minute)
		begin := time.Now()
		if err := s.Close(); err != nil || time.Since(begin) > 0 || k.closed.Load() {
			t.Errorf("%v after %v, sockets closed: %v", err, time.Since(begin), k.closed.Load())
		}
		close(release)
		synctest.Wait()
		if !k.closed.Load() {
			t.Error("the sockets are open")
		}
	})
}

// TestFirstRead: the first Read returns with its context while the first request hangs, and has the kernel's own
// counts.
func TestFirstRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, s := node(t, 1, &fakeKernel{hang: map[string]chan struct{}{"eth1": release}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		got, err := s.Read(ctx)
		if err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if len(got.Links) != 1 || got.Links[0].Carrier == nil || got.Links[0].FEC != nil || !got.Links[0].Read.IsZero() {
			t.Errorf("%+v", got.Links)
		}
		close(release)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowDriver: each request of an interface takes 0.7 s. This interface is read at growing intervals, a part at a
// time, and the others every 30 s.
func TestSlowDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{priority: 3, slow: map[string]time.Duration{"eth1": 700 * time.Millisecond}}
		_, s := node(t, 2, k)
		defer s.Close() //nolint:errcheck // nothing to lose
		time.Sleep(10 * time.Minute)
		got := read(t, s)
		if age := time.Since(got.Links[1].Read); age > interval+poll {
			t.Errorf("eth2 is %v old", age)
		}
		if l := got.Links[0]; l.FEC == nil || l.DCB == nil || l.Phy == nil || l.Pause == nil {
			t.Errorf("a part of eth1 was never read: %+v", l)
		}
		if d := got.DeviceStates; len(d) != 1 || d[0].Device != "eth1" || d[0].State != model.StateQuarantined {
			t.Errorf("%+v", d)
		}
		calls := k.calls.Load()
		time.Sleep(time.Hour)
		// eth2: four requests each 30 s and the configuration. eth1: every half an hour or less often.
		if n, most := k.calls.Load()-calls, int64(120*4+24+3*stepCount); n > most {
			t.Errorf("%d requests, want at most %d", n, most)
		}
	})
}

// TestBudget: many slightly slow interfaces share a tenth of the time.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		k := &fakeKernel{slow: map[string]time.Duration{}}
		for i := 1; i <= n; i++ {
			k.slow[fmt.Sprint("eth", i)] = 150 * time.Millisecond
		}
		_, s := node(t, n, k)
		defer s.Close() //nolint:errcheck // nothing to lose
		time.Sleep(time.Hour)
		busy := time.Duration(k.calls.Load()) * 150 * time.Millisecond
		if busy > 7*time.Minute || busy < 5*time.Minute {
			t.Errorf("%v of an hour", busy)
		}
		for _, l := range read(t, s).Links {
			if age := time.Since(l.Read); age > 10*time.Minute {
				t.Errorf("%s is %v old", l.Netdev, age)
			}
		}
	})
}

// TestInterfaces: what belongs to which port.
func TestInterfaces(t *testing.T) {
	f := newTree(t)
	for i, name := range []string{"eth0", "eth1", "eth2", "eth3", "eth4", "bond0", "bond0.5", "ib0", "ib0.8001", "eth0_rep"} {
		f.netdev(name, i+1, "mlx5_core")
	}
	f.hca("mlx5_0", "eth0")
	f.hca("mlx5_1", "eth9") // in another namespace
	f.hca("mlx5_2", "eth2")
	// A bond, and a VLAN on it.
	f.hca("mlx5_bond_0", "bond0.5")
	f.write("class/net/bond0.5/uevent", "INTERFACE=bond0.5\nDEVTYPE=vlan")
	f.link("class/net/bond0.5/lower_bond0", "../bond0")
	f.write("class/net/bond0/uevent", "DEVTYPE=bond")
	f.link("class/net/bond0/lower_eth1", "../eth1")
	f.link("class/net/bond0/lower_eth3", "../eth3")
	// The same HCA by the GID of a leg; two HCAs with their own functions in a bond.
	f.netdev("eth5", 11, "mlx5_core")
	f.netdev("eth6", 12, "mlx5_core")
	f.netdev("bond1", 13, "")
	f.hca("mlx5_4", "eth5")
	f.hca("mlx5_5", "bond1")
	f.write("class/net/bond1/uevent", "DEVTYPE=bond")
	for leg, hca := range map[string]string{"eth5": "mlx5_4", "eth6": "mlx5_5"} {
		f.link("class/net/bond1/lower_"+leg, "../"+leg)
		f.link("class/net/"+leg+"/master", "../bond1")
		f.write("class/net/"+leg+"/device/infiniband/"+hca+"/node_type", "1: CA")
	}
	f.link("class/net/eth1/master", "../bond0")
	f.hca("mlx5_bond_1", "eth1")
	f.write("class/net/eth1/speed", "200000")
	f.write("class/net/eth3/speed", "-1")
	// Soft-RoCE on the interface of an HCA, without a GID.
	f.write("class/infiniband/rxe0/ports/1/link_layer", "Ethernet")
	f.write("class/infiniband/rxe0/parent", "eth0")
	// A VF of a PF with an HCA, and a VF of a PF without an HCA. The first port of a PF has the shortest name.
	for vf, pf := range map[string]string{"mlx5_8": "eth0", "mlx5_9": "eth4"} {
		f.hca(vf, "eth2")
		f.write("class/infiniband/"+vf+"/device/physfn/net/"+pf+"/mtu", "1500")
	}
	// InfiniBand with an interface of another partition.
	f.write("class/infiniband/mlx5_3/ports/1/link_layer", "InfiniBand")
	for _, name := range []string{"ib0", "ib0.8001"} {
		f.write("class/net/"+name+"/type", "32")
		f.write("class/infiniband/mlx5_3/device/net/"+name+"/mtu", "2044")
	}
	// An HCA that is excluded.
	f.hca("mlx5_7", "eth3")
	chosen := (&Source{o: Options{Exclude: regexp.MustCompile("mlx5_7")}}).chosen
	found, err := find(f.root, chosen)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, i := range found {
		got[i.name] = fmt.Sprint(i.index, " ", i.driver, " ", i.ports, " ", i.infiniband, " ", i.bond, " ", i.follows, " ", i.speed/1e9)
	}
	want := map[string]string{
		"eth0": "1 mlx5_core [{mlx5_0 1} {rxe0 1}] false  false 0", "eth2": "3 mlx5_core [{mlx5_2 1}] false  false 0",
		"eth1": "2 mlx5_core [{mlx5_bond_0 1} {mlx5_bond_1 1}] false bond0 true 200",
		"eth3": "4 mlx5_core [{mlx5_bond_0 1} {mlx5_bond_1 1}] false bond0 true 0",
		"eth4": "5 mlx5_core [] false  false 0", "ib0": "8 mlx5_core [{mlx5_3 1}] true  false 0",
		"eth5": "11 mlx5_core [{mlx5_4 1}] false bond1 false 0", "eth6": "12 mlx5_core [{mlx5_5 1}] false bond1 false 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBondSetDown: the port of an HCA with all legs of a bond follows the bond, whose legs stay up when it is set down.
func TestBondSetDown(t *testing.T) {
	f := newTree(t)
	for i, name := range []string{"eth0", "eth1", "bond0"} {
		f.netdev(name, i+1, "mlx5_core")
	}
	f.hca("mlx5_bond_0", "bond0")
	f.write("class/net/bond0/uevent", "DEVTYPE=bond")
	for _, leg := range []string{"eth0", "eth1"} {
		f.link("class/net/bond0/lower_"+leg, "../"+leg)
		for file, value := range map[string]string{"flags": "0x1803", "operstate": "up", "carrier_changes": "1", "carrier_down_count": "0"} {
			f.write("class/net/"+leg+"/"+file, value)
		}
	}
	s := newSource(Options{Sysfs: f.root})
	defer s.Close()
	found, err := find(f.root, s.chosen)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bond, leg string
		want      model.Carrier
	}{
		{"0x1403", "0x1803", model.Carrier{Up: true, Admin: true, Changes: 1}},
		{"0x1402", "0x1803", model.Carrier{Up: true, SetDown: "bond0", Changes: 1}},
		{"", "0x1803", model.Carrier{Up: true, Admin: true, Changes: 1}},
		{"0x1403", "0x1803", model.Carrier{Up: true, Admin: true, Changes: 1}},
	} {
		f.write("class/net/bond0/flags", c.bond)
		f.write("class/net/eth0/flags", c.leg)
		s.update(found, nil, time.Now())
		if d := cmp.Diff(&c.want, s.netdevs["eth0"].carrier()); d != "" {
			t.Errorf("bond %q: %s", c.bond, d)
		}
	}
	f.write("class/net/eth0/operstate", "down")
	f.write("class/net/eth0/flags", "0x1802")
	if s.watchCarriers(time.Now()); s.netdevs["eth0"].carrier().SetDown != "eth0" {
		t.Errorf("%+v", s.netdevs["eth0"].carrier())
	}
}

// TestStates: without interfaces, with a copy of sysfs, and in another network namespace.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(o Options) (*Source, model.Snapshot, error) {
			s, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Read(t.Context())
			if closed := s.Close(); closed != nil {
				t.Error(closed)
			}
			return s, got, err
		}
		if _, got, err := open(Options{Sysfs: t.TempDir()}); !errors.Is(err, model.ErrAbsent) || got.Links == nil {
			t.Errorf("without an HCA: %+v, %v", got, err)
		}
		f := newTree(t)
		f.netdev("eth1", 1, "")
		f.hca("mlx5_1", "eth1")
		k := &fakeKernel{t: t}
		if _, got, err := open(Options{Sysfs: f.root, kernel: k}); !errors.Is(err, model.ErrUnsupported) || k.calls.Load() > 0 || got.Links[0].Carrier == nil {
			t.Errorf("a copy of sysfs: %+v, %v", got.Links, err)
		}
		yes := func(string) bool { return true }
		k.strange = true
		_, got, err := open(Options{Sysfs: f.root, kernel: k, isSysfs: yes})
		if err != nil || k.calls.Load() > 0 || len(got.DeviceStates) != 1 || got.DeviceStates[0].State != model.StateUnsupported {
			t.Errorf("another interface of the same name: %+v, %v", got.DeviceStates, err)
		}
	})
}

// TestReplacedInterface: an interface with another index is another interface, whose counters begin again.
func TestReplacedInterface(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := node(t, 2, &fakeKernel{})
		defer s.Close() //nolint:errcheck // nothing to lose
		time.Sleep(time.Second)
		f.carrier("eth2", "0x1003", "up", 5, 2)
		time.Sleep(poll)
		if c := read(t, s).Links[1].Carrier; c.Flaps != 1 || c.Changed.IsZero() {
			t.Errorf("%+v", c)
		}
		f.write("class/net/eth2/ifindex", "9")
		time.Sleep(interval + poll)
		got := read(t, s)
		if l := got.Links[1]; l.Carrier.Flaps != 0 || !l.Carrier.Changed.IsZero() || len(got.DeviceStates) != 1 {
			t.Errorf("%+v, %+v", l.Carrier, got.DeviceStates)
		}
	})
}
