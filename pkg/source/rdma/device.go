// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/qpcounter"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// device is one entry of class/infiniband, in the network namespace of the sensor or in another one. The fields above the
// first line belong to Read, the fields between the lines to call, and the fields below the second line to query. While
// call or query is not running, its fields belong to Read. A call that a query follows prepares the query.
type device struct {
	name  string
	call  hang.Call[reading]     // reads the device
	query hang.Call[sysfs.Tally] // then queries its ports
	pause hang.Backoff
	state model.DeviceState
	found *found // nil in the namespace of the sensor

	pending      *hang.Pending[reading]     // of this Read; nil while an earlier call hangs
	pendingQuery *hang.Pending[sysfs.Tally] // the same for query
	readFn       func() (reading, error)    // d.readNow, allocated once
	queryFn      func() (sysfs.Tally, error)

	// ---
	asked   asked
	files   *sysfs.Device
	ports   []*devicePort
	node    *node
	names   map[string]string // shared strings for names of netlink counters
	bound   *qpcounter.Device // nil if not read
	tables  sysfs.Attempt     // state of RES_GET
	domains sysfs.Attempt     // state of RES_PD_GET
	ids     sysfs.Attempt     // state of RES_CM_ID_GET

	// ---
	queried    asked
	unprepared error // why the ports cannot be queried
	queries    sysfs.Queries
}

// devicePort is a port with the state of its STAT_GET.
type devicePort struct {
	*sysfs.Port
	stat     sysfs.Attempt
	statless bool         // STAT_GET reports no counters: read the files
	slow     slowCounters // last result of a slow STAT_GET
}

type reading struct {
	hca             model.HCA
	resources       []model.Resource // only if readResources of the Source does not cover the device
	domains         []model.Domains  // nil if the list failed
	kernelIDs       []model.KernelID // only with a consumer in the kernel
	links, counters sysfs.Tally
	refused         sysfs.Refused
	query           error // why the ports have no state; nil if they were queried
}

// none reports whether the read returned no value at all.
func (r *reading) none() bool { return r.links.Good+r.counters.Good == 0 }

// err describes the states or counters that could not be read. It is nil if all were read.
func (r *reading) err() error {
	switch {
	case r.counters.Bad > 0:
		return r.counters.Err("counters")
	case r.links.Bad > 0:
		return r.links.Err("port attributes")
	}
	return nil
}

func (s *Source) newDevice(name, path, function string) *device {
	d := &device{
		name: name, files: sysfs.NewDevice(name, path, function, &s.kept), queries: sysfs.NewQueries(&s.kept), bound: s.qps.Device(name),
		tables: sysfs.Attempt{Name: "RES_GET"}, domains: sysfs.Attempt{Name: "RES_PD_GET"},
		ids: sysfs.Attempt{Name: "RES_CM_ID_GET"},
	}
	d.readFn, d.queryFn = d.readNow, d.queryNow
	return d
}

// release closes all descriptors, or lets hanging calls close them when they return.
func (d *device) release() {
	d.call.Close(d.files.Close)
	d.query.Close(d.queries.Close)
}

// asked is what a call for a device works with.
type asked struct {
	now, deadline time.Time // deadline limits netlink requests
	node          *node
	index         uint32 // of the device in netlink, for a query
	query         bool   // a query follows the reading
}

var errNotRead = errors.New("the device was not read")

// queue adds to round the reading of the device and, unless a query hangs, the query of its ports.
func (d *device) queue(round *hang.Round, limit time.Duration, now time.Time, n *node) {
	d.pending, d.pendingQuery = nil, nil
	if d.call.Running() {
		return
	}
	d.asked = asked{now: now, deadline: time.Now().Add(limit), node: n}
	if d.pending = d.call.Queue("read", limit, d.readFn); d.pending == nil {
		return // it was closed
	}
	if d.query.Running() {
		round.Add(d.pending, nil)
		return
	}
	d.asked.query = true
	d.queried, d.unprepared = d.asked, errNotRead
	d.pendingQuery = d.query.Queue("query", limit, d.queryFn)
	round.Add(d.pending, d.pendingQuery)
}

// readNow reads the device and prepares the query.
func (d *device) readNow() (reading, error) {
	r, err := d.read(d.asked.now, d.asked.deadline, d.asked.node)
	if !d.asked.query {
		return r, err
	}
	if d.unprepared = err; err == nil {
		d.unprepared, d.queried.index = d.queries.Prepare(d.files), d.files.HCA.Index
	}
	return r, err
}

// queryNow queries the ports, and reads the attributes of changed ports again.
func (d *device) queryNow() (sysfs.Tally, error) {
	if d.unprepared != nil {
		return sysfs.Tally{}, d.unprepared
	}
	links := d.queryPorts(d.queried)
	if !d.queries.Changed() {
		return links, nil
	}
	_, err := d.call.Here("attributes", func() (reading, error) {
		if d.queries.Mark(d.files.Ports) {
			d.files.ReadChanged(d.queried.now)
		}
		return reading{}, nil
	})
	return links, err
}

// queryPorts queries the ports by RDMA netlink if it has the device. For a device in another network namespace, in which
// each socket needs a thread, it reads files.
func (d *device) queryPorts(a asked) sysfs.Tally {
	if a.index == noIndex || a.node.away {
		return d.queries.Read(a.now, nil)
	}
	c, err := a.node.dial()
	if err != nil {
		return d.queries.Read(a.now, nil)
	}
	defer c.Close()
	b := sysfs.Buffers.Get().(*[sysfs.BufferSize]byte)
	defer sysfs.Buffers.Put(b)
	c.Buffer = b[:]
	return d.queries.Read(a.now, func(port int) (sysfs.PortState, error) { return c.Port(a.index, uint32(port), a.deadline) })
}

// answer returns what the calls of queue found. While a query hangs, reading.query is ErrStuck.
func (d *device) answer() (reading, error) {
	r, err := d.call.Answer(d.pending)
	links, queryErr := d.query.Answer(d.pendingQuery)
	if err != nil {
		return r, err
	}
	if r.links, r.query = links, queryErr; queryErr != nil {
		return r, nil
	}
	for i, p := range d.files.Ports {
		to := &r.hca.Ports[i]
		to.LinkLayer, to.Netdev, to.PortGUID = p.Base.LinkLayer, p.Base.Netdev, p.Base.PortGUID
		to.GIDs, to.PKeys = p.Base.GIDs, p.Base.PKeys
	}
	d.queries.Fill(r.hca.Ports)
	return r, nil
}

// read reads all counters of the device, and the attributes that need no query of a port. deadline limits netlink requests.
func (d *device) read(now, deadline time.Time, n *node) (reading, error) {
	b := sysfs.Buffers.Get().(*[sysfs.BufferSize]byte)
	defer sysfs.Buffers.Put(b)
	f := d.files
	f.Reader.Buffer = b[:]

	scanned, err := f.Open(n.open)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errOther) {
		return reading{}, sysfs.ErrGone
	}
	if err != nil {
		return reading{}, err
	}
	if scanned {
		d.matchPorts()
	}
	if d.node != n || scanned {
		d.node = n
		f.HCA.CharDevice = n.uverbs[d.name].Name
		f.HCA.Index = n.index(d.name, f.HCA.NodeGUID)
		if f.HCA.Parent = ""; n.devices[d.name].SMI {
			f.HCA.Parent = n.devices[d.name].Parent
		}
	}
	var c *nldev.Conn
	if f.HCA.Index != noIndex {
		if c, err = n.dial(); err == nil {
			c.Buffer = b[:]
			defer c.Close()
		}
	}

	r := reading{hca: f.HCA}
	if f.HCA.Index == noIndex {
		r.hca.Index = 0
	}
	r.hca.Ports = make([]model.Port, len(d.ports))
	for i, p := range d.ports {
		f.ReadPort(p.Port, now)
		r.hca.Ports[i] = p.Base
		r.hca.Ports[i].Counters = f.ReadGroup(&p.Counters, now, &r.counters)
		r.hca.Ports[i].HWCounters = d.readHW(c, p, now, deadline, &r.counters)
		r.hca.Ports[i].ExtCounters = f.ReadGroup(&p.Ext, now, &r.counters)
	}
	r.hca.HWCounters = f.ReadGroup(&f.HW, now, &r.counters)
	if c != nil && d.bound != nil {
		d.bound.Read(c, n.dial, f.HCA.Index, now, deadline, &r.counters)
	}
	if c != nil && n.away {
		r.resources = d.readResources(c, now, deadline, &r.counters)
	}
	if c != nil {
		r.domains = d.readDomains(c, now, deadline, &r.counters)
		if !n.away {
			r.hca.IPoIB = f.ReadIPoIB(r.domains)
		}
		if slices.ContainsFunc(r.domains, func(d model.Domains) bool { return d.IsConsumer() }) {
			r.kernelIDs = d.readKernelIDs(c, now, deadline, &r.counters)
		}
	}
	r.refused = slices.Clone(f.Refused)
	return r, nil
}

// matchPorts keeps the state of the ports that the directory still has.
func (d *device) matchPorts() {
	if !slices.EqualFunc(d.ports, d.files.Ports, func(a *devicePort, b *sysfs.Port) bool { return a.Port == b }) {
		d.ports = nil
		for _, p := range d.files.Ports {
			d.ports = append(d.ports, &devicePort{Port: p, stat: sysfs.Attempt{Name: fmt.Sprintf("ports/%d/STAT_GET", p.Base.Number)}})
		}
	}
	for _, p := range d.ports {
		p.statless = false
	}
}

// unreadable returns the error of a reading without values. It closes a removed device, unless a read is in progress.
func (d *device) unreadable(r *reading) error {
	err := r.err()
	switch {
	case !r.none() || err == nil:
		return nil
	case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT):
		if !d.call.Running() { // otherwise the next read finds the device removed again
			d.files.Close()
		}
		return sysfs.ErrGone
	}
	return err
}

// readHW reads the hardware counters of a port by RDMA netlink, with one firmware query. If netlink has no counters, it
// reads the files.
func (d *device) readHW(c *nldev.Conn, p *devicePort, now, deadline time.Time, t *sysfs.Tally) []model.Counter {
	if c == nil || p.statless {
		return d.files.ReadGroup(&p.HW, now, t)
	}
	if p.stat.Waiting(now) {
		t.Count("", &p.stat, now)
		return nil
	}
	if now.Before(p.slow.until) {
		t.Good++
		return p.slow.counters
	}
	began := time.Now()
	counters := make([]model.Counter, 0, max(p.HW.Size(), len(d.names)))
	counters, err := c.Counters(d.files.HCA.Index, uint32(p.Base.Number), counters, d.intern, deadline)
	switch {
	case err == nil:
		p.HW.Answered = p.HW.Answered || len(counters) > 0
		p.stat.Done(now, nil)
		t.Count("", &p.stat, now)
		p.slow.took(time.Since(began), now, counters)
		return counters
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EMSGSIZE):
		// The driver has no counters in netlink, or more than fit in a message.
		p.statless = true
		return d.files.ReadGroup(&p.HW, now, t)
	}
	p.stat.Done(now, err)
	t.Count("", &p.stat, now)
	return nil
}

// readResources reads the number of objects of this device (RES_GET). It records failures in t.
func (d *device) readResources(c *nldev.Conn, now, deadline time.Time, t *sysfs.Tally) []model.Resource {
	all := attempt(&d.tables, now, t, func() ([]model.Resource, error) { return c.Resources(d.files.HCA.Index, false, deadline) })
	for i := range all {
		all[i].Device = d.name
	}
	return all
}

// readDomains counts the protection domains of the device by their users (RES_PD_GET). It records failures in t. After
// a failure c cannot be used: the rest of the list may follow.
func (d *device) readDomains(c *nldev.Conn, now, deadline time.Time, t *sysfs.Tally) []model.Domains {
	all := attempt(&d.domains, now, t, func() ([]model.Domains, error) { return c.Domains(d.files.HCA.Index, deadline) })
	for i := range all {
		all[i].Device = d.name
	}
	return all
}

// readKernelIDs lists the connection manager ids of kernel modules (RES_CM_ID_GET). It records failures in t. After a
// failure c cannot be used: the rest of the list may follow.
func (d *device) readKernelIDs(c *nldev.Conn, now, deadline time.Time, t *sysfs.Tally) []model.KernelID {
	all := attempt(&d.ids, now, t, func() ([]model.KernelID, error) { return c.KernelIDs(d.files.HCA.Index, deadline) })
	for i := range all {
		all[i].Device = d.name
	}
	return all
}

// attempt reads a list unless it waits after failures. It records failures in t, and then returns nil.
func attempt[T any](a *sysfs.Attempt, now time.Time, t *sysfs.Tally, read func() ([]T, error)) []T {
	if a.Waiting(now) {
		t.Count("", a, now)
		return nil
	}
	all, err := read()
	if a.Done(now, err); err != nil {
		t.Count("", a, now)
		return nil
	}
	return all
}

// intern returns the name of a counter without an allocation per read.
func (d *device) intern(b []byte) (string, bool) {
	if s, ok := d.names[string(b)]; ok {
		return s, true
	}
	s := string(b)
	if !d.files.Refused.Counter(s) {
		return "", false
	}
	if len(d.names) >= nldev.MaxCounters {
		d.files.Refused.Add("counter", s, "the device has too many")
		return "", false
	}
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[s] = s
	return s, true
}
