// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// errGone is the error of a device that was removed during a read.
var errGone = errors.New("device was removed during the read")

// device is one entry of /sys/class/infiniband. The fields above the first line belong to Read, the fields between the lines to call, and
// the field below the second line to query. While call or query is not running, its fields belong to Read.
type device struct {
	name  string
	call  hang.Call[reading] // reads the device
	query hang.Call[tally]   // then queries its ports
	pause hang.Backoff
	state model.DeviceState

	// ---
	files   *sysDevice
	ports   []*devicePort
	node    *node
	names   map[string]string // interned names of netlink counters
	bound   *boundCounters    // nil if they are not read
	tables  attempt           // of RES_GET
	domains attempt           // of RES_PD_GET

	// ---
	queries portQueries
}

// devicePort is a port with the state of its STAT_GET.
type devicePort struct {
	*port
	stat     attempt
	statless bool         // STAT_GET reports no counters: read the files
	slow     slowCounters // last result of a slow STAT_GET
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

func newDevice(name, path, function string, kept *atomic.Int64) *device {
	return &device{
		name: name, files: newSysDevice(name, path, function, kept), queries: newQueries(kept),
		tables: attempt{name: "RES_GET"}, domains: attempt{name: "RES_PD_GET"},
	}
}

// release closes all descriptors, or lets hanging calls close them when they return.
func (d *device) release() {
	d.call.Close(d.files.close)
	d.query.Close(d.queries.close)
}

// readAndQuery reads a device and then queries its ports. While a query hangs, reading.query is ErrStuck.
func (d *device) readAndQuery(ctx context.Context, limit time.Duration, now time.Time, n *node) (reading, error) {
	deadline := time.Now().Add(limit)
	r, err := d.call.Do(ctx, limit, func() (reading, error) { return d.read(now, deadline, n) })
	if err != nil {
		return r, err
	}
	if d.query.Running() {
		r.query = hang.ErrStuck
		return r, nil
	}
	if r.query = d.queries.prepare(d.files); r.query != nil {
		return r, nil
	}
	r.links, err = d.query.Do(ctx, time.Until(deadline), func() (tally, error) { return d.queries.read(now), nil })
	switch {
	case errors.Is(err, hang.ErrStuck):
		r.query = hang.ErrStuck
	case err != nil:
		return r, err
	default:
		d.takeQueries(ctx, now, deadline, r.hca.Ports)
	}
	return r, nil
}

// takeQueries sets the results of queries in ports. It first reads the attributes of ports that changed again.
func (d *device) takeQueries(ctx context.Context, now, deadline time.Time, ports []model.Port) {
	if d.queries.changed(d.files.ports) {
		// If this hangs, the next read of the device reports it.
		_, err := d.call.Do(ctx, time.Until(deadline), func() (reading, error) { d.files.readChanged(now); return reading{}, nil })
		if err == nil {
			for i, p := range d.files.ports {
				to := &ports[i]
				to.LinkLayer, to.Netdev, to.PortGUID = p.base.LinkLayer, p.base.Netdev, p.base.PortGUID
				to.GIDs, to.PKeys = p.base.GIDs, p.base.PKeys
			}
		}
	}
	d.queries.fill(ports)
}

// read reads all counters of the device, and the attributes that need no query of a port. deadline limits netlink requests.
func (d *device) read(now, deadline time.Time, n *node) (reading, error) {
	b := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(b)
	f := d.files
	f.reader.buffer = b[:]

	scanned, err := f.open(n.open)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errOther) {
		return reading{}, errGone
	}
	if err != nil {
		return reading{}, err
	}
	if scanned {
		d.matchPorts()
	}
	if d.node != n || scanned {
		d.node = n
		f.hca.CharDevice = n.uverbs[d.name].name
		f.hca.Index = n.index(d.name, f.hca.NodeGUID)
		if f.hca.Parent = ""; n.devices[d.name].smi {
			f.hca.Parent = n.devices[d.name].parent
		}
	}
	var c *conn
	if f.hca.Index != noIndex {
		var err error
		if c, err = n.dial(); err == nil {
			c.Buffer = b[:]
			defer c.Close()
		}
	}

	r := reading{hca: f.hca}
	if f.hca.Index == noIndex {
		r.hca.Index = 0
	}
	r.hca.Ports = make([]model.Port, len(d.ports))
	for i, p := range d.ports {
		f.readPort(p.port, now)
		r.hca.Ports[i] = p.base
		r.hca.Ports[i].Counters = f.readGroup(&p.counters, now, &r.counters)
		r.hca.Ports[i].HWCounters = d.readHW(c, p, now, deadline, &r.counters)
		r.hca.Ports[i].ExtCounters = f.readGroup(&p.ext, now, &r.counters)
	}
	r.hca.HWCounters = f.readGroup(&f.hw, now, &r.counters)
	if c != nil && d.bound != nil {
		d.bound.read(c, n.dial, f.hca.Index, now, deadline, &r.counters)
	}
	if c != nil && n.away {
		r.resources = d.readResources(c, now, deadline, &r.counters)
	}
	if c != nil {
		r.domains = d.readDomains(c, now, deadline, &r.counters)
		if !n.away {
			r.hca.IPoIB = f.readIPoIB(r.domains)
		}
	}
	r.refused = slices.Clone(f.refused)
	return r, nil
}

// matchPorts keeps the state of the ports that the directory still has.
func (d *device) matchPorts() {
	if !slices.EqualFunc(d.ports, d.files.ports, func(a *devicePort, b *port) bool { return a.port == b }) {
		d.ports = nil
		for _, p := range d.files.ports {
			d.ports = append(d.ports, &devicePort{port: p, stat: attempt{name: fmt.Sprintf("ports/%d/STAT_GET", p.base.Number)}})
		}
	}
	for _, p := range d.ports {
		p.statless = false
	}
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
			d.files.close()
		}
		return errGone
	}
	return err
}

// readHW reads the hardware counters of a port by RDMA netlink, one firmware query for all of
// them, and from the files if netlink has no counters.
func (d *device) readHW(c *conn, p *devicePort, now, deadline time.Time, t *tally) []model.Counter {
	if c == nil || p.statless {
		return d.files.readGroup(&p.hw, now, t)
	}
	if p.stat.waiting(now) {
		t.count("", &p.stat, now)
		return nil
	}
	if now.Before(p.slow.until) {
		t.good++
		return p.slow.counters
	}
	began := time.Now()
	counters := make([]model.Counter, 0, max(p.hw.size(), len(d.names)))
	r := request{cmd: cmdStatGet, index: &d.files.hca.Index, port: uint32(p.base.Number)}
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
		return d.files.readGroup(&p.hw, now, t)
	}
	p.stat.done(now, err)
	t.count("", &p.stat, now)
	return nil
}

// readResources reads the number of objects of this device (RES_GET). It records failures in t.
func (d *device) readResources(c *conn, now, deadline time.Time, t *tally) []model.Resource {
	if d.tables.waiting(now) {
		t.count("", &d.tables, now)
		return nil
	}
	var all []model.Resource
	err := c.request(request{cmd: cmdResGet, index: &d.files.hca.Index}, deadline, func(payload []byte) (err error) {
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
	if !d.files.refused.counter(s) {
		return "", false
	}
	if len(d.names) >= maxCounters {
		d.files.refused.add("counter", s, "the device has too many")
		return "", false
	}
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[s] = s
	return s, true
}
