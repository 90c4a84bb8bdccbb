// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
)

// close ends the manager and restores its changes, within its deadline.
func (m *manager) close() error {
	close(m.stop)
	deadline := time.Now().Add(m.deadline)
	timer := time.NewTimer(m.deadline / 2)
	defer timer.Stop()
	select {
	case <-m.done:
	case <-timer.C: // a device hangs; restore the others
	}
	// A device that was missing may be back.
	_, _ = new(hang.Call[[]*managed]).Do(context.Background(), time.Until(deadline)/2, m.list)
	m.mu.Lock()
	devices := make([]*managed, 0, len(m.devices))
	var errs []error
	for _, d := range m.devices {
		if !d.away {
			devices = append(devices, d)
		} else if d.holds() {
			errs = append(errs, fmt.Errorf("counters of queue pairs of %s stay as they are: it was unplugged, or is in another "+
				"network namespace, where `rdma statistic qp set link %s/PORT auto off` stops binding more", d.name, d.name))
		}
	}
	m.mu.Unlock()
	errs = append(errs, m.restoreAll(devices, deadline)...)
	return errors.Join(errs...)
}

func (m *manager) restoreAll(devices []*managed, deadline time.Time) []error {
	errs := make([]error, len(devices))
	each(len(devices), func(i int) {
		d := devices[i]
		err := m.do(d, time.Until(deadline), func() error { return m.restore(d, deadline) })
		if err != nil {
			name := m.nameOf(d)
			errs[i] = fmt.Errorf("restoring the counter mode of queue pairs of %s: %w: "+
				"`rdma statistic qp set link %s/PORT auto off` stops binding more", name, err, name)
		}
	})
	return errs
}

// restore is the last call for a device. It first switches auto mode off, which is quick: the
// kernel binds no more queue pairs then, and the mode becomes none when the last bound queue
// pair is destroyed.
func (m *manager) restore(d *managed, deadline time.Time) error {
	if !slices.ContainsFunc(d.ports, (*managedPort).taken) {
		return nil
	}
	c, err := m.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var errs []error
	freed := map[uint32]bool{}
	for _, p := range d.ports {
		if p.auto {
			mode, err := c.mode(d.index, p.number, deadline)
			if err == nil && mode.ours() {
				if err = c.setMode(d.index, p.number, 0, false, deadline); err == nil {
					freed[p.number] = true
				}
			}
			errs = append(errs, err)
			p.auto = false
		}
		errs = append(errs, m.dropAdded(c, d.index, p, deadline))
	}
	if len(freed) > 0 {
		errs = append(errs, m.unbindAll(c, d, freed, deadline))
	}
	return errors.Join(errs...)
}

// dropAdded switches off only the optional counters that the manager switched on.
func (m *manager) dropAdded(c *conn, index uint32, p *managedPort, deadline time.Time) error {
	if len(p.added) == 0 {
		return nil
	}
	all, err := c.optionals(index, p.number, deadline)
	if err != nil {
		return err
	}
	var on []uint32
	ours := false
	for _, o := range all {
		switch {
		case !o.on:
		case slices.Contains(p.added, o.index):
			ours = true
		default:
			on = append(on, o.index)
		}
	}
	if ours {
		if err := c.setOptionals(index, p.number, on, deadline); err != nil {
			return err
		}
	}
	p.added = nil
	return nil
}

// unbindAll unbinds the queue pairs of these ports from the counters of auto mode. While a
// queue pair is bound the mode is not none, and no other mode can be set. None was bound before
// the manager set the mode, so all bindings are its own.
func (m *manager) unbindAll(c *conn, d *managed, ports map[uint32]bool, deadline time.Time) error {
	all, err := qpCounters(m.dial, d.index, deadline)
	if err != nil {
		return err
	}
	var first error
	for i := range all {
		e := &all[i]
		if !ports[e.port] || e.mode != modeAuto {
			continue
		}
		for _, n := range e.qpns {
			if !time.Now().Before(deadline) {
				return fmt.Errorf("queue pairs stay bound until they are destroyed: %w", hang.ErrStuck)
			}
			// A destroyed queue pair is unbound.
			err := c.unbind(d.index, e.port, e.id, n, deadline)
			if first == nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
				first = err
			}
		}
	}
	// Without CAP_NET_RAW the kernel hides raw packet queue pairs.
	for port := range ports {
		mode, err := c.mode(d.index, port, deadline)
		if err == nil && mode.mode != modeNone {
			err = fmt.Errorf("the mode of port %d is %v while queue pairs are bound that cannot be unbound", port, mode)
		}
		if err != nil {
			return errors.Join(err, first)
		}
	}
	return nil
}
