// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// This file implements the STAT commands of nldev.c for counters bound to queue pairs.
// drivers/infiniband/core/counters.c defines their rules.

const (
	cmdStatSet    = 16
	cmdStatStatus = 24 // since 5.16
)

const (
	attrQPEntry     = 20  // nested
	attrStatMode    = 74  // u32, enum rdma_nl_counter_mode
	attrStatRes     = 75  // u32, attribute number of the object type
	attrStatMask    = 76  // u32, enum rdma_nl_counter_mask
	attrStatCounter = 77  // nested; its entries have the next attribute number
	attrCounterID   = 79  // u32
	attrHWIndex     = 94  // u32
	attrHWDynamic   = 95  // u8: present for an optional counter; whether it is on
	attrOptionals   = 104 // u8, since 6.15: also binds optional counters
)

// Modes of a port, and of a counter.
const (
	modeNone   = 0
	modeAuto   = 1 // the kernel binds new queue pairs
	modeManual = 2

	maskPID = 2 // one counter for each thread that creates queue pairs
)

// The byte counters of mlx5, optional ones since 6.15. They count whole packets of the queue
// pairs, including those that the remote side requested.
const (
	txBytes = "rdma_tx_bytes"
	rxBytes = "rdma_rx_bytes"
)

// maxBound is the maximum number of counters of a device, maxOptional that of optional counters
// of a port.
const (
	maxBound    = 1 << 14
	maxOptional = 256
)

var errTooBig = errors.New("a counter has more queue pairs than fit in a message")

func ignore([]byte) error { return nil }

// qpMode is the mode in which a port binds queue pairs to counters.
type qpMode struct {
	mode, mask uint32
	optionals  bool // optional counters that are on are bound, too
}

func (m qpMode) String() string {
	switch m.mode {
	case modeNone:
		return "off"
	case modeAuto:
		return fmt.Sprintf("auto, mask %d, optional counters %v", m.mask, m.optionals)
	case modeManual:
		return "manual"
	}
	return fmt.Sprintf("mode %d", m.mode)
}

// mode reads the mode of a port (STAT_GET with a resource and a mode, of any value). It causes
// no firmware command.
func (c *conn) mode(index, port uint32, deadline time.Time) (m qpMode, err error) {
	r := request{cmd: cmdStatGet, index: &index, port: port}
	r.attrs = netlink.AppendU32(netlink.AppendU32(nil, attrStatRes, attrQP), attrStatMode, modeManual)
	err = c.request(r, deadline, func(payload []byte) (err error) {
		m, err = parseMode(payload)
		return err
	})
	return m, err
}

func parseMode(payload []byte) (m qpMode, err error) {
	present := false
	a := netlink.Parse(payload)
	for a.Next() {
		switch a.Type {
		case attrStatMode:
			m.mode, present = a.U32(), true
		case attrStatMask:
			m.mask = a.U32()
		case attrOptionals:
			m.optionals = a.U8() != 0
		}
	}
	if a.Err == nil && !present {
		a.Err = fmt.Errorf("%w: no mode", netlink.ErrMalformed)
	}
	return m, a.Err
}

// setAuto switches auto mode by PID on, with optional counters. Kernels before 6.15 reject the
// attribute for optional counters with EINVAL.
func (c *conn) setAuto(index, port uint32, deadline time.Time) error {
	r := request{cmd: cmdStatSet, index: &index, port: port, acknowledge: true}
	r.attrs = netlink.AppendU32(netlink.AppendU32(nil, attrStatRes, attrQP), attrStatMode, modeAuto)
	r.attrs = netlink.Append(netlink.AppendU32(r.attrs, attrStatMask, maskPID), attrOptionals, 1)
	return c.request(r, deadline, ignore)
}

// optional is an optional counter of a port.
type optional struct {
	name  string
	index uint32
	on    bool
}

// optionals lists the optional counters of a port (STAT_GET_STATUS).
func (c *conn) optionals(index, port uint32, deadline time.Time) (all []optional, err error) {
	r := request{cmd: cmdStatStatus, index: &index, port: port}
	err = c.request(r, deadline, func(payload []byte) (err error) {
		all, err = parseOptionals(all, payload)
		return err
	})
	return all, err
}

func parseOptionals(all []optional, payload []byte) ([]optional, error) {
	err := walkTable(payload, attrHWCounters, attrHWCounter, func(b []byte) error {
		c, err := parseHWCounter(b)
		o := optional{string(c.name), c.index, c.on}
		if err == nil && c.dynamic && sysfs.ValidCounter(o.name) {
			all, err = appendMax(all, o, maxOptional)
		}
		return err
	})
	return all, err
}

// setOptionals switches on the optional counters of a port with these indexes, and all others
// off.
func (c *conn) setOptionals(index, port uint32, on []uint32, deadline time.Time) error {
	r := request{cmd: cmdStatSet, index: &index, port: port, acknowledge: true}
	var indexes []byte
	for _, i := range on {
		indexes = netlink.AppendU32(indexes, attrHWIndex, i)
	}
	r.attrs = netlink.Append(nil, attrHWCounters|unix.NLA_F_NESTED, indexes...)
	return c.request(r, deadline, ignore)
}
