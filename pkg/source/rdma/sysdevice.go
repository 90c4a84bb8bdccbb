// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// attrsAge is the interval at which the attributes of a port that seldom change (LID,
// interface) are read again while the port state stays the same.
const attrsAge = 5 * time.Minute

// sysDevice is the directory of a device in class/infiniband, for one goroutine.
type sysDevice struct {
	hca     model.HCA // without ports
	ports   []*port
	hw      group
	refused refused // names of counters and ports
	reader  reader

	path     string // in class/infiniband, empty for a device in another network namespace
	function string // the directory of its PCI function
	dir      int    // -1 while not open
	opened   int    // how often dir was opened
	scans    int    // number of scans of the directory tree
	children children
}

// port is one directory of ports/.
type port struct {
	base              model.Port // without counters, and what portQueries reads
	attrsRead         time.Time
	attrsFresh        bool // they were read by the last readPort
	changed           bool // they must be read again
	gidsEnd           int  // index after the last GID that was ever found
	counters, hw, ext group
	pkeys             pkeyTable
}

// newSysDevice returns a device that is not open yet. kept is how many further descriptors may be kept, for all devices.
func newSysDevice(name, path, function string, kept *atomic.Int64) *sysDevice {
	return &sysDevice{
		hca: model.HCA{Name: name}, path: path, function: function, dir: -1, reader: reader{kept: kept},
		hw: group{path: "hw_counters", dir: -1},
	}
}

// isOpen reports whether the directory is open.
func (d *sysDevice) isOpen() bool { return d.dir >= 0 }

// open opens the directory unless it is open, and scans it in the first two calls: a device may appear before its ports. scanned reports
// that hca and ports are new.
func (d *sysDevice) open(dir func(name string) (int, error)) (scanned bool, err error) {
	if d.dir < 0 {
		fd, err := dir(d.hca.Name)
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
func (d *sysDevice) scan() {
	r := &d.reader
	line := func(name string) string { return r.line(d.dir, name) }
	d.hca = model.HCA{
		Name:         d.hca.Name,
		Firmware:     line("fw_ver"),
		Board:        line("board_id"),
		Type:         line("hca_type"),
		NodeType:     parseNumbered(line("node_type")),
		NodeGUID:     parseGUID(line("node_guid")),
		SysImageGUID: parseGUID(line("sys_image_guid")),
		NodeDesc:     line("node_desc"),
		NUMANode:     line("device/numa_node"),
		PCIAddress:   pciAddress(r.link(d.path) + "/" + r.link(d.function)),
		Subfunction:  isSubfunction(r.link(d.path)),
	}
	if d.hca.NUMANode == "-1" {
		d.hca.NUMANode = ""
	}
	d.hca.VF, d.hca.PF = physicalFunction(r, d.function)
	d.refused = nil
	d.hw.scan(r, d.dir, d.refused.counter)

	names := r.directory(d.dir, "ports", d.refused.port)
	slices.SortFunc(names, func(a, b string) int { return portNumber(a) - portNumber(b) })
	if !slices.EqualFunc(names, d.ports, func(n string, p *port) bool { return portNumber(n) == p.base.Number }) {
		d.closePorts()
		for _, name := range names {
			d.ports = append(d.ports, newPort(name))
		}
	}
	for _, p := range d.ports {
		p.attrsRead = time.Time{}
		p.counters.scan(r, d.dir, d.refused.counter)
		p.hw.scan(r, d.dir, d.refused.counter)
		p.ext.scan(r, d.dir, d.refused.counter)
	}
}

func newPort(name string) *port {
	dir := "ports/" + name + "/"
	return &port{
		base:     model.Port{Number: portNumber(name)},
		counters: group{path: dir + "counters", dir: -1},
		hw:       group{path: dir + "hw_counters", dir: -1},
		ext:      group{path: dir + "counters_ext", dir: -1},
	}
}

// portNumber parses the name of a port directory, which has 32 bits since Linux 5.13. It returns 0 for any other name.
func portNumber(s string) int {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0
	}
	return int(n)
}

// readPort reads the attributes of a port at intervals of attrsAge, and its P_Keys in the background.
func (d *sysDevice) readPort(p *port, now time.Time) {
	if p.attrsFresh = now.Sub(p.attrsRead) >= attrsAge; p.attrsFresh {
		d.readAttributes(p, now)
	}
	d.refreshPKeys(p, false, now)
}

// readChanged reads the attributes of the ports that changed.
func (d *sysDevice) readChanged(now time.Time) {
	b := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(b)
	d.reader.buffer = b[:]
	for _, p := range d.ports {
		if p.changed {
			d.readAttributes(p, now)
			d.refreshPKeys(p, true, now)
		}
	}
}

// readAttributes reads the attributes of a port that seldom change.
func (d *sysDevice) readAttributes(p *port, now time.Time) {
	p.attrsRead = now
	line := func(name string) string {
		return d.reader.line(d.dir, "ports/"+strconv.Itoa(p.base.Number)+"/"+name)
	}
	p.base.LinkLayer = line("link_layer")
	p.base.PortGUID = parsePortGUID(line("gids/0"))
	if p.base.PortGUID == "" && d.hca.VF && p.base.Number == 1 {
		// A port has no GID before the subnet manager assigns it; the PF exposes the GUID.
		p.base.PortGUID = virtualGUIDs(&d.reader, d.function+"/physfn", "port")[d.hca.PCIAddress]
	}
	p.base.Netdev = line("gid_attrs/ndevs/0")
	p.base.GIDs = d.readGIDs(p)
}

// close closes all descriptors. A later read opens them again.
func (d *sysDevice) close() {
	d.closePorts()
	d.hw.close(&d.reader)
	if d.dir >= 0 {
		d.reader.close(d.dir)
		d.dir = -1
	}
	d.scans = 0
}

func (d *sysDevice) closePorts() {
	for _, p := range d.ports {
		p.counters.close(&d.reader)
		p.hw.close(&d.reader)
		p.ext.close(&d.reader)
	}
	d.ports = nil
}
