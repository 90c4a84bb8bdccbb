// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// The directions are indexes.
const (
	transmit = iota
	receive
	directions
)

var directionNames = [directions]model.Direction{model.Transmit, model.Receive}

// A set of counters counts the bytes of a port. If a port has several sets, the first one is
// read.
type set uint8

const (
	pmaSet   set = iota // port_xmit_data, port_rcv_data: in words of four bytes
	plain               // tx_bytes, rx_bytes: efa, bnxt_re, mana
	soft                // sent_bytes, rcvd_bytes: rxe since Linux 7.x
	octets4             // ip4OutOctets, ip4InOctets: irdma, in addition to
	octets6             // ip6OutOctets, ip6InOctets
	erdmaSet            // tx_bytes_cnt, rx_bytes_cnt: erdma
	vfStats             // the PF's statistics of a VF
)

// unit returns the number of bytes per count.
func (s set) unit() uint64 {
	if s == pmaSet {
		return 4
	}
	return 1
}

// A byteCounter is one byte counter of a device.
type byteCounter struct {
	port      int
	set       set
	direction int
	value     uint64
}

// pmaCounters are the directions of byte counters by their names in sysfs counters/,
// driverCounters the sets and directions by the names in hw_counters/.
var (
	pmaCounters    = map[string]int{"port_xmit_data": transmit, "port_rcv_data": receive}
	driverCounters = map[string]struct {
		set       set
		direction int
	}{
		"tx_bytes":     {plain, transmit},
		"rx_bytes":     {plain, receive},
		"sent_bytes":   {soft, transmit},
		"rcvd_bytes":   {soft, receive},
		"ip4OutOctets": {octets4, transmit},
		"ip4InOctets":  {octets4, receive},
		"ip6OutOctets": {octets6, transmit},
		"ip6InOctets":  {octets6, receive},
		"tx_bytes_cnt": {erdmaSet, transmit},
		"rx_bytes_cnt": {erdmaSet, receive},
	}
)

// portCounters adds the byte counters of the ports of an HCA.
func portCounters(counters []byteCounter, h *model.HCA) []byteCounter {
	for i := range h.Ports {
		p := &h.Ports[i]
		n := len(counters)
		wide := false
		for j := range p.Counters {
			c := &p.Counters[j]
			// Only devices with 64-bit counters have these.
			wide = wide || c.Name == "unicast_rcv_packets" || c.Name == "unicast_xmit_packets"
			if direction, ok := pmaCounters[c.Name]; ok {
				counters = append(counters, byteCounter{p.Number, pmaSet, direction, c.Value})
			}
		}
		if len(counters) > n {
			if !wide {
				// A 32-bit counter stops at its maximum. A 64-bit counter has that value only
				// briefly, and the next reading makes up for the missed one.
				saturated := func(c byteCounter) bool { return c.value == math.MaxUint32 }
				counters = append(counters[:n], slices.DeleteFunc(counters[n:], saturated)...)
			}
			continue
		}
		best := vfStats
		for j := range p.HWCounters {
			c, ok := driverCounters[p.HWCounters[j].Name]
			both := c.set == octets6 && best == octets4 || c.set == octets4 && best == octets6
			if !ok || c.set > best && !both {
				continue
			}
			if c.set < best && !both {
				best, counters = c.set, counters[:n]
			}
			counters = append(counters, byteCounter{p.Number, c.set, c.direction, p.HWCounters[j].Value})
		}
	}
	return counters
}

// advance takes a reading of a device's counters and computes the bytes moved since the last
// interval ended. A counter that fell was reset: its value is the growth, as in Prometheus. first reports that no devices were read before.
func (d *device) advance(stale, collected, first bool) {
	d.moved = [directions]uint64{}
	r := d.classify(stale)
	wasCounted := d.state.counted
	d.state, d.interval = next(d.state, r, d.listed, collected)
	d.interval.before = d.interval.begins && first
	switch {
	case !d.interval.ends:
	case !d.state.counted:
		d.interval.untallied = len(d.last) > 0 // it had counters
	case complete(d.read, d.last) && (!wasCounted || r == readAll):
		d.add(d.read)
	default:
		d.interval.untallied = true
		d.last = append(d.last[:0], d.read...)
	}
	for i := range d.directions {
		d.directions[i].counted = d.state.counted && slices.ContainsFunc(d.last, func(c byteCounter) bool { return c.direction == i })
	}
}

// classify returns the kind of reading.
func (d *device) classify(stale bool) reading {
	switch {
	case stale:
		return readStale
	case len(d.read) == 0 && (!d.state.counted || !complete(d.read, d.last)):
		return readNothing
	case d.state.counted && len(d.read) > 0 && (d.read[0].set == vfStats) != (d.last[0].set == vfStats):
		return readOther
	case complete(d.read, d.last):
		return readAll
	}
	return readPart
}

// complete reports whether read has all counters of before.
func complete(read, before []byteCounter) bool {
	return !slices.ContainsFunc(before, func(c byteCounter) bool { return find(read, c) == nil })
}

func (d *device) add(read []byteCounter) {
	for _, c := range read {
		moved := c.value
		if before := find(d.last, c); before == nil { // another port
			d.interval.mixed = true
		} else if c.value >= before.value {
			moved -= before.value
		} else {
			d.interval.untallied = true
		}
		d.moved[c.direction] += moved * c.set.unit()
	}
	d.last = append(d.last[:0], read...)
}

// find finds the same counter in another reading.
func find(counters []byteCounter, c byteCounter) *byteCounter {
	for i := range counters {
		if o := &counters[i]; o.port == c.port && o.set == c.set && o.direction == c.direction {
			return &counters[i]
		}
	}
	return nil
}
