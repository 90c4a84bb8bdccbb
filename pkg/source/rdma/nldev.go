// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// This file decodes RDMA netlink (include/uapi/rdma/rdma_netlink.h). The functions do not trust
// their input: they skip unknown attributes and return an error for malformed ones.

// Commands of the nldev client (enum rdma_nldev_command).
const (
	cmdGet     = 1
	cmdSysGet  = 6 // since 5.2
	cmdResGet  = 9
	cmdQPGet   = 10
	cmdCMIDGet = 11
	cmdCQGet   = 12
	cmdMRGet   = 13
	cmdPDGet   = 14
	cmdStatGet = 17
	cmdCtxGet  = 22 // since 5.15
	cmdSRQGet  = 23 // since 5.15
)

// Attributes (enum rdma_nldev_attr).
const (
	attrDevIndex     = 1  // u32
	attrDevName      = 2  // string
	attrPortIndex    = 3  // u32
	attrFirmware     = 5  // string
	attrNodeGUID     = 6  // u64
	attrSysImageGUID = 7  // u64
	attrNodeType     = 14 // u8
	attrSummary      = 15 // nested
	attrSummaryEntry = 16 // nested
	attrSummaryName  = 17 // string
	attrSummaryCurr  = 18 // u64
	attrQP           = 19 // nested, as are the other tables
	attrLQPN         = 21 // u32
	attrRQPN         = 22 // u32, of RC and UC
	attrQPType       = 26 // u8
	attrQPState      = 27 // u8
	attrPID          = 28 // u32
	attrKernName     = 29 // string
	attrCMID         = 30
	attrCQ           = 35
	attrUseCount     = 38 // u64
	attrMR           = 40
	attrMRLen        = 45 // u64
	attrPD           = 46
	attrPDN          = 60 // u32
	attrCQN          = 61 // u32
	attrMRN          = 62 // u32
	attrCMIDN        = 63 // u32
	attrCtxN         = 64 // u32
	attrSharedNetns  = 66 // u8, of SYS_GET
	attrHWCounters   = 80
	attrHWCounter    = 81
	attrHWName       = 82 // string
	attrHWValue      = 83 // u64
	attrCtx          = 86
	attrSRQ          = 88
	attrSRQN         = 90 // u32
	attrDetails      = 97 // u8, RDMA_NLDEV_ATTR_DRIVER_DETAILS
	attrDevType      = 99 // u8, enum rdma_nl_dev_type; since 6.11
	attrParentName   = 100
)

var errTooMany = errors.New("more entries than the limit")

// Limits on the entries kept of one reply.
const (
	maxCounters = 1024
	maxObjects  = 1 << 18
)

var native = binary.NativeEndian

// allQueuePairs is the attribute of a request that includes queue pairs with the type
// IB_QPT_DRIVER, as EFA's. Kernels with the attribute omit them without it; others ignore it.
var allQueuePairs = netlink.Append(nil, attrDetails, 1)

// nldev returns the message type of a command: the client number above the command.
func nldev(cmd uint16) uint16 { return 5<<10 | cmd }

// walk passes the content of each attribute of one type to fn.
func walk(b []byte, typ uint16, fn func([]byte) error) error {
	a := netlink.Parse(b)
	for a.Next() {
		if a.Type != typ {
			continue
		}
		if err := fn(a.Data); err != nil {
			return err
		}
	}
	return a.Err
}

// walkTable passes each entry of each table to fn.
func walkTable(b []byte, table, entry uint16, fn func([]byte) error) error {
	return walk(b, table, func(b []byte) error { return walk(b, entry, fn) })
}

// nlDevice is an RDMA device as listed by a GET dump.
type nlDevice struct {
	index    uint32
	name     string
	guid     string // of the node
	sysGUID  string
	firmware string
	nodeType string
	smi      bool   // RDMA_DEVICE_TYPE_SMI
	parent   string // of such a device
}

// typeSMI is RDMA_DEVICE_TYPE_SMI.
const typeSMI = 1

func parseDevice(devices []nlDevice, payload []byte) ([]nlDevice, error) {
	var d nlDevice
	a := netlink.Parse(payload)
	for a.Next() {
		switch a.Type {
		case attrDevIndex:
			d.index = a.U32()
		case attrDevName:
			d.name = string(a.Text())
		case attrNodeGUID:
			d.guid = sysfs.GUIDText(a.U64())
		case attrSysImageGUID:
			d.sysGUID = sysfs.GUIDText(a.U64())
		case attrFirmware:
			d.firmware = sysfs.ParseLine(a.Text())
		case attrNodeType:
			d.nodeType = nodeType(a.U8())
		case attrDevType:
			d.smi = a.U8() == typeSMI
		case attrParentName:
			d.parent = string(a.Text())
		}
	}
	if a.Err != nil || !sysfs.ValidDevice(d.name) {
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
		if a.Type == attrSharedNetns {
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
		case attrDevName:
			device = string(a.Text())
		case attrSummary:
			table = a.Data
		}
	}
	if a.Err != nil || !sysfs.ValidDevice(device) {
		return resources, a.Err
	}
	err := walk(table, attrSummaryEntry, func(b []byte) (err error) {
		r := model.Resource{Device: device}
		e := netlink.Parse(b)
		for e.Next() {
			switch e.Type {
			case attrSummaryName:
				r.Type = summaryType(e.Text())
			case attrSummaryCurr:
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

// summaryType returns the object type of a name. It returns "" for types that the model does
// not have: counters and types of later kernels.
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
	err := walkTable(payload, attrHWCounters, attrHWCounter, func(b []byte) error {
		c, err := parseHWCounter(b)
		if err != nil || !c.valued {
			return err
		}
		if name, ok := intern(c.name); ok {
			counters, err = appendMax(counters, model.Counter{Name: name, Value: c.value}, maxCounters)
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
	valued  bool // it has a value
	dynamic bool // it has an index and is optional: on reports whether it is counted
}

func parseHWCounter(b []byte) (c hwCounter, err error) {
	indexed := false
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case attrHWName:
			c.name = a.Text()
		case attrHWValue:
			c.value, c.valued = a.U64(), true
		case attrHWIndex:
			c.index, indexed = a.U32(), true
		case attrHWDynamic:
			c.on, c.dynamic = a.U8() != 0, true
		}
	}
	c.dynamic = c.dynamic && indexed
	return c, a.Err
}

// appendMax appends an entry to a list of at most limit entries.
func appendMax[T any](list []T, entry T, limit int) ([]T, error) {
	if len(list) >= limit {
		return list, errTooMany
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
	contextTable = table{model.Context, cmdCtxGet, attrCtx, attrCtxN}
	pdTable      = table{model.PD, cmdPDGet, attrPD, attrPDN}
	qpTable      = table{model.QP, cmdQPGet, attrQP, attrLQPN}
)

// tables lists contexts and protection domains first, because other objects refer to them.
var tables = []table{
	contextTable,
	pdTable,
	{model.CQ, cmdCQGet, attrCQ, attrCQN},
	qpTable,
	{model.MR, cmdMRGet, attrMR, attrMRN},
	{model.SRQ, cmdSRQGet, attrSRQ, attrSRQN},
	{model.CMID, cmdCMIDGet, attrCMID, attrCMIDN},
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
		case attrPDN:
			r.pd, r.hasPD = a.U32(), true
		case attrCtxN:
			r.ctx, r.hasCtx = a.U32(), true
		case attrPID:
			r.pid = a.U32()
		case attrMRLen:
			r.bytes, r.memory = region(a.U64())
		case attrKernName:
			r.inKernel = true
		}
		if t.typ == model.QP {
			r.connection(&a)
		}
	}
	return r, a.Err
}

// region returns the length and the kind of memory of a memory region from the attribute of its
// length. The kind is not reported; only an implicit ODP region has the length 2^64-1.
func region(length uint64) (uint64, model.Memory) {
	if length == math.MaxUint64 {
		return 0, model.ImplicitODPMemory
	}
	return length, model.UnknownMemory
}

// connection parses an attribute of the connection of a queue pair.
func (r *record) connection(a *netlink.Attrs) {
	switch a.Type {
	case attrPortIndex:
		r.port = a.U32()
	case attrRQPN:
		r.remote = a.U32()
	case attrQPType:
		r.qpType = a.U8()
	case attrQPState:
		r.state = a.U8()
	}
}
