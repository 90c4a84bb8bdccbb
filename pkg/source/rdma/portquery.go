// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// smAge is the interval at which the LID of the subnet manager of an InfiniBand port is read: a command of the firmware.
const smAge = 30 * time.Second

// portQueries reads the files for which the kernel queries a port (ib_query_port): state, phys_state, rate, lid and sm_lid. Counters,
// link_layer, gids, gid_attrs and RDMA netlink's STAT_GET need no query.
//
// A query can hang although the HCA works: for Soft-RoCE, siw, usnic and hns it takes RTNL, the lock of network configuration
// (ib_get_eth_speed), which is held while the driver of any network interface hangs. So queries are a call of their own, after the call that
// reads the device, with descriptors of their own. While a query hangs, everything else is read, and the ports have no state.
type portQueries struct {
	reader reader
	dir    int // the device's directory, -1 while not open
	opened int // value of device.opened for dir
	ports  []portQuery
}

// portQuery holds the results of queries of a port.
type portQuery struct {
	state, phys, rate text
	found             model.Port // Number, State, PhysState, RateBits, Width, Speed, LID, SMLID, SMChanges
	infiniband        bool
	lidRead, smRead   time.Time
	lastSM            string // LID of the last subnet manager
	changed           bool   // State or SMLID changed since Source.Read took the results
	taken             bool   // Source.Read has taken results
}

// text is an attribute that is parsed again only when it changes.
type text struct {
	file
	raw string
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
	if r.query = d.queries.prepare(d); r.query != nil {
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
	if d.takeChanges() {
		// If this hangs, the next read of the device reports it.
		_, err := d.call.Do(ctx, time.Until(deadline), func() (reading, error) { d.readChanged(now); return reading{}, nil })
		if err == nil {
			for i, p := range d.ports {
				to := &ports[i]
				to.LinkLayer, to.Netdev, to.PortGUID = p.base.LinkLayer, p.base.Netdev, p.base.PortGUID
				to.GIDs, to.PKeys = p.base.GIDs, p.base.PKeys
			}
		}
	}
	for i := range d.queries.ports {
		d.queries.ports[i].fill(&ports[i])
	}
}

// takeChanges reports whether a port changed. Attributes that were read after the first change are not read again.
func (d *device) takeChanges() bool {
	found := false
	for i := range d.queries.ports {
		q, p := &d.queries.ports[i], d.ports[i]
		p.base.SMChanges = q.found.SMChanges
		p.changed = q.changed && (q.taken || !p.attrsFresh)
		q.changed, q.taken = false, true
		found = found || p.changed
	}
	return found
}

// readChanged reads the attributes of the ports that changed.
func (d *device) readChanged(now time.Time) {
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

// prepare opens the directory of the device and matches the ports.
func (q *portQueries) prepare(d *device) error {
	if q.opened != d.opened {
		q.close()
		fd, err := q.reader.dup(d.dir)
		if err != nil {
			return fmt.Errorf("duplicating the descriptor of its directory: %w", err)
		}
		q.dir, q.opened = fd, d.opened
	}
	if !slices.EqualFunc(q.ports, d.ports, func(q portQuery, p *port) bool { return q.found.Number == p.base.Number }) {
		q.closePorts()
		for _, p := range d.ports {
			q.ports = append(q.ports, newPortQuery(p.base.Number))
		}
	}
	for i, p := range d.ports {
		q.ports[i].infiniband = p.base.LinkLayer == "InfiniBand"
	}
	return nil
}

func newPortQuery(number int) portQuery {
	file := func(name string) text {
		return text{file: file{name: fmt.Sprintf("ports/%d/%s", number, name), fd: -1}}
	}
	return portQuery{
		found: model.Port{Number: number}, state: file("state"), phys: file("phys_state"), rate: file("rate"),
	}
}

// read queries all ports.
func (q *portQueries) read(now time.Time) (links tally) {
	b := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(b)
	q.reader.buffer = b[:]
	for i := range q.ports {
		q.readPort(&q.ports[i], now, &links)
	}
	return links
}

// readPort reads the state of a port. It reads the LIDs when the state changed or they are old.
func (q *portQueries) readPort(p *portQuery, now time.Time, t *tally) {
	changed := q.readText(&p.state, now, t)
	if changed {
		p.found.State = parseNumbered(p.state.raw)
	}
	if q.readText(&p.phys, now, t) {
		p.found.PhysState = parseNumbered(p.phys.raw)
	}
	if q.readText(&p.rate, now, t) {
		p.found.RateBits, p.found.Width, p.found.Speed, _ = parseRate(p.rate.raw)
	}
	line := func(name string) string {
		return q.reader.line(q.dir, "ports/"+strconv.Itoa(p.found.Number)+"/"+name)
	}
	if changed || now.Sub(p.lidRead) >= attrsAge {
		p.lidRead = now
		p.found.LID = line("lid")
	}
	age := attrsAge // 0x0 on Ethernet
	if p.infiniband {
		age = smAge
	}
	if changed || now.Sub(p.smRead) >= age {
		p.smRead = now
		before := p.found.SMLID
		p.setSM(line("sm_lid"))
		changed = changed || p.found.SMLID != before
	}
	p.changed = p.changed || changed
}

// setSM sets the LID of the subnet manager, and counts the change from one to another. A port without a link has none: LID 0, or that of
// the last one.
func (p *portQuery) setSM(lid string) {
	p.found.SMLID = lid
	if v, err := strconv.ParseUint(lid, 0, 16); err != nil || v == 0 {
		return
	}
	if p.lastSM != "" && p.lastSM != lid {
		p.found.SMChanges++
	}
	p.lastSM = lid
}

// fill sets the results in a port.
func (p *portQuery) fill(to *model.Port) {
	to.State, to.PhysState = p.found.State, p.found.PhysState
	to.RateBits, to.Width, to.Speed = p.found.RateBits, p.found.Width, p.found.Speed
	to.LID, to.SMLID, to.SMChanges = p.found.LID, p.found.SMLID, p.found.SMChanges
}

// readText reads an attribute and reports whether it changed.
func (q *portQueries) readText(f *text, now time.Time, t *tally) bool {
	if f.pause.Waiting(now) {
		t.count("", &f.file, now)
		return false
	}
	b, err := q.reader.read(q.dir, &f.file, maxValue+1)
	if err == nil && len(b) > maxValue {
		err = errGarbage
	}
	if err != nil {
		b = nil
	}
	f.done(now, err)
	t.count("", &f.file, now)
	b = bytes.TrimSpace(b)
	if string(b) == f.raw {
		return false
	}
	f.raw = parseLine(b)
	return true
}

// close closes all descriptors. A later query opens them again.
func (q *portQueries) close() {
	q.closePorts()
	if q.dir >= 0 {
		q.reader.close(q.dir)
		q.dir = -1
	}
}

func (q *portQueries) closePorts() {
	for i := range q.ports {
		p := &q.ports[i]
		q.reader.forget(&p.state.file)
		q.reader.forget(&p.phys.file)
		q.reader.forget(&p.rate.file)
	}
	q.ports = nil
}
