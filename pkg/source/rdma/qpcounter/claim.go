// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
)

// take sets the mode of a port whose mode is off, or adopts the mode that an earlier sensor set.
func (m *manager) take(c *nldev.Conn, name string, index uint32, p *managedPort, deadline time.Time) (model.State, string) {
	mode, err := c.Mode(index, p.number, deadline)
	if err != nil {
		return m.failed(p, err)
	}
	if mode.Mode != nldev.ModeNone && !ours(mode) {
		return model.StateUnsupported, fmt.Sprintf("the mode is %v already, by another tool: "+
			"counters that are bound are read, nothing is changed; `rdma statistic qp set link %s/%d auto off` gives the port free",
			mode, name, p.number)
	}
	all, err := c.Optionals(index, p.number, deadline)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return m.failed(p, err)
	}
	var on, added []uint32
	has := 0
	for _, o := range all {
		bytes := o.Name == nldev.TxBytes || o.Name == nldev.RxBytes
		if bytes {
			has++
		}
		if bytes && !o.On {
			added = append(added, o.Index)
		}
		if bytes || o.On {
			on = append(on, o.Index)
		}
	}
	if has != 2 {
		p.final = true
		return model.StateUnsupported, "the port has no byte counters for queue pairs: that takes kernel 6.15, " +
			"and an HCA and a mode of it that count flows"
	}
	if len(added) > 0 {
		if err := c.SetOptionals(index, p.number, on, deadline); err != nil {
			return m.undo(c, index, p, added, deadline, err)
		}
	}
	if !ours(mode) {
		if err := c.SetAuto(index, p.number, deadline); err != nil {
			return m.undo(c, index, p, added, deadline, err)
		}
	}
	p.auto, p.pause = true, hang.Backoff{}
	return model.StateOK, ""
}

// undo switches off the optional counters that take switched on before err.
func (m *manager) undo(c *nldev.Conn, index uint32, p *managedPort, added []uint32, deadline time.Time, err error) (model.State, string) {
	if e := dropOptionals(c, index, p.number, added, deadline); e != nil {
		err = fmt.Errorf("%w; and %w", err, e)
	}
	if errors.Is(err, unix.EBUSY) {
		return model.StateUnsupported, "another tool is binding queue pairs: nothing is changed"
	}
	return m.failed(p, err)
}

// dropOptionals switches off some optional counters of a port, if one of them is on.
func dropOptionals(c *nldev.Conn, index, port uint32, drop []uint32, deadline time.Time) error {
	if len(drop) == 0 {
		return nil
	}
	all, err := c.Optionals(index, port, deadline)
	if err != nil {
		return err
	}
	var on []uint32
	dropped := false
	for _, o := range all {
		switch {
		case !o.On:
		case slices.Contains(drop, o.Index):
			dropped = true
		default:
			on = append(on, o.Index)
		}
	}
	if !dropped {
		return nil
	}
	return c.SetOptionals(index, port, on, deadline)
}

// check reads whether the mode is still as it was set. If another tool changed the mode, the port is no longer managed.
func (m *manager) check(c *nldev.Conn, index uint32, p *managedPort, deadline time.Time) (model.State, string) {
	mode, err := c.Mode(index, p.number, deadline)
	if err != nil {
		return model.StateFailed, err.Error()
	}
	if ours(mode) {
		return model.StateOK, ""
	}
	p.auto, p.final = false, true
	return model.StateUnsupported, fmt.Sprintf("another tool changed the mode to %v: it is left so until the sensor is started again", mode)
}

func ours(m nldev.QPMode) bool {
	return m.Mode == nldev.ModeAuto && m.Mask == nldev.MaskPID && m.Optionals
}

func (m *manager) failed(p *managedPort, err error) (model.State, string) {
	p.pause.Failed(m.opt.Now())
	switch {
	case errors.Is(err, unix.EPERM):
		p.final = true
		return model.StateFailed, fmt.Sprintf("%v: add CAP_NET_ADMIN, or use --rdma.qp-counters=use", err)
	case errors.Is(err, unix.EOPNOTSUPP):
		p.final = true
		return model.StateUnsupported, err.Error()
	}
	return model.StateFailed, err.Error()
}
