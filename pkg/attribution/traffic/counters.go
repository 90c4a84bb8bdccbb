// SPDX-License-Identifier: Apache-2.0

package traffic

import (
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

// vfStats marks a counter that the PF reports about a VF.
const vfStats = "vf"

type byteCounter struct {
	port      int
	from      string // names of the driver's counters, or vfStats
	direction int
	value     uint64 // in bytes
}

func portCounters(counters []byteCounter, h *model.HCA) []byteCounter {
	var buffer [model.SharedCounters]model.SharedCounter
	for i := range h.Ports {
		p := &h.Ports[i]
		for _, c := range h.PortCounters(buffer[:0], p) {
			switch c.Name {
			case model.TransmitBytes:
				counters = append(counters, byteCounter{p.Number, c.From, transmit, c.Value})
			case model.ReceiveBytes:
				counters = append(counters, byteCounter{p.Number, c.From, receive, c.Value})
			}
		}
	}
	return counters
}

// advance takes a reading of a device's counters and computes the bytes moved since the last interval ended. A counter
// that fell was reset: its value is the growth, as in Prometheus. first reports that no devices were read before.
func (d *device) advance(stale, collected, first bool) {
	d.moved = [directions]uint64{}
	r := d.classify(stale)
	wasCounted := d.state.counted
	d.state, d.interval = next(d.state, r, d.listed, collected)
	d.interval.before = d.interval.begins && first
	switch {
	case !d.interval.ends:
	case !d.state.counted:
		d.interval.untallied = len(d.last) > 0 // the device had counters
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

func (d *device) classify(stale bool) reading {
	switch {
	case stale:
		return readStale
	case len(d.read) == 0 && (!d.state.counted || !complete(d.read, d.last)):
		return readNothing
	case d.state.counted && len(d.read) > 0 && (d.read[0].from == vfStats) != (d.last[0].from == vfStats):
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
		d.moved[c.direction] += moved
	}
	d.last = append(d.last[:0], read...)
}

// find finds the counter c in another reading.
func find(counters []byteCounter, c byteCounter) *byteCounter {
	for i := range counters {
		if o := &counters[i]; o.port == c.port && o.from == c.from && o.direction == c.direction {
			return &counters[i]
		}
	}
	return nil
}
