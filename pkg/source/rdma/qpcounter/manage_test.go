// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

const (
	free  = "mode 0 mask 0 false,, on cc_rx_ce_pkts"
	taken = "mode 1 mask 2 true,, on cc_rx_ce_pkts rdma_tx_bytes rdma_rx_bytes"
)

// newManage reads once and waits until the manager has visited all devices.
func newManage(t *testing.T, tr hca.Tree, k *statKernel, change ...func(*Options)) *source {
	t.Helper()
	s := counterSource(t, tr, k, ModeManage, change...)
	s.read()
	m := s.manager
	eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.devices) == 0 {
			return false
		}
		for _, d := range m.devices {
			for _, p := range d.ports {
				if p.state == "" && !d.stuck {
					return false
				}
			}
			if !d.stuck && d.call.Running() { // wait for the first visit: a tick during it does nothing
				return false
			}
		}
		return true
	})
	return s
}

func wantPort(t *testing.T, k *statKernel, d *statDevice, what, want string) {
	t.Helper()
	if got := k.port(d); got != want {
		t.Errorf("%s: %s is %q, want %q", what, d.name, got, want)
	}
}

// refusal returns the state of the counters of mlx5_0, port 1.
func refusal(t *testing.T, s *source) model.DeviceState {
	t.Helper()
	for _, d := range s.States() {
		if d.Device == "mlx5_0/1/qp-counters" {
			return d
		}
	}
	return model.DeviceState{}
}

func TestManage(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 2)
	d := k.devices[0]
	k.create(d, 5, 101) // created before auto mode: not bound
	s := newManage(t, tr, k)
	wantPort(t, k, d, "managed", taken)
	wantPort(t, k, k.devices[1], "managed", taken)
	if r := refusal(t, s); r.State != "" {
		t.Errorf("%+v", r)
	}
	k.create(d, 10, 101)
	k.create(d, 11, 101)
	k.create(d, 20, 201)
	k.move(d, 10, 4, 5)
	k.move(d, 20, 6, 7)
	wantTraffic(t, s, "managed", [3]uint64{1, 4, 5}, [3]uint64{2, 6, 7})
	s.manager.tick()
	before := len(k.asked())
	s.manager.tick()
	if n := len(k.asked()); n != before || n != 4 {
		t.Errorf("%d changes, then %d: want two for each device, once", before, n)
	}

	s.Close()
	wantPort(t, k, d, "closed", strings.Replace(taken, ",,", ", 10:1 11:1 20:2,", 1))
	wantPort(t, k, k.devices[1], "closed", taken)
	s.Close()
}

// TestManageRefuses: ports set by others are not changed, and bound counters are read.
func TestManageRefuses(t *testing.T) {
	for name, set := range map[string]func(k *statKernel, d *statDevice){
		"by type":                   func(_ *statKernel, d *statDevice) { d.ports[1].mode, d.ports[1].mask = nldev.ModeAuto, 1 },
		"manually":                  func(k *statKernel, d *statDevice) { k.create(d, 9, 101); k.bind(d, 9) },
		"without optional counters": func(_ *statKernel, d *statDevice) { d.ports[1].mode, d.ports[1].mask = nldev.ModeAuto, nldev.MaskPID },
	} {
		t.Run(name, func(t *testing.T) {
			tr := hca.NewTree(t)
			k := newStatKernel(t, tr, 1)
			d := k.devices[0]
			set(k, d)
			before := k.port(d)
			s := newManage(t, tr, k)
			r := refusal(t, s)
			if r.State != model.StateUnsupported || !strings.Contains(r.Reason, "rdma statistic qp set link mlx5_0/1 auto off") {
				t.Errorf("%+v", r)
			}
			if d.qp(9) != nil {
				k.move(d, 9, 3, 3)
				wantTraffic(t, s, "read nevertheless", [3]uint64{1, 3, 3})
			}
			s.Close()
			wantPort(t, k, d, "closed", before)
			if k.asked() != nil {
				t.Errorf("changes %v", k.asked())
			}
		})
	}
}

// TestManagePortFreedLater: a port that becomes free later is set then.
func TestManagePortFreedLater(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	d := k.devices[0]
	d.ports[1].mode, d.ports[1].mask = nldev.ModeAuto, 1
	s := newManage(t, tr, k)
	k.mu.Lock()
	d.ports[1].mode, d.ports[1].mask = nldev.ModeNone, 0
	k.mu.Unlock()
	late := k.plug(tr, 1)
	s.manager.tick()
	wantPort(t, k, d, "given free", taken)
	wantPort(t, k, late, "added later", taken)
	if r := refusal(t, s); r.State != "" {
		t.Errorf("%+v", r)
	}
}

// TestManageLoses: a mode that another tool sets afterwards stays, also when the sensor ends.
func TestManageLoses(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	d := k.devices[0]
	s := newManage(t, tr, k)
	k.mu.Lock()
	d.ports[1].mask = 3
	d.ports[1].optional[1].On = true
	k.mu.Unlock()
	s.manager.tick()
	if r := refusal(t, s); r.State != model.StateUnsupported || !strings.Contains(r.Reason, "another tool changed the mode to auto, mask 3") {
		t.Errorf("%+v", r)
	}
	s.manager.tick()
	s.Close()
	wantPort(t, k, d, "closed", "mode 1 mask 3 true,, on cc_rx_ce_pkts rdma_tx_packets rdma_tx_bytes rdma_rx_bytes")
}

// pull removes a device as a move to another network namespace does: its settings stay.
func (k *statKernel) pull() (putBack func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.devices[0]
	k.devices = k.devices[1:]
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.devices = append(k.devices, d)
	}
}

// TestManageDeviceReturns: a device that comes back is still managed.
func TestManageDeviceReturns(t *testing.T) {
	for name, meanwhile := range map[string]func(m *manager, putBack func()){
		"seen again":      func(m *manager, putBack func()) { m.tick(); putBack(); m.tick() },
		"back at the end": func(m *manager, putBack func()) { m.tick(); putBack() },
		"away for many ticks": func(m *manager, putBack func()) {
			m.tick()
			m.tick()
			m.tick()
			putBack()
			m.tick()
			m.tick()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := hca.NewTree(t)
			k := newStatKernel(t, tr, 2)
			s := newManage(t, tr, k)
			d := k.devices[0]
			wantPort(t, k, d, "managed", taken)
			meanwhile(s.manager, k.pull())
			if r := refusal(t, s); r.State != "" {
				t.Errorf("%+v", r)
			}
			wantPort(t, k, d, "returned", taken)
			if n := len(k.asked()); n != 4 {
				t.Errorf("%d changes, want two for each device, once", n)
			}
		})
	}
}

// TestManageDeviceMissing: a missing device has no state and is not changed.
func TestManageDeviceMissing(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	s := newManage(t, tr, k)
	d := k.devices[0]
	k.mu.Lock()
	d.ports[1].mask = 3 // set by another tool
	k.mu.Unlock()
	s.manager.tick()
	if r := refusal(t, s); r.State != model.StateUnsupported {
		t.Errorf("%+v", r)
	}
	putBack := k.pull()
	s.manager.tick()
	if r := refusal(t, s); r.State != "" {
		t.Errorf("away: %+v", r)
	}
	putBack()
	s.Close()
	wantPort(t, k, d, "closed", "mode 1 mask 3 true,, on cc_rx_ce_pkts rdma_tx_bytes rdma_rx_bytes")
}

// TestManageReloadedDriver: a reloaded driver makes another device of the same name, with mode off.
func TestManageReloadedDriver(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	s := newManage(t, tr, k)
	d := k.devices[0]
	k.mu.Lock()
	d.index = 99
	d.ports[1].mode, d.ports[1].mask, d.ports[1].opcnt = nldev.ModeNone, 0, false
	k.mu.Unlock()
	eventually(t, func() bool { // a tick does nothing while the manager visits the device
		s.manager.tick()
		return k.port(d) == taken
	})
	s.manager.mu.Lock()
	defer s.manager.mu.Unlock()
	if len(s.manager.devices) != 1 || s.manager.devices[99] == nil {
		t.Errorf("devices %v", s.manager.devices)
	}
}

// TestNoCgroups: bound counters are useless without the cgroups of processes.
func TestNoCgroups(t *testing.T) {
	for _, mode := range []string{ModeUse, ModeManage} {
		tr := hca.NewTree(t)
		k := newStatKernel(t, tr, 1)
		s := counterSource(t, tr, k, mode, func(o *Options) { o.CgroupOf = nil })
		for range 2 {
			rows, _ := s.read()
			if st := s.States(); len(st) != 1 || st[0].Device != "qp-counters" || st[0].State != model.StateUnsupported || rows != nil {
				t.Errorf("%s: %+v, traffic %v", mode, st, rows)
			}
		}
		if s.Close(); s.manager != nil || k.asked() != nil {
			t.Errorf("%s: changes %v", mode, k.asked())
		}
	}
}

// TestReadAfterClose: a read that ends after Close does not start the manager again.
func TestReadAfterClose(t *testing.T) {
	tr := hca.NewTree(t)
	s := newManage(t, tr, newStatKernel(t, tr, 1))
	s.Close()
	if s.read(); s.manager != nil {
		t.Error("the manager runs after Close")
	}
}

func TestManageCannot(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(k *statKernel)
		state  model.State
		reason string
	}{
		"no capability":     {func(k *statKernel) { k.denied = true }, model.StateFailed, "add CAP_NET_ADMIN"},
		"6.12":              {func(k *statKernel) { k.old = true }, model.StateUnsupported, "6.15"},
		"5.10":              {func(k *statKernel) { k.old = true; k.refuses[nldev.CmdStatStatus] = unix.EINVAL }, model.StateUnsupported, "6.15"},
		"not of this mode":  {func(k *statKernel) { k.refuses[nldev.CmdStatSet] = unix.EOPNOTSUPP }, model.StateUnsupported, "not supported"},
		"tool in between":   {func(k *statKernel) { k.refuses[nldev.CmdStatSet] = unix.EBUSY }, model.StateUnsupported, "another tool"},
		"firmware error":    {func(k *statKernel) { k.refuses[nldev.CmdStatSet] = unix.EIO }, model.StateFailed, "input/output"},
		"status fails":      {func(k *statKernel) { k.refuses[nldev.CmdStatStatus] = unix.EIO }, model.StateFailed, "input/output"},
		"byte counters off": {func(k *statKernel) { k.devices[0].ports[1].optional = nil }, model.StateUnsupported, "6.15"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := hca.NewTree(t)
			k := newStatKernel(t, tr, 1)
			c.set(k)
			before := k.port(k.devices[0])
			s := newManage(t, tr, k)
			if r := refusal(t, s); r.State != c.state || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("%+v", r)
			}
			if _, failed := s.read(); failed != "" {
				t.Errorf("the device itself: %s", failed)
			}
			s.Close()
			wantPort(t, k, k.devices[0], "closed", before)
		})
	}
}

// TestManageHalfWay: if the mode cannot be set the optional counters are restored at once.
func TestManageHalfWay(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	d := k.devices[0]
	conn, err := hca.Kernel(t, func(r []byte) [][]byte {
		if a := readAsks(r[16:]); native.Uint16(r[4:])&0x3ff == nldev.CmdStatSet && a.has[nldev.AttrStatMode] {
			b := hca.Failure(unix.EBUSY)
			copy(b[8:12], r[8:12])
			return [][]byte{b}
		}
		return k.answer(r)
	})()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := &nldev.Conn{Conn: conn}
	m := &manager{opt: &Options{Now: time.Now}}
	p := &managedPort{number: 1}
	state, reason := m.take(c, "mlx5_0", 3, p, time.Now().Add(time.Minute))
	if state != model.StateUnsupported || p.auto || len(k.asked()) != 2 {
		t.Errorf("%s %s, %+v, changes %v", state, reason, p, k.asked())
	}
	wantPort(t, k, d, "mode not set", free)
}

// TestNotManaged: excluded devices and drivers that cannot bind are not changed, though the kernel would accept the
// mode.
func TestNotManaged(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 4)
	tr.Link("class/infiniband/mlx5_0/device/driver", "../../../bus/pci/drivers/irdma")
	tr.Remove("class/infiniband/mlx5_1/device/driver") // like Soft-RoCE
	tr.Link("class/infiniband/mlx5_2/device/driver", "../../../bus/auxiliary/drivers/mlx5_core.sf")
	newManage(t, tr, k, func(o *Options) { o.Chosen = func(name string) bool { return name != "mlx5_3" } })
	if got := k.asked(); !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "mlx5_2 ") }) ||
		slices.ContainsFunc(got, func(s string) bool { return !strings.HasPrefix(s, "mlx5_2 ") }) {
		t.Errorf("changes %v", got)
	}
}

// TestManageHangs: a hanging device does not affect others, and Close returns after the deadline.
func TestManageHangs(t *testing.T) {
	tr := hca.NewTree(t)
	k := newStatKernel(t, tr, 1)
	s := counterSource(t, tr, k, ModeManage, func(o *Options) { o.Deadline = 2 * time.Second })
	hang := make(chan struct{})
	var dials atomic.Int32
	s.Manage(func() (*nldev.Conn, error) {
		if dials.Add(1) == 2 { // the first dial is for the list
			<-hang
		}
		return k.dial()
	})
	m := s.manager
	eventually(t, func() bool { return refusal(t, s).State == model.StateStuck })
	other := k.plug(tr, 1)
	eventually(t, func() bool { m.tick(); return k.port(other) == taken })
	wantPort(t, k, k.devices[0], "that hangs", free)
	began := time.Now()
	s.Close()
	if took := time.Since(began); took >= 4*time.Second {
		t.Errorf("closed after %v", took)
	}
	wantPort(t, k, other, "closed", taken)
	close(hang)
	eventually(t, func() bool { return !m.devices[3].call.Running() })
	wantPort(t, k, k.devices[0], "returned after Close", free)
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("not within a minute")
}
