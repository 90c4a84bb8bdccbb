// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"os"
	"time"

	"github.com/accelscope/accelscope/pkg/netlink"
)

// qpCounter is a counter as listed by a STAT_GET dump.
type qpCounter struct {
	port, id uint32
	mode     uint32
	pid      uint32 // the thread, in the own PID namespace; 0 if it ended or is not reported
	kernel   bool   // the queue pairs belong to the kernel
	byType   bool   // auto mode by the type of queue pairs, and maybe by PID
	qpns     []uint32
	tx, rx   uint64
	hasTx    bool
	hasRx    bool
}

// qpCounters dumps the counters of a device. Each counter costs a firmware query, plus one for
// each optional counter.
func qpCounters(dial func() (*conn, error), index uint32, deadline time.Time) ([]qpCounter, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := request{cmd: cmdStatGet, dump: true, index: &index}
	r.attrs = netlink.AppendU32(nil, attrStatRes, attrQP)
	all := []qpCounter{}
	empty := 0
	err = c.request(r, deadline, func(payload []byte) error {
		n := len(all)
		if all, err = parseQPCounters(all, payload); err != nil {
			return err
		}
		// The kernel retries an entry that exceeds a message without end. The
		// first message is a small one.
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

func parseQPCounters(all []qpCounter, payload []byte) ([]qpCounter, error) {
	err := walkTable(payload, attrStatCounter, attrStatCounter+1, func(b []byte) error {
		e, err := parseQPCounter(b)
		if err == nil {
			all, err = appendMax(all, e, maxBound)
		}
		return err
	})
	return all, err
}

func parseQPCounter(b []byte) (e qpCounter, err error) {
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case attrPortIndex:
			e.port = a.U32()
		case attrCounterID:
			e.id = a.U32()
		case attrStatMode:
			e.mode = a.U32()
		case attrPID:
			e.pid = a.U32()
		case attrKernName:
			e.kernel = true
		case attrQPType:
			e.byType = true
		case attrQP:
			err = walkTable(a.Data, attrQPEntry, attrLQPN, func(b []byte) error {
				v := netlink.Attrs{Type: attrLQPN, Data: b}
				e.qpns = append(e.qpns, v.U32())
				return v.Err
			})
		case attrHWCounters:
			err = walk(a.Data, attrHWCounter, e.value)
		}
		if err != nil {
			return e, err
		}
	}
	return e, a.Err
}

// value parses one hardware counter and keeps the byte counters.
func (e *qpCounter) value(b []byte) error {
	c, err := parseHWCounter(b)
	if err != nil || !c.valued {
		return err
	}
	switch string(c.name) {
	case txBytes:
		e.tx, e.hasTx = c.value, true
	case rxBytes:
		e.rx, e.hasRx = c.value, true
	}
	return nil
}

// creator returns the thread that created a queue pair. If the thread ended, it returns the
// thread that created the protection domain or opened the device, or 0 if unknown.
func (c *conn) creator(index, port, qpn uint32, deadline time.Time) (pid uint32, err error) {
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
func (c *conn) one(t table, index, port, id uint32, deadline time.Time) (r record, err error) {
	q := request{cmd: t.cmd, index: &index, port: port, attrs: netlink.AppendU32(nil, t.id, id)}
	err = c.request(q, deadline, func(payload []byte) (err error) {
		r, err = t.entry(payload)
		return err
	})
	return r, err
}
