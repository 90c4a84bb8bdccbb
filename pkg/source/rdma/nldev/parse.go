// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// Commands of the nldev client (enum rdma_nldev_command).
const (
	CmdGet     = 1
	CmdPortGet = 5
	CmdSysGet  = 6 // since 5.2
	CmdResGet  = 9
	CmdQPGet   = 10
	CmdCMIDGet = 11
	CmdCQGet   = 12
	CmdMRGet   = 13
	CmdPDGet   = 14
	CmdStatGet = 17
	CmdCtxGet  = 22 // since 5.15
	CmdSRQGet  = 23 // since 5.15
)

// Attributes (enum rdma_nldev_attr).
const (
	AttrDevIndex     = 1  // u32
	AttrDevName      = 2  // string
	AttrPortIndex    = 3  // u32
	AttrFirmware     = 5  // string
	AttrNodeGUID     = 6  // u64
	AttrSysImageGUID = 7  // u64
	AttrLID          = 9  // u32, only for InfiniBand
	AttrSMLID        = 10 // u32, only for InfiniBand
	AttrPortState    = 12 // u8, enum ib_port_state
	AttrPortPhys     = 13 // u8, enum ib_port_phys_state
	AttrNodeType     = 14 // u8
	AttrSummary      = 15 // nested
	AttrSummaryEntry = 16 // nested
	AttrSummaryName  = 17 // string
	AttrSummaryCurr  = 18 // u64
	AttrQP           = 19 // nested, like the other tables
	AttrLQPN         = 21 // u32
	AttrRQPN         = 22 // u32, only of RC and UC
	AttrQPType       = 26 // u8
	AttrQPState      = 27 // u8
	AttrPID          = 28 // u32
	AttrKernName     = 29 // string
	AttrCMID         = 30
	AttrDstAddr      = 34 // struct sockaddr_storage
	AttrCQ           = 35
	AttrUseCount     = 38 // u64
	AttrMR           = 40
	AttrMRLen        = 45 // u64
	AttrPD           = 46
	AttrPDN          = 60 // u32
	AttrCQN          = 61 // u32
	AttrMRN          = 62 // u32
	AttrCMIDN        = 63 // u32
	AttrCtxN         = 64 // u32
	AttrSharedNetns  = 66 // u8, in the reply to SYS_GET
	AttrHWCounters   = 80
	AttrHWCounter    = 81
	AttrHWName       = 82 // string
	AttrHWValue      = 83 // u64
	AttrCtx          = 86
	AttrSRQ          = 88
	AttrSRQN         = 90 // u32
	AttrDetails      = 97 // u8, RDMA_NLDEV_ATTR_DRIVER_DETAILS
	AttrDevType      = 99 // u8, enum rdma_nl_dev_type; since 6.11
	AttrParentName   = 100
)

// ErrTooMany is the error of a truncated list.
var ErrTooMany = errors.New("more entries than the limit")

// Limits of the entries that are kept from one reply.
const (
	MaxCounters = 1024
	maxObjects  = 1 << 18
)

var native = binary.NativeEndian

// allQueuePairs is an attribute that requests queue pairs with the type IB_QPT_DRIVER, such as EFA's. Without it,
// kernels that know the attribute omit them; other kernels ignore the attribute.
var allQueuePairs = netlink.Append(nil, AttrDetails, 1)

// MessageType returns the message type of a command: the client number above the command.
func MessageType(cmd uint16) uint16 { return 5<<10 | cmd }

// walkTable passes each entry of each table to fn.
func walkTable(b []byte, table, entry uint16, fn func([]byte) error) error {
	return netlink.Walk(b, table, func(b []byte) error { return netlink.Walk(b, entry, fn) })
}

// Device is an RDMA device as listed by a GET dump.
type Device struct {
	Index    uint32
	Name     string
	GUID     string // GUID of the node
	SysGUID  string
	Firmware string
	NodeType string
	SMI      bool   // RDMA_DEVICE_TYPE_SMI
	Parent   string // parent of an SMI device
}

const typeSMI = 1

func parseDevice(devices []Device, payload []byte) ([]Device, error) {
	var d Device
	a := netlink.Parse(payload)
	for a.Next() {
		switch a.Type {
		case AttrDevIndex:
			d.Index = a.U32()
		case AttrDevName:
			d.Name = string(a.Text())
		case AttrNodeGUID:
			d.GUID = sysfs.GUIDText(a.U64())
		case AttrSysImageGUID:
			d.SysGUID = sysfs.GUIDText(a.U64())
		case AttrFirmware:
			d.Firmware = sysfs.ParseLine(a.Text())
		case AttrNodeType:
			d.NodeType = nodeType(a.U8())
		case AttrDevType:
			d.SMI = a.U8() == typeSMI
		case AttrParentName:
			d.Parent = string(a.Text())
		}
	}
	if a.Err != nil || !sysfs.ValidDevice(d.Name) {
		return devices, a.Err
	}
	return appendMax(devices, d, sysfs.MaxDevices)
}

// nodeType returns the sysfs name of an enum rdma_node_type.
func nodeType(n uint8) string {
	words := []string{"", "CA", "switch", "router", "RNIC", "usNIC", "usNIC UDP", "unspecified"}
	if int(n) < len(words) {
		return words[n]
	}
	return ""
}

// parseShared parses the reply to SYS_GET. shared reports whether all network namespaces share
// all devices, which is the default.
func parseShared(payload []byte) (shared bool, err error) {
	shared = true
	a := netlink.Parse(payload)
	for a.Next() {
		if a.Type == AttrSharedNetns {
			shared = a.U8() != 0
		}
	}
	return shared, a.Err
}

// parseSummary parses the reply to RES_GET for one device.
func parseSummary(resources []model.Resource, payload []byte) ([]model.Resource, error) {
	var device string
	var table []byte
	a := netlink.Parse(payload)
	for a.Next() {
		switch a.Type {
		case AttrDevName:
			device = string(a.Text())
		case AttrSummary:
			table = a.Data
		}
	}
	if a.Err != nil || !sysfs.ValidDevice(device) {
		return resources, a.Err
	}
	err := netlink.Walk(table, AttrSummaryEntry, func(b []byte) (err error) {
		r := model.Resource{Device: device}
		e := netlink.Parse(b)
		for e.Next() {
			switch e.Type {
			case AttrSummaryName:
				r.Type = summaryType(e.Text())
			case AttrSummaryCurr:
				r.Count = e.U64()
			}
		}
		if e.Err != nil || r.Type == "" {
			return e.Err
		}
		resources, err = appendMax(resources, r, 16*sysfs.MaxDevices)
		return err
	})
	return resources, err
}

// summaryType returns the object type of a name. It returns "" for types that the model does not have: counters and
// types of later kernels.
func summaryType(name []byte) model.ObjectType {
	switch t := model.ObjectType(name); t {
	case model.PD, model.CQ, model.QP, model.CMID, model.MR, model.Context, model.SRQ:
		return t
	}
	return ""
}

// parseStats parses the reply to STAT_GET for one port. intern returns the string of a counter
// name, or false for a counter to omit.
func parseStats(counters []model.Counter, payload []byte, intern func([]byte) (string, bool)) ([]model.Counter, error) {
	err := walkTable(payload, AttrHWCounters, AttrHWCounter, func(b []byte) error {
		c, err := parseHWCounter(b)
		if err != nil || !c.valued {
			return err
		}
		if name, ok := intern(c.name); ok {
			counters, err = appendMax(counters, model.Counter{Name: name, Value: c.value}, MaxCounters)
		}
		return err
	})
	return counters, err
}

// hwCounter is one hardware counter in a reply to STAT_GET or STAT_GET_STATUS.
type hwCounter struct {
	name    []byte
	value   uint64
	index   uint32
	on      bool
	valued  bool // has a value
	dynamic bool // has an index and is optional: on reports whether it is counted
}

func parseHWCounter(b []byte) (c hwCounter, err error) {
	indexed := false
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case AttrHWName:
			c.name = a.Text()
		case AttrHWValue:
			c.value, c.valued = a.U64(), true
		case AttrHWIndex:
			c.index, indexed = a.U32(), true
		case AttrHWDynamic:
			c.on, c.dynamic = a.U8() != 0, true
		}
	}
	c.dynamic = c.dynamic && indexed
	return c, a.Err
}

// appendMax appends an entry to a list of at most limit entries.
func appendMax[T any](list []T, entry T, limit int) ([]T, error) {
	if len(list) >= limit {
		return list, ErrTooMany
	}
	return append(list, entry), nil
}

// record is one entry of a restrack dump.
type record struct {
	id       uint32
	pd, ctx  uint32
	hasPD    bool
	hasCtx   bool
	pid      uint32
	bytes    uint64
	memory   model.Memory // of a memory region
	inKernel bool

	remote, port  uint32 // of a QP
	qpType, state uint8
}

// table describes the dump of one object type.
type table struct {
	typ  model.ObjectType
	cmd  uint16
	attr uint16 // the nested table; its entries have the next attribute number
	id   uint16 // attribute with the number of an entry
}

var (
	contextTable = table{model.Context, CmdCtxGet, AttrCtx, AttrCtxN}
	pdTable      = table{model.PD, CmdPDGet, AttrPD, AttrPDN}
	qpTable      = table{model.QP, CmdQPGet, AttrQP, AttrLQPN}
)

// tables lists contexts and protection domains first, because other objects refer to them.
var tables = []table{
	contextTable,
	pdTable,
	{model.CQ, CmdCQGet, AttrCQ, AttrCQN},
	qpTable,
	{model.MR, CmdMRGet, AttrMR, AttrMRN},
	{model.SRQ, CmdSRQGet, AttrSRQ, AttrSRQN},
	{model.CMID, CmdCMIDGet, AttrCMID, AttrCMIDN},
}

// parse parses one message of a restrack dump.
func (t table) parse(records []record, payload []byte) ([]record, error) {
	err := walkTable(payload, t.attr, t.attr+1, func(b []byte) error {
		r, err := t.entry(b)
		if err == nil {
			records, err = appendMax(records, r, maxObjects)
		}
		return err
	})
	return records, err
}

func (t table) entry(b []byte) (record, error) {
	var r record
	if t.typ == model.MR {
		r.memory = model.UnknownMemory
	}
	a := netlink.Parse(b)
	for a.Next() {
		if a.Type == t.id {
			r.id = a.U32()
		}
		switch a.Type {
		case AttrPDN:
			r.pd, r.hasPD = a.U32(), true
		case AttrCtxN:
			r.ctx, r.hasCtx = a.U32(), true
		case AttrPID:
			r.pid = a.U32()
		case AttrMRLen:
			r.bytes, r.memory = region(a.U64())
		case AttrKernName:
			r.inKernel = true
		}
		if t.typ == model.QP {
			r.connection(&a)
		}
	}
	return r, a.Err
}

// region returns the length and the kind of memory of a memory region from the length that the kernel reports. The
// kernel does not report the kind; only an implicit ODP region has the length 2^64-1.
func region(length uint64) (uint64, model.Memory) {
	if length == math.MaxUint64 {
		return 0, model.ImplicitODPMemory
	}
	return length, model.UnknownMemory
}

func (r *record) connection(a *netlink.Attrs) {
	switch a.Type {
	case AttrPortIndex:
		r.port = a.U32()
	case AttrRQPN:
		r.remote = a.U32()
	case AttrQPType:
		r.qpType = a.U8()
	case AttrQPState:
		r.state = a.U8()
	}
}
