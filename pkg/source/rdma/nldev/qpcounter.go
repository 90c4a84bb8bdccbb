// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"os"
	"time"

	"github.com/accelscope/accelscope/pkg/netlink"
)

// QPCounter is a counter as listed by a STAT_GET dump.
type QPCounter struct {
	Port, ID uint32
	Mode     uint32
	PID      uint32 // thread, in the own PID namespace; 0 if the thread ended or is not reported
	Kernel   bool   // the queue pairs belong to the kernel
	ByType   bool   // auto mode by type of queue pairs, and maybe by PID
	QPNs     []uint32
	Tx, Rx   uint64
	HasTx    bool
	HasRx    bool
}

// QPCounters dumps the counters of a device. Each counter costs a firmware query, plus one for
// each optional counter.
func QPCounters(dial func() (*Conn, error), index uint32, deadline time.Time) ([]QPCounter, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := Request{Cmd: CmdStatGet, dump: true, Index: &index}
	r.Attrs = netlink.AppendU32(nil, AttrStatRes, AttrQP)
	all := []QPCounter{}
	empty := 0
	err = c.Request(r, deadline, func(payload []byte) error {
		n := len(all)
		if all, err = parseQPCounters(all, payload); err != nil {
			return err
		}
		// If an entry exceeds a message, the kernel sends empty messages without end. The first message is small.
		if empty++; len(all) > n {
			empty = 0
		}
		switch {
		case empty == 4:
			return errTooBig
		case time.Now().After(deadline):
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	return all, err
}

func parseQPCounters(all []QPCounter, payload []byte) ([]QPCounter, error) {
	err := walkTable(payload, AttrStatCounter, AttrStatCounter+1, func(b []byte) error {
		e, err := parseQPCounter(b)
		if err == nil {
			all, err = appendMax(all, e, maxBound)
		}
		return err
	})
	return all, err
}

func parseQPCounter(b []byte) (e QPCounter, err error) {
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case AttrPortIndex:
			e.Port = a.U32()
		case AttrCounterID:
			e.ID = a.U32()
		case AttrStatMode:
			e.Mode = a.U32()
		case AttrPID:
			e.PID = a.U32()
		case AttrKernName:
			e.Kernel = true
		case AttrQPType:
			e.ByType = true
		case AttrQP:
			err = walkTable(a.Data, AttrQPEntry, AttrLQPN, func(b []byte) error {
				v := netlink.Attrs{Type: AttrLQPN, Data: b}
				e.QPNs = append(e.QPNs, v.U32())
				return v.Err
			})
		case AttrHWCounters:
			err = netlink.Walk(a.Data, AttrHWCounter, e.value)
		}
		if err != nil {
			return e, err
		}
	}
	return e, a.Err
}

// value parses one hardware counter and keeps the byte counters.
func (e *QPCounter) value(b []byte) error {
	c, err := parseHWCounter(b)
	if err != nil || !c.valued {
		return err
	}
	switch string(c.name) {
	case TxBytes:
		e.Tx, e.HasTx = c.value, true
	case RxBytes:
		e.Rx, e.HasRx = c.value, true
	}
	return nil
}

// Creator returns the thread that created a queue pair. If the thread ended, it returns the
// thread that created the protection domain or opened the device, or 0 if unknown.
func (c *Conn) Creator(index, port, qpn uint32, deadline time.Time) (pid uint32, err error) {
	// Only the QP lookup queries the firmware.
	qp, err := c.one(qpTable, index, port, qpn, deadline)
	if err != nil || qp.pid != 0 || qp.inKernel || !qp.hasPD {
		return qp.pid, err
	}
	pd, err := c.one(pdTable, index, 0, qp.pd, deadline)
	if err != nil || pd.pid != 0 || !pd.hasCtx {
		return pd.pid, err
	}
	ctx, err := c.one(contextTable, index, 0, pd.ctx, deadline)
	return ctx.pid, err
}

// one reads one object by its number. port is set for objects that have a port.
func (c *Conn) one(t table, index, port, id uint32, deadline time.Time) (r record, err error) {
	q := Request{Cmd: t.cmd, Index: &index, Port: port, Attrs: netlink.AppendU32(nil, t.id, id)}
	err = c.Request(q, deadline, func(payload []byte) (err error) {
		r, err = t.entry(payload)
		return err
	})
	return r, err
}
