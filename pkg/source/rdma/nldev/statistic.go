// SPDX-License-Identifier: Apache-2.0

package nldev

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

// Commands.
const (
	CmdStatSet    = 16
	CmdStatStatus = 24 // since 5.16
)

// Attributes.
const (
	AttrQPEntry     = 20  // nested
	AttrStatMode    = 74  // u32, enum rdma_nl_counter_mode
	AttrStatRes     = 75  // u32, attribute number of the object type
	AttrStatMask    = 76  // u32, enum rdma_nl_counter_mask
	AttrStatCounter = 77  // nested; its entries have the next attribute number
	AttrCounterID   = 79  // u32
	AttrHWIndex     = 94  // u32
	AttrHWDynamic   = 95  // u8: present for an optional counter; whether it is on
	AttrOptionals   = 104 // u8, since 6.15: also binds optional counters
)

// Modes of a port, and of a counter.
const (
	ModeNone   = 0
	ModeAuto   = 1 // the kernel binds new queue pairs
	ModeManual = 2

	MaskPID = 2 // one counter for each thread that creates queue pairs
)

// The byte counters of mlx5, which are optional counters since 6.15. They count whole packets of the queue pairs,
// including packets that the remote side requested.
const (
	TxBytes = "rdma_tx_bytes"
	RxBytes = "rdma_rx_bytes"
)

// maxBound bounds the counters of a device, maxOptional the optional counters of a port.
const (
	maxBound    = 1 << 14
	maxOptional = 256
)

var errTooBig = errors.New("a counter has more queue pairs than fit in a message")

func ignore([]byte) error { return nil }

// QPMode is the mode in which a port binds queue pairs to counters.
type QPMode struct {
	Mode, Mask uint32
	Optionals  bool // also binds optional counters that are on
}

func (m QPMode) String() string {
	switch m.Mode {
	case ModeNone:
		return "off"
	case ModeAuto:
		return fmt.Sprintf("auto, mask %d, optional counters %v", m.Mask, m.Optionals)
	case ModeManual:
		return "manual"
	}
	return fmt.Sprintf("mode %d", m.Mode)
}

// Mode reads the mode of a port (STAT_GET with a resource and any mode). It causes no firmware command.
func (c *Conn) Mode(index, port uint32, deadline time.Time) (m QPMode, err error) {
	r := Request{Cmd: CmdStatGet, Index: &index, Port: port}
	r.Attrs = netlink.AppendU32(netlink.AppendU32(nil, AttrStatRes, AttrQP), AttrStatMode, ModeManual)
	err = c.Request(r, deadline, func(payload []byte) (err error) {
		m, err = parseMode(payload)
		return err
	})
	return m, err
}

func parseMode(payload []byte) (m QPMode, err error) {
	present := false
	a := netlink.Parse(payload)
	for a.Next() {
		switch a.Type {
		case AttrStatMode:
			m.Mode, present = a.U32(), true
		case AttrStatMask:
			m.Mask = a.U32()
		case AttrOptionals:
			m.Optionals = a.U8() != 0
		}
	}
	if a.Err == nil && !present {
		a.Err = fmt.Errorf("%w: no mode", netlink.ErrMalformed)
	}
	return m, a.Err
}

// SetAuto switches auto mode by PID on, with optional counters. Kernels before 6.15 reject the
// attribute for optional counters with EINVAL.
func (c *Conn) SetAuto(index, port uint32, deadline time.Time) error {
	r := Request{Cmd: CmdStatSet, Index: &index, Port: port, Acknowledge: true}
	r.Attrs = netlink.AppendU32(netlink.AppendU32(nil, AttrStatRes, AttrQP), AttrStatMode, ModeAuto)
	r.Attrs = netlink.Append(netlink.AppendU32(r.Attrs, AttrStatMask, MaskPID), AttrOptionals, 1)
	return c.Request(r, deadline, ignore)
}

// Optional is an optional counter of a port.
type Optional struct {
	Name  string
	Index uint32
	On    bool
}

// Optionals lists the optional counters of a port (STAT_GET_STATUS).
func (c *Conn) Optionals(index, port uint32, deadline time.Time) (all []Optional, err error) {
	r := Request{Cmd: CmdStatStatus, Index: &index, Port: port}
	err = c.Request(r, deadline, func(payload []byte) (err error) {
		all, err = parseOptionals(all, payload)
		return err
	})
	return all, err
}

func parseOptionals(all []Optional, payload []byte) ([]Optional, error) {
	err := walkTable(payload, AttrHWCounters, AttrHWCounter, func(b []byte) error {
		c, err := parseHWCounter(b)
		o := Optional{string(c.name), c.index, c.on}
		if err == nil && c.dynamic && sysfs.ValidCounter(o.Name) {
			all, err = appendMax(all, o, maxOptional)
		}
		return err
	})
	return all, err
}

// SetOptionals switches on the optional counters of a port with these indexes, and switches all others off.
func (c *Conn) SetOptionals(index, port uint32, on []uint32, deadline time.Time) error {
	r := Request{Cmd: CmdStatSet, Index: &index, Port: port, Acknowledge: true}
	var indexes []byte
	for _, i := range on {
		indexes = netlink.AppendU32(indexes, AttrHWIndex, i)
	}
	r.Attrs = netlink.Append(nil, AttrHWCounters|unix.NLA_F_NESTED, indexes...)
	return c.Request(r, deadline, ignore)
}
