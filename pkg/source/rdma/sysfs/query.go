// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// SMAge is the interval at which the file with the LID of an InfiniBand port's subnet manager is read. RateAge is the
// interval at which the rate of a port is read if the port's state does not change. For mlx5 both are firmware commands.
const (
	SMAge   = 30 * time.Second
	RateAge = 30 * time.Second
)

// Queries reads the values for which the kernel queries a port (ib_query_port): state, phys_state, rate, lid and sm_lid.
// Counters, link_layer, gids, gid_attrs and RDMA netlink's STAT_GET need no query. Each file costs a query of its own,
// which is five firmware commands for mlx5 on InfiniBand. RDMA netlink's PORT_GET has all values but the rate for one
// query.
//
// A query can hang although the HCA works: for Soft-RoCE, siw, usnic and hns it takes RTNL, the lock of network
// configuration (ib_get_eth_speed), which is held while the driver of any network interface hangs. So queries are a
// separate call, after the call that reads the device, with their own descriptors. While a query hangs, everything else
// is read, and the ports have no state.
type Queries struct {
	Reader Reader
	dir    int // the device's directory, -1 while not open
	opened int // value of device.opened for dir
	Ports  []portQuery

	unanswered bool // PORT_GET failed for this device: files are read
}

// PortState is the answer to PORT_GET, in the words of the files.
type PortState struct {
	State, PhysState string
	LID, SMLID       string // empty except for InfiniBand
}

// Ask sends PORT_GET for a port.
type Ask func(port int) (PortState, error)

// portQuery holds the results of queries of a port.
type portQuery struct {
	state, phys, rate text
	found             model.Port // Number, State, PhysState, RateBits, Width, Speed, LID, SMLID, SMChanges
	infiniband        bool
	lidRead, smRead   time.Time
	rateRead          time.Time
	lastSM            string // LID of the last subnet manager
	changed           bool   // State or SMLID changed since the last Fill
	taken             bool   // Fill has taken results before
}

// text is an attribute that is parsed again only when it changes.
type text struct {
	file
	raw string
}

// Changed reports whether a port changed since the last Mark.
func (q *Queries) Changed() bool {
	return slices.ContainsFunc(q.Ports, func(p portQuery) bool { return p.changed })
}

// Mark marks the ports that changed, and reports whether attributes must be read again. Attributes that were read after
// the first change are not read again.
func (q *Queries) Mark(ports []*Port) bool {
	found := false
	for i := range q.Ports {
		q, p := &q.Ports[i], ports[i]
		p.Base.SMChanges = q.found.SMChanges
		p.changed = q.changed && (q.taken || !p.attrsFresh)
		q.changed, q.taken = false, true
		found = found || p.changed
	}
	return found
}

// NewQueries returns queries that are not prepared. For kept see NewDevice.
func NewQueries(kept *atomic.Int64) Queries {
	return Queries{dir: -1, Reader: Reader{kept: kept}}
}

// IsOpen reports whether the directory of the device is open.
func (q *Queries) IsOpen() bool { return q.dir >= 0 }

// Prepare opens the directory of the device and matches the ports.
func (q *Queries) Prepare(d *Device) error {
	if q.opened != d.opened {
		q.Close()
		fd, err := q.Reader.dup(d.dir)
		if err != nil {
			return fmt.Errorf("duplicating the descriptor of its directory: %w", err)
		}
		q.dir, q.opened, q.unanswered = fd, d.opened, false
	}
	if !slices.EqualFunc(q.Ports, d.Ports, func(q portQuery, p *Port) bool { return q.found.Number == p.Base.Number }) {
		q.closePorts()
		for _, p := range d.Ports {
			q.Ports = append(q.Ports, newPortQuery(p.Base.Number))
		}
	}
	for i, p := range d.Ports {
		q.Ports[i].infiniband = p.Base.LinkLayer == "InfiniBand"
	}
	return nil
}

func newPortQuery(number int) portQuery {
	file := func(name string) text {
		return text{file: newFile(fmt.Sprintf("ports/%d/%s", number, name))}
	}
	return portQuery{
		found: model.Port{Number: number}, state: file("state"), phys: file("phys_state"), rate: file("rate"),
	}
}

// Read queries all ports, with ask or, if ask is nil or fails, by files.
func (q *Queries) Read(now time.Time, ask Ask) (links Tally) {
	b := Buffers.Get().(*[BufferSize]byte)
	defer Buffers.Put(b)
	q.Reader.Buffer = b[:]
	for i := range q.Ports {
		p := &q.Ports[i]
		if ask != nil && !q.unanswered {
			answer, err := ask(p.found.Number)
			if err == nil {
				q.take(p, answer, now, &links)
				continue
			}
			q.unanswered = true
		}
		q.readPort(p, now, &links)
	}
	return links
}

// take takes the answer to PORT_GET, and reads the rate if the state changed or the rate is old.
func (q *Queries) take(p *portQuery, answer PortState, now time.Time, t *Tally) {
	t.Good++
	changed := answer.State != p.found.State
	if changed || answer.PhysState != p.found.PhysState || now.Sub(p.rateRead) >= RateAge {
		q.readRate(p, now, t)
	} else {
		t.Count("", &p.rate.Attempt, now)
	}
	p.found.State, p.found.PhysState = answer.State, answer.PhysState
	if answer.LID == "" {
		q.readLIDs(p, changed, now)
		return
	}
	p.lidRead, p.smRead = now, now
	before := p.found.SMLID
	p.found.LID = answer.LID
	p.setSM(answer.SMLID)
	p.changed = p.changed || changed || p.found.SMLID != before
}

// readPort reads the state of a port by its files. It reads the LIDs if the state changed or the LIDs are old.
func (q *Queries) readPort(p *portQuery, now time.Time, t *Tally) {
	q.readText(&p.state, now, t)
	state := parseNumbered(p.state.raw)
	changed := state != p.found.State
	p.found.State = state
	q.readText(&p.phys, now, t)
	p.found.PhysState = parseNumbered(p.phys.raw)
	q.readRate(p, now, t)
	q.readLIDs(p, changed, now)
}

func (q *Queries) readRate(p *portQuery, now time.Time, t *Tally) {
	p.rateRead = now
	if q.readText(&p.rate, now, t) {
		p.found.RateBits, p.found.Width, p.found.Speed, _ = parseRate(p.rate.raw)
	}
}

// readLIDs reads the files with the LIDs if the state changed or the LIDs are old.
func (q *Queries) readLIDs(p *portQuery, changed bool, now time.Time) {
	line := func(name string) string {
		return q.Reader.Line(q.dir, "ports/"+strconv.Itoa(p.found.Number)+"/"+name)
	}
	if changed || now.Sub(p.lidRead) >= AttrsAge {
		p.lidRead = now
		p.found.LID = line("lid")
	}
	age := AttrsAge // 0x0 on Ethernet
	if p.infiniband {
		age = SMAge
	}
	if changed || now.Sub(p.smRead) >= age {
		p.smRead = now
		before := p.found.SMLID
		p.setSM(line("sm_lid"))
		changed = changed || p.found.SMLID != before
	}
	p.changed = p.changed || changed
}

// setSM sets the LID of the subnet manager, and counts a change from one subnet manager to another. A port without a
// link has no subnet manager: sm_lid is 0 or the last LID.
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

// Fill sets the results in the ports.
func (q *Queries) Fill(ports []model.Port) {
	for i := range q.Ports {
		q.Ports[i].fill(&ports[i])
	}
}

func (p *portQuery) fill(to *model.Port) {
	to.State, to.PhysState = p.found.State, p.found.PhysState
	to.RateBits, to.Width, to.Speed = p.found.RateBits, p.found.Width, p.found.Speed
	to.LID, to.SMLID, to.SMChanges = p.found.LID, p.found.SMLID, p.found.SMChanges
}

// readText reads an attribute and reports whether it changed.
func (q *Queries) readText(f *text, now time.Time, t *Tally) bool {
	if f.Waiting(now) {
		t.Count("", &f.Attempt, now)
		return false
	}
	b, err := q.Reader.read(q.dir, &f.file, maxValue+1)
	if err == nil && len(b) > maxValue {
		err = errGarbage
	}
	if err != nil {
		b = nil
	}
	f.Done(now, err)
	t.Count("", &f.Attempt, now)
	b = bytes.TrimSpace(b)
	if string(b) == f.raw {
		return false
	}
	f.raw = ParseLine(b)
	return true
}

// Close closes all descriptors. A later query opens them again.
func (q *Queries) Close() {
	q.closePorts()
	if q.dir >= 0 {
		q.Reader.Close(q.dir)
		q.dir = -1
	}
}

func (q *Queries) closePorts() {
	for i := range q.Ports {
		p := &q.Ports[i]
		q.Reader.forget(&p.state.file)
		q.Reader.forget(&p.phys.file)
		q.Reader.forget(&p.rate.file)
	}
	q.Ports = nil
}
