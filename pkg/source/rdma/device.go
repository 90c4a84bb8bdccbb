// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// attrsAge is after what time the attributes of a port that seldom move (LIDs,
// interface) are read again, if its state did not change meanwhile.
const attrsAge = 5 * time.Minute

// errGone says that a device was removed while it was read.
var errGone = errors.New("went away while it was read")

// device is one entry of /sys/class/infiniband, as long as it stays there. What
// is above the line belongs to Read, what is below to the goroutine that reads
// the device.
type device struct {
	name string
	// path is that in class/infiniband, empty when it is out of sight, function that
	// of the PCI function behind it.
	path, function string
	call           hang.Call[reading]
	pause          hang.Backoff
	state          model.DeviceState

	// ---
	reader reader
	dir    int // the device's directory, -1 while not open
	scans  int // how often the directory tree was looked through
	hca    model.HCA
	ports  []*port
	hw     group
	node   *node
	names  map[string]string // interned names of netlink counters
	bound  *boundCounters    // nil when they are not read
	tables file              // stands for RES_GET
}

// port is one directory of ports/.
type port struct {
	state, phys, rate text
	base              model.Port // without figures
	attrsRead         time.Time
	counters, hw      group
	stat              file // stands for STAT_GET of this port
	statless          bool // STAT_GET knows no counters: read the files
	slow              slow // what STAT_GET gave when that took long
}

// text is an attribute whose parsed form is kept while it does not change.
type text struct {
	file
	raw string
}

// group is a directory of counters.
type group struct {
	path  string // below the device's directory
	dir   int    // -1 while there is none
	files []file
}

// reading is what one read of a device gave.
type reading struct {
	hca             model.HCA
	resources       []model.Resource // where the node does not ask for them
	links, counters tally
}

// none says that not a single figure could be read.
func (r *reading) none() bool { return r.links.good+r.counters.good == 0 }

// err says what could not be read, nil when everything could.
func (r *reading) err() error {
	switch {
	case r.counters.bad > 0:
		return r.counters.err("counters")
	case r.links.bad > 0:
		return r.links.err("port attributes")
	}
	return nil
}

// tally counts the files of one read that gave something and those that did
// not, of which some are left alone for now.
type tally struct {
	good, bad, paused int
	where             string
	first             error
}

func (t *tally) failed(where string, f *file, now time.Time) {
	if t.bad++; t.bad == 1 {
		t.where, t.first = where+f.name, f.err
	}
	if f.pause.Waiting(now) {
		t.paused++
	}
}

func (t *tally) err(what string) error {
	return fmt.Errorf("%d of %d %s unreadable, the first is %s: %w", t.bad, t.good+t.bad, what, t.where, t.first)
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func newDevice(name, path string, kept *atomic.Int64) *device {
	d := &device{name: name, path: path, function: path + "/device", dir: -1, reader: reader{kept: kept}}
	d.hw = group{path: "hw_counters", dir: -1}
	d.tables = file{name: "RES_GET", fd: -1}
	return d
}

// release closes all descriptors for good, at once or when the call that hangs
// returns.
func (d *device) release() { d.call.Close(d.close) }

// read reads all figures of the device; deadline is that of netlink requests.
func (d *device) read(now, deadline time.Time, n *node) (reading, error) {
	b := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(b)
	d.reader.buffer = b[:]

	if d.dir < 0 {
		fd, err := d.open(n)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, errOther) {
			return reading{}, errGone
		}
		if err != nil {
			return reading{}, err
		}
		d.dir = fd
	}
	// A device appears before all of its ports do, so one look is not enough.
	if d.scans < 2 {
		d.scan()
		d.scans++
	}
	if d.node != n {
		d.node = n
		d.hca.CharDevice = n.uverbs[d.name].name
		d.hca.Index = n.index(d.name, d.hca.NodeGUID)
	}
	var c *conn
	if d.hca.Index != noIndex {
		var err error
		if c, err = n.dial(); err == nil {
			c.buf = b[:]
			defer c.close()
		}
	}

	r := reading{hca: d.hca}
	if d.hca.Index == noIndex {
		r.hca.Index = 0
	}
	r.hca.Ports = make([]model.Port, len(d.ports))
	for i, p := range d.ports {
		d.readPort(p, now, &r.links)
		r.hca.Ports[i] = p.base
		r.hca.Ports[i].Counters = d.readGroup(&p.counters, now, &r.counters)
		r.hca.Ports[i].HWCounters = d.readHW(c, p, now, deadline, &r.counters)
	}
	r.hca.HWCounters = d.readGroup(&d.hw, now, &r.counters)
	if c != nil && d.bound != nil {
		d.bound.read(n.dial, d.hca.Index, now, deadline, &r.counters)
	}
	if c != nil && n.away {
		r.resources = d.readResources(c, now, deadline, &r.counters)
	}
	if err := r.err(); r.none() && (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)) {
		d.close()
		return reading{}, errGone
	}
	return r, nil
}

// open opens the device's directory.
func (d *device) open(n *node) (int, error) {
	if n.open != nil {
		return n.open(d.name)
	}
	return d.reader.openat(unix.AT_FDCWD, d.path, unix.O_DIRECTORY)
}

// scan reads what does not move and looks which ports and counters there are.
func (d *device) scan() {
	r := &d.reader
	line := func(name string) string { return r.line(d.dir, name) }
	d.hca = model.HCA{
		Name:         d.name,
		Firmware:     line("fw_ver"),
		Board:        line("board_id"),
		Type:         line("hca_type"),
		NodeType:     parseNumbered(line("node_type")),
		NodeGUID:     line("node_guid"),
		SysImageGUID: line("sys_image_guid"),
		NodeDesc:     line("node_desc"),
		NUMANode:     line("device/numa_node"),
		PCIAddress:   pciAddress(r.link(d.path) + "/" + r.link(d.function)),
	}
	if d.hca.NUMANode == "-1" {
		d.hca.NUMANode = ""
	}
	d.hca.VF, d.hca.PF = physicalFunction(r, d.function)
	d.node = nil
	d.hw.scan(r, d.dir)

	var names []string
	if fd, err := r.openat(d.dir, "ports", unix.O_DIRECTORY); err == nil {
		names, _ = r.list(fd, func(s string) bool { return portNumber(s) > 0 })
		r.close(fd)
	}
	slices.SortFunc(names, func(a, b string) int { return portNumber(a) - portNumber(b) })
	if !slices.EqualFunc(names, d.ports, func(n string, p *port) bool { return portNumber(n) == p.base.Number }) {
		d.closePorts()
		for _, name := range names {
			d.ports = append(d.ports, newPort(name))
		}
	}
	for _, p := range d.ports {
		p.attrsRead = time.Time{}
		p.statless = false
		p.counters.scan(r, d.dir)
		p.hw.scan(r, d.dir)
	}
}

func newPort(name string) *port {
	dir := "ports/" + name + "/"
	return &port{
		base:     model.Port{Number: portNumber(name)},
		state:    text{file: file{name: dir + "state", fd: -1}},
		phys:     text{file: file{name: dir + "phys_state", fd: -1}},
		rate:     text{file: file{name: dir + "rate", fd: -1}},
		counters: group{path: dir + "counters", dir: -1},
		hw:       group{path: dir + "hw_counters", dir: -1},
		stat:     file{name: dir + "STAT_GET", fd: -1},
	}
}

// portNumber is 0 for what is not the name of a port.
func portNumber(s string) int {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0
	}
	return int(n)
}

// scan looks which counters there are and keeps open what stays.
func (g *group) scan(r *reader, device int) {
	if g.dir < 0 {
		fd, err := r.openat(device, g.path, unix.O_DIRECTORY)
		if err != nil {
			return
		}
		g.dir = fd
	}
	names, err := r.list(g.dir, validCounter)
	if err != nil {
		g.close(r)
		return
	}
	if slices.EqualFunc(names, g.files, func(n string, f file) bool { return n == f.name }) {
		return
	}
	for i := range g.files {
		r.forget(&g.files[i])
	}
	g.files = make([]file, len(names))
	for i, n := range names {
		g.files[i] = file{name: n, fd: -1}
	}
}

func (g *group) close(r *reader) {
	for i := range g.files {
		r.forget(&g.files[i])
	}
	g.files = nil
	if g.dir >= 0 {
		r.close(g.dir)
		g.dir = -1
	}
}

// readPort brings the state of a port up to date, and what seldom moves when it
// did or is old.
func (d *device) readPort(p *port, now time.Time, t *tally) {
	moved := d.readText(&p.state, now, t)
	if moved {
		p.base.State = parseNumbered(p.state.raw)
	}
	if d.readText(&p.phys, now, t) {
		p.base.PhysState = parseNumbered(p.phys.raw)
	}
	if d.readText(&p.rate, now, t) {
		p.base.RateBits, p.base.Width, p.base.Speed, _ = parseRate(p.rate.raw)
	}
	if !moved && now.Sub(p.attrsRead) < attrsAge {
		return
	}
	p.attrsRead = now
	line := func(name string) string {
		return d.reader.line(d.dir, "ports/"+strconv.Itoa(p.base.Number)+"/"+name)
	}
	p.base.LinkLayer = line("link_layer")
	p.base.LID = line("lid")
	p.base.SMLID = line("sm_lid")
	p.base.PortGUID = parsePortGUID(line("gids/0"))
	if p.base.PortGUID == "" && d.hca.VF && p.base.Number == 1 {
		// The subnet manager gives a port its GID; the PF knows the GUID before.
		p.base.PortGUID = virtualGUIDs(&d.reader, d.function+"/physfn", "port")[d.hca.PCIAddress]
	}
	p.base.Netdev = line("gid_attrs/ndevs/0")
}

// readText says whether the attribute changed.
func (d *device) readText(f *text, now time.Time, t *tally) bool {
	if f.pause.Waiting(now) {
		t.failed("", &f.file, now)
		return false
	}
	b, err := d.reader.read(d.dir, &f.file, maxValue+1)
	if err == nil && len(b) > maxValue {
		err = errGarbage
	}
	if err != nil {
		b = nil
		f.failed(now, err)
		t.failed("", &f.file, now)
	} else {
		f.succeeded()
		t.good++
	}
	b = bytes.TrimSpace(b)
	if string(b) == f.raw {
		return false
	}
	f.raw = parseLine(b)
	return true
}

// readGroup reads a directory of counters one after the other: each read may
// be a command to the firmware. It gives nil where there is no directory.
func (d *device) readGroup(g *group, now time.Time, t *tally) []model.Counter {
	if g.dir < 0 {
		return nil
	}
	counters := make([]model.Counter, 0, len(g.files))
	for i := range g.files {
		f := &g.files[i]
		if f.pause.Waiting(now) {
			t.failed(g.path+"/", f, now)
			continue
		}
		b, err := d.reader.read(g.dir, f, maxValue+1)
		var v uint64
		var ok bool
		if err == nil {
			v, ok, err = parseCounter(b)
		}
		if err != nil {
			f.failed(now, err)
			t.failed(g.path+"/", f, now)
			continue
		}
		f.succeeded()
		t.good++
		if ok {
			counters = append(counters, model.Counter{Name: f.name, Value: v})
		}
	}
	return counters
}

// readHW asks RDMA netlink for the driver's counters of a port, which is one
// query of the firmware for all of them, and reads the files where it cannot.
func (d *device) readHW(c *conn, p *port, now, deadline time.Time, t *tally) []model.Counter {
	if c == nil || p.statless {
		return d.readGroup(&p.hw, now, t)
	}
	if p.stat.pause.Waiting(now) {
		t.failed("", &p.stat, now)
		return nil
	}
	if now.Before(p.slow.until) {
		t.good++
		return p.slow.counters
	}
	began := time.Now()
	counters := make([]model.Counter, 0, max(len(p.hw.files), len(d.names)))
	r := request{cmd: cmdStatGet, index: &d.hca.Index, port: uint32(p.base.Number)}
	err := c.request(r, deadline, func(payload []byte) (err error) {
		counters, err = parseStats(counters, payload, d.intern)
		return err
	})
	switch {
	case err == nil:
		p.stat.succeeded()
		t.good++
		p.slow.took(time.Since(began), now, counters)
		return counters
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EMSGSIZE):
		// The driver has none, or more than fit in a message.
		p.statless = true
		return d.readGroup(&p.hw, now, t)
	}
	p.stat.failed(now, err)
	t.failed("", &p.stat, now)
	return nil
}

// readResources asks how many objects this device has. What cannot be asked is
// counted in t.
func (d *device) readResources(c *conn, now, deadline time.Time, t *tally) []model.Resource {
	if d.tables.pause.Waiting(now) {
		t.failed("", &d.tables, now)
		return nil
	}
	var all []model.Resource
	err := c.request(request{cmd: cmdResGet, index: &d.hca.Index}, deadline, func(payload []byte) (err error) {
		all, err = parseSummary(all, payload)
		return err
	})
	if err != nil {
		d.tables.failed(now, err)
		t.failed("", &d.tables, now)
		return nil
	}
	d.tables.succeeded()
	for i := range all {
		all[i].Device = d.name
	}
	return all
}

// intern gives the name of a counter without a copy for each reading.
func (d *device) intern(b []byte) (string, bool) {
	if s, ok := d.names[string(b)]; ok {
		return s, true
	}
	s := string(b)
	if !validCounter(s) || len(d.names) >= maxCounters {
		return "", false
	}
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[s] = s
	return s, true
}

// close gives back all descriptors; a later read starts anew.
func (d *device) close() {
	d.closePorts()
	d.hw.close(&d.reader)
	if d.dir >= 0 {
		d.reader.close(d.dir)
		d.dir = -1
	}
	d.scans = 0
}

func (d *device) closePorts() {
	for _, p := range d.ports {
		d.reader.forget(&p.state.file)
		d.reader.forget(&p.phys.file)
		d.reader.forget(&p.rate.file)
		p.counters.close(&d.reader)
		p.hw.close(&d.reader)
	}
	d.ports = nil
}
