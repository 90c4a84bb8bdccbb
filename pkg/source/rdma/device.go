// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// attrsAge is the interval at which the attributes of a port that seldom change (LID,
// interface) are read again while the port state stays the same.
const attrsAge = 5 * time.Minute

// errGone is the error of a device that was removed during a read.
var errGone = errors.New("device was removed during the read")

// device is one entry of /sys/class/infiniband. The fields above the first line belong to Read, the fields between the lines to call, and
// the field below the second line to query. While call or query is not running, its fields belong to Read.
type device struct {
	name string
	// path is the directory in class/infiniband, empty for a device in another network
	// namespace; function is the directory of its PCI function.
	path, function string
	call           hang.Call[reading] // reads the device
	query          hang.Call[tally]   // then queries its ports
	pause          hang.Backoff
	state          model.DeviceState

	// ---
	reader   reader
	dir      int // the device's directory, -1 while not open
	scans    int // number of scans of the directory tree
	hca      model.HCA
	ports    []*port
	opened   int // how often dir was opened
	hw       group
	node     *node
	names    map[string]string // interned names of netlink counters
	refused  refused           // names of counters and ports
	bound    *boundCounters    // nil if they are not read
	tables   file              // backoff state of RES_GET
	domains  file              // backoff state of RES_PD_GET
	children children          // of IPoIB interfaces

	// ---
	queries portQueries
}

// port is one directory of ports/.
type port struct {
	base              model.Port // without counters, and what portQueries reads
	attrsRead         time.Time
	attrsFresh        bool // they were read by the last call of read
	changed           bool // they must be read again
	gidsEnd           int  // index after the last GID that was ever found
	counters, hw, ext group
	stat              file         // backoff state of STAT_GET for this port
	statless          bool         // STAT_GET reports no counters: read the files
	slow              slowCounters // last result of a slow STAT_GET
	pkeys             pkeyTable
}

// group is a directory of counters.
type group struct {
	path  string // below the device's directory
	dir   int    // -1 if it does not exist
	files []file
	// answered reports that a counter had a value once, from a file or by netlink.
	answered bool
}

// reading is the result of one read of a device.
type reading struct {
	hca             model.HCA
	resources       []model.Resource // if readResources of the Source does not cover the device
	domains         []model.Domains  // nil if they could not be listed
	links, counters tally
	refused         refused
	query           error // why the ports have no state; nil if they were queried
}

// none reports whether the read returned no value at all.
func (r *reading) none() bool { return r.links.good+r.counters.good == 0 }

// err describes the states or counters that could not be read. It is nil if all were read.
func (r *reading) err() error {
	switch {
	case r.counters.bad > 0:
		return r.counters.err("counters")
	case r.links.bad > 0:
		return r.links.err("port attributes")
	}
	return nil
}

// tally counts the files that were read and those that failed. paused counts failed files that
// back off. silent counts the files of directories none of whose counters ever had a value.
type tally struct {
	good, bad, paused int
	silent            int
	silentIn          string // the first such directory
	where             string
	first             error
}

// count counts the last read of a file in a directory, which may have been before a pause.
func (t *tally) count(dir string, f *file, now time.Time) {
	if f.err == nil {
		t.good++
		return
	}
	if t.bad++; t.bad == 1 {
		t.where, t.first = filepath.Join(dir, f.name), f.err
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
	d.queries = portQueries{dir: -1, reader: reader{kept: kept}}
	d.hw = group{path: "hw_counters", dir: -1}
	d.tables = file{name: "RES_GET", fd: -1}
	d.domains = file{name: "RES_PD_GET", fd: -1}
	return d
}

// release closes all descriptors, or lets hanging calls close them when they return.
func (d *device) release() {
	d.call.Close(d.close)
	d.query.Close(d.queries.close)
}

// read reads all counters of the device, and the attributes that need no query of a port. deadline limits netlink requests.
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
		d.opened++
	}
	// A device may appear before its ports, so scan twice.
	if d.scans < 2 {
		d.scan()
		d.scans++
	}
	if d.node != n {
		d.node = n
		d.hca.CharDevice = n.uverbs[d.name].name
		d.hca.Index = n.index(d.name, d.hca.NodeGUID)
		if d.hca.Parent = ""; n.devices[d.name].smi {
			d.hca.Parent = n.devices[d.name].parent
		}
	}
	var c *conn
	if d.hca.Index != noIndex {
		var err error
		if c, err = n.dial(); err == nil {
			c.Buffer = b[:]
			defer c.Close()
		}
	}

	r := reading{hca: d.hca}
	if d.hca.Index == noIndex {
		r.hca.Index = 0
	}
	r.hca.Ports = make([]model.Port, len(d.ports))
	for i, p := range d.ports {
		if p.attrsFresh = now.Sub(p.attrsRead) >= attrsAge; p.attrsFresh {
			d.readAttributes(p, now)
		}
		d.refreshPKeys(p, false, now)
		r.hca.Ports[i] = p.base
		r.hca.Ports[i].Counters = d.readGroup(&p.counters, now, &r.counters)
		r.hca.Ports[i].HWCounters = d.readHW(c, p, now, deadline, &r.counters)
		r.hca.Ports[i].ExtCounters = d.readGroup(&p.ext, now, &r.counters)
	}
	r.hca.HWCounters = d.readGroup(&d.hw, now, &r.counters)
	if c != nil && d.bound != nil {
		d.bound.read(c, n.dial, d.hca.Index, now, deadline, &r.counters)
	}
	if c != nil && n.away {
		r.resources = d.readResources(c, now, deadline, &r.counters)
	}
	if c != nil {
		r.domains = d.readDomains(c, now, deadline, &r.counters)
		if !n.away {
			r.hca.IPoIB = d.readIPoIB(r.domains)
		}
	}
	r.refused = slices.Clone(d.refused)
	return r, nil
}

// unreadable returns the error of a reading without any value. A device that was removed is closed, which needs that no read is in
// progress.
func (d *device) unreadable(r *reading) error {
	err := r.err()
	switch {
	case !r.none() || err == nil:
		return nil
	case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT):
		if !d.call.Running() { // otherwise the next read finds the same
			d.close()
		}
		return errGone
	}
	return err
}

// open opens the device's directory.
func (d *device) open(n *node) (int, error) {
	if n.open != nil {
		return n.open(d.name)
	}
	return d.reader.openat(unix.AT_FDCWD, d.path, unix.O_DIRECTORY)
}

// scan reads the constant attributes and finds the ports and counters.
func (d *device) scan() {
	r := &d.reader
	line := func(name string) string { return r.line(d.dir, name) }
	d.hca = model.HCA{
		Name:         d.name,
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
	d.node, d.refused = nil, nil
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
		p.statless = false
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
		stat:     file{name: dir + "STAT_GET", fd: -1},
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

// scan lists the counters. It keeps the open files if the list did not change.
func (g *group) scan(r *reader, device int, valid func(string) bool) {
	if g.dir < 0 {
		fd, err := r.openat(device, g.path, unix.O_DIRECTORY)
		if err != nil {
			return
		}
		g.dir = fd
	}
	names, err := r.list(g.dir, valid)
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

// readAttributes reads the attributes of a port that seldom change.
func (d *device) readAttributes(p *port, now time.Time) {
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

// refused reports whether all files fail as those of a function do for which the firmware has no counters, such as a limited physical
// function.
func (g *group) refused() bool {
	for i := range g.files {
		if err := g.files[i].err; !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			return false
		}
	}
	return len(g.files) > 0
}

// readGroup reads the counters of a directory one by one: each read may be a firmware command.
// It returns nil if the directory does not exist. Counters that are all refused, and never had a value, are not there: no failure.
func (d *device) readGroup(g *group, now time.Time, t *tally) []model.Counter {
	if g.dir < 0 {
		return nil
	}
	counters := make([]model.Counter, 0, len(g.files))
	before := *t
	defer func() {
		if g.answered = g.answered || t.good > before.good; !g.answered && g.refused() {
			*t = before
			t.silent += len(g.files)
			t.silentIn = cmp.Or(t.silentIn, g.path)
		}
	}()
	for i := range g.files {
		f := &g.files[i]
		if f.pause.Waiting(now) {
			t.count(g.path, f, now)
			continue
		}
		b, err := d.reader.read(g.dir, f, maxValue+1)
		var v uint64
		var ok bool
		if err == nil {
			v, ok, err = parseCounter(b)
		}
		f.done(now, err)
		t.count(g.path, f, now)
		if ok && err == nil {
			counters = append(counters, model.Counter{Name: f.name, Value: v})
		}
	}
	return counters
}

// readHW reads the hardware counters of a port by RDMA netlink, one firmware query for all of
// them, and from the files if netlink has no counters.
func (d *device) readHW(c *conn, p *port, now, deadline time.Time, t *tally) []model.Counter {
	if c == nil || p.statless {
		return d.readGroup(&p.hw, now, t)
	}
	if p.stat.pause.Waiting(now) {
		t.count("", &p.stat, now)
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
		p.hw.answered = p.hw.answered || len(counters) > 0
		p.stat.done(now, nil)
		t.count("", &p.stat, now)
		p.slow.took(time.Since(began), now, counters)
		return counters
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EMSGSIZE):
		// The driver has no counters, or more than fit in a message.
		p.statless = true
		return d.readGroup(&p.hw, now, t)
	}
	p.stat.done(now, err)
	t.count("", &p.stat, now)
	return nil
}

// readResources reads the number of objects of this device (RES_GET). It records failures in t.
func (d *device) readResources(c *conn, now, deadline time.Time, t *tally) []model.Resource {
	if d.tables.pause.Waiting(now) {
		t.count("", &d.tables, now)
		return nil
	}
	var all []model.Resource
	err := c.request(request{cmd: cmdResGet, index: &d.hca.Index}, deadline, func(payload []byte) (err error) {
		all, err = parseSummary(all, payload)
		return err
	})
	if d.tables.done(now, err); err != nil {
		t.count("", &d.tables, now)
		return nil
	}
	for i := range all {
		all[i].Device = d.name
	}
	return all
}

// intern returns the name of a counter without an allocation per read.
func (d *device) intern(b []byte) (string, bool) {
	if s, ok := d.names[string(b)]; ok {
		return s, true
	}
	s := string(b)
	if !d.refused.counter(s) {
		return "", false
	}
	if len(d.names) >= maxCounters {
		d.refused.add("counter", s, "the device has too many")
		return "", false
	}
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[s] = s
	return s, true
}

// close closes all descriptors. A later read opens them again.
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
		p.counters.close(&d.reader)
		p.hw.close(&d.reader)
		p.ext.close(&d.reader)
	}
	d.ports = nil
}
