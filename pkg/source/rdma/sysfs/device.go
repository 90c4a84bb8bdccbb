// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// AttrsAge is the interval at which port attributes that seldom change (LID, interface) are read again while the port
// state stays the same.
const AttrsAge = 5 * time.Minute

// Device is the directory of a device in class/infiniband, for one goroutine.
type Device struct {
	HCA     model.HCA // without ports
	Ports   []*Port
	HW      group
	Refused Refused // names of counters and ports
	Reader  Reader

	path     string // in class/infiniband, empty for a device in another network namespace
	function string // the directory of its PCI function
	dir      int    // -1 while not open
	opened   int    // how often dir was opened
	scans    int    // number of scans of the directory tree
	children children
}

// Port is one directory of ports/.
type Port struct {
	Base              model.Port // without counters, and without what Queries reads
	attrsRead         time.Time
	attrsFresh        bool // the last readPort read the attributes
	changed           bool // the attributes must be read again
	gidsEnd           int  // index after the last GID that was ever found
	Counters, HW, Ext group
	pkeys             pkeyTable
}

// NewDevice returns a device that is not open yet. kept is how many more descriptors may be kept, for all devices.
func NewDevice(name, path, function string, kept *atomic.Int64) *Device {
	return &Device{
		HCA: model.HCA{Name: name}, path: path, function: function, dir: -1, Reader: Reader{kept: kept},
		HW: group{path: "hw_counters", dir: -1},
	}
}

// IsOpen reports whether the directory of the device is open.
func (d *Device) IsOpen() bool { return d.dir >= 0 }

// Open opens the directory unless it is open, and scans it in the first two calls: a device may appear before its
// ports. scanned reports that the HCA and ports are new.
func (d *Device) Open(dir func(name string) (int, error)) (scanned bool, err error) {
	if d.dir < 0 {
		fd, err := dir(d.HCA.Name)
		if err != nil {
			return false, err
		}
		d.dir = fd
		d.opened++
	}
	if d.scans >= 2 {
		return false, nil
	}
	d.scan()
	d.scans++
	return true, nil
}

// scan reads the constant attributes and finds the ports and counters.
func (d *Device) scan() {
	r := &d.Reader
	line := func(name string) string { return r.Line(d.dir, name) }
	d.HCA = model.HCA{
		Name:         d.HCA.Name,
		Firmware:     line("fw_ver"),
		Board:        line("board_id"),
		Type:         line("hca_type"),
		NodeType:     parseNumbered(line("node_type")),
		NodeGUID:     parseGUID(line("node_guid")),
		SysImageGUID: parseGUID(line("sys_image_guid")),
		NodeDesc:     line("node_desc"),
		NUMANode:     line("device/numa_node"),
		PCIAddress:   PCIAddress(r.Link(d.path) + "/" + r.Link(d.function)),
		Subfunction:  isSubfunction(r.Link(d.path)),
	}
	if d.HCA.NUMANode == "-1" {
		d.HCA.NUMANode = ""
	}
	d.HCA.VF, d.HCA.PF = PhysicalFunction(r, d.function)
	d.Refused = nil
	d.HW.scan(r, d.dir, d.Refused.Counter)

	names := r.Directory(d.dir, "ports", d.Refused.port)
	slices.SortFunc(names, func(a, b string) int { return portNumber(a) - portNumber(b) })
	if !slices.EqualFunc(names, d.Ports, func(n string, p *Port) bool { return portNumber(n) == p.Base.Number }) {
		d.closePorts()
		for _, name := range names {
			d.Ports = append(d.Ports, newPort(name))
		}
	}
	for _, p := range d.Ports {
		p.attrsRead = time.Time{}
		p.Counters.scan(r, d.dir, d.Refused.Counter)
		p.HW.scan(r, d.dir, d.Refused.Counter)
		p.Ext.scan(r, d.dir, d.Refused.Counter)
	}
}

func newPort(name string) *Port {
	dir := "ports/" + name + "/"
	return &Port{
		Base:     model.Port{Number: portNumber(name)},
		Counters: group{path: dir + "counters", dir: -1},
		HW:       group{path: dir + "hw_counters", dir: -1},
		Ext:      group{path: dir + "counters_ext", dir: -1},
	}
}

// ErrGone is the error of a device that was removed during a read.
var ErrGone = errors.New("device was removed during the read")

// PortNumbers returns the sorted numbers of the ports of a device.
func PortNumbers(device string) []int {
	var all []int
	for _, name := range NewReader().Directory(unix.AT_FDCWD, device+"/ports", func(s string) bool { return portNumber(s) > 0 }) {
		all = append(all, portNumber(name))
	}
	slices.Sort(all)
	return all
}

// portNumber parses the name of a port directory, which has 32 bits since Linux 5.13. It returns 0 for any other name.
func portNumber(s string) int {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0
	}
	return int(n)
}

// ReadPort reads the attributes of a port at intervals of attrsAge, and its P_Keys in the background.
func (d *Device) ReadPort(p *Port, now time.Time) {
	if p.attrsFresh = now.Sub(p.attrsRead) >= AttrsAge; p.attrsFresh {
		d.readAttributes(p, now)
	}
	d.refreshPKeys(p, false, now)
}

// ReadChanged reads the attributes of the ports that changed.
func (d *Device) ReadChanged(now time.Time) {
	b := Buffers.Get().(*[BufferSize]byte)
	defer Buffers.Put(b)
	d.Reader.Buffer = b[:]
	for _, p := range d.Ports {
		if p.changed {
			d.readAttributes(p, now)
			d.refreshPKeys(p, true, now)
		}
	}
}

func (d *Device) readAttributes(p *Port, now time.Time) {
	p.attrsRead = now
	line := func(name string) string {
		return d.Reader.Line(d.dir, "ports/"+strconv.Itoa(p.Base.Number)+"/"+name)
	}
	p.Base.LinkLayer = line("link_layer")
	p.Base.PortGUID = parsePortGUID(line("gids/0"))
	if p.Base.PortGUID == "" && d.HCA.VF && p.Base.Number == 1 {
		// A port has no GID before the subnet manager assigns one; the PF exposes the GUID.
		p.Base.PortGUID = VirtualGUIDs(&d.Reader, d.function+"/physfn", "port")[d.HCA.PCIAddress]
	}
	p.Base.Netdev = line("gid_attrs/ndevs/0")
	p.Base.GIDs = d.readGIDs(p)
}

// Close closes all descriptors. A later read opens them again.
func (d *Device) Close() {
	d.closePorts()
	d.HW.close(&d.Reader)
	if d.dir >= 0 {
		d.Reader.Close(d.dir)
		d.dir = -1
	}
	d.scans = 0
}

func (d *Device) closePorts() {
	for _, p := range d.Ports {
		p.Counters.close(&d.Reader)
		p.HW.close(&d.Reader)
		p.Ext.close(&d.Reader)
	}
	d.Ports = nil
}
