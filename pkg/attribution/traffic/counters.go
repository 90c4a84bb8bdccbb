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

func (f byteCounter) same(o byteCounter) bool {
	return f.port == o.port && f.set == o.set && f.direction == o.direction
}

// pmaCounter recognizes a counter by its name in sysfs counters/, driverCounter in
// hw_counters/.
func pmaCounter(name string) (direction int, ok bool) {
	switch name {
	case "port_xmit_data":
		return transmit, true
	case "port_rcv_data":
		return receive, true
	}
	return 0, false
}

func driverCounter(name string) (s set, direction int, ok bool) {
	switch name {
	case "tx_bytes":
		return plain, transmit, true
	case "rx_bytes":
		return plain, receive, true
	case "sent_bytes":
		return soft, transmit, true
	case "rcvd_bytes":
		return soft, receive, true
	case "ip4OutOctets":
		return octets4, transmit, true
	case "ip4InOctets":
		return octets4, receive, true
	case "ip6OutOctets":
		return octets6, transmit, true
	case "ip6InOctets":
		return octets6, receive, true
	case "tx_bytes_cnt":
		return erdmaSet, transmit, true
	case "rx_bytes_cnt":
		return erdmaSet, receive, true
	}
	return 0, 0, false
}

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
			if direction, ok := pmaCounter(c.Name); ok {
				counters = append(counters, byteCounter{p.Number, pmaSet, direction, c.Value})
			}
		}
		if len(counters) > n {
			if !wide {
				counters = append(counters[:n], unsaturated(counters[n:])...)
			}
			continue
		}
		best := vfStats
		for j := range p.HWCounters {
			s, direction, ok := driverCounter(p.HWCounters[j].Name)
			both := s == octets6 && best == octets4 || s == octets4 && best == octets6
			if !ok || s > best && !both {
				continue
			}
			if s < best && !both {
				best, counters = s, counters[:n]
			}
			counters = append(counters, byteCounter{p.Number, s, direction, p.HWCounters[j].Value})
		}
	}
	return counters
}

// unsaturated drops saturated counters. A 32-bit counter stops at its maximum. A 64-bit
// counter has that value only briefly, and the next reading makes up for the missed one.
func unsaturated(counters []byteCounter) []byteCounter {
	moving := counters[:0]
	for _, f := range counters {
		if f.value != math.MaxUint32 {
			moving = append(moving, f)
		}
	}
	return moving
}

// advance takes a reading of a device's counters and computes the bytes moved since the last
// interval ended. A counter that fell was reset: its value is the growth, as in Prometheus.
func (d *device) advance(stale, collected bool) {
	d.moved = [directions]uint64{}
	r := d.classify(stale)
	wasCounted := d.state.counted
	d.state, d.interval = next(d.state, r, d.listed, collected)
	switch {
	case !d.interval.ends || !d.state.counted:
	case complete(d.read, d.last) && (!wasCounted || r == readAll):
		d.add(d.read)
	default:
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
	for _, c := range before {
		if find(read, c) == nil {
			return false
		}
	}
	return true
}

func (d *device) add(read []byteCounter) {
	for _, c := range read {
		before := find(d.last, c)
		switch {
		case before == nil: // another port
			d.interval.mixed = true
			d.moved[c.direction] += c.value * c.set.unit()
		case c.value < before.value:
			d.moved[c.direction] += c.value * c.set.unit()
		default:
			d.moved[c.direction] += (c.value - before.value) * c.set.unit()
		}
	}
	d.last = append(d.last[:0], read...)
}

func find(counters []byteCounter, c byteCounter) *byteCounter {
	for i := range counters {
		if counters[i].same(c) {
			return &counters[i]
		}
	}
	return nil
}
