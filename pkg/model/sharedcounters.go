// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"slices"
	"strings"
)

// The units of port_xmit_data and port_rcv_data in bytes: words, and flits of Omni-Path (hw/hfi1/mad.c passes
// C_DC_XMIT_FLITS on).
const (
	wordBytes = 4
	flitBytes = 8
)

// The directories of counters of a port.
const (
	driverSet = iota // hw_counters
	pmaSet           // counters
	extSet           // counters_ext
	counterSets
)

// SharedCounter is a counter under the name for all drivers, in bytes or events.
type SharedCounter struct {
	Counter
	From string // the driver's names, as in the table
}

// A counterRow is a line of driverCounters.
type counterRow struct {
	set, parts int
	traffic    bool // bytes or packets
	words      bool // the unit is wordBytes
}

var counterRows, rowsByName = func() (rows [len(driverCounters)]counterRow, byName [counterSets]map[string][]int) {
	for i := range byName {
		byName[i] = map[string][]int{}
	}
	for i, c := range driverCounters {
		r := &rows[i]
		names := c.name
		if dir, name, found := strings.Cut(c.name, "/"); found {
			r.set, names = pmaSet, name
			if dir == "counters_ext" {
				r.set = extSet
			}
		}
		bytes := c.counter == TransmitBytes || c.counter == ReceiveBytes
		r.traffic = bytes || c.counter == TransmitPackets || c.counter == ReceivePackets
		r.words = bytes && r.set != driverSet
		for name := range strings.SplitSeq(names, " + ") {
			byName[r.set][name] = append(byName[r.set][name], i)
			r.parts++
		}
	}
	return rows, byName
}()

// rowSums are the values of the lines of driverCounters.
type rowSums [len(driverCounters)]struct {
	sum   uint64
	parts int
}

func (s *rowSums) add(set int, counters []Counter) {
	for i := range counters {
		c := &counters[i]
		if set == driverSet && c.Value == math.MaxUint64 {
			continue // ionic's value for a counter that its firmware lacks
		}
		for _, row := range rowsByName[set][c.Name] {
			s[row].sum += c.Value
			s[row].parts++
		}
	}
}

// PortCounters appends a port's counters under the names for all drivers, in the order of the table. A counter that the
// driver lacks is absent. If counters/ has bytes or packets, all bytes and packets come from there: an unreadable file
// is absent, because the driver's own counter may count something else. A 32-bit counter at its highest value is
// absent, too.
func (h *HCA) PortCounters(found []SharedCounter, p *Port) []SharedCounter {
	var sums rowSums
	sums.add(driverSet, p.HWCounters)
	sums.add(pmaSet, p.Counters)
	sums.add(extSet, p.ExtCounters)
	if hasTraffic(p.Counters) {
		for i, r := range counterRows {
			if r.traffic && r.set == driverSet {
				sums[i].parts = 0
			}
		}
	}
	wide := slices.ContainsFunc(p.Counters, func(c Counter) bool {
		return c.Name == "unicast_rcv_packets" || c.Name == "unicast_xmit_packets" // exist only beside 64-bit counters
	})
	for i, r := range counterRows {
		if r.set == pmaSet && !wide && sums[i].sum == math.MaxUint32 {
			sums[i].parts = 0
		}
	}
	unit := uint64(wordBytes)
	if h.omniPath() {
		unit = flitBytes
	}
	return sums.list(found, unit)
}

// DeviceCounters returns the device's own counters likewise, without counters of its ports: the device would count
// their events again.
func (h *HCA) DeviceCounters() []SharedCounter {
	if len(h.HWCounters) == 0 {
		return nil
	}
	var sums rowSums
	sums.add(driverSet, h.HWCounters)
	device := sums.list(nil, 1)
	for i := range h.Ports {
		for _, c := range h.PortCounters(nil, &h.Ports[i]) {
			device = slices.DeleteFunc(device, func(d SharedCounter) bool { return d.Name == c.Name })
		}
	}
	return device
}

func (s *rowSums) list(found []SharedCounter, unit uint64) []SharedCounter {
	last := ""
	for i, c := range driverCounters {
		if c.counter == last || s[i].parts < counterRows[i].parts {
			continue
		}
		last = c.counter
		value := s[i].sum
		if counterRows[i].words {
			value *= unit
		}
		found = append(found, SharedCounter{Counter{c.counter, value}, c.name})
	}
	return found
}

// hasTraffic reports whether counters/ of a port has bytes or packets.
func hasTraffic(counters []Counter) bool {
	return slices.ContainsFunc(counters, func(c Counter) bool { return len(rowsByName[pmaSet][c.Name]) > 0 })
}

// omniPath reports whether hfi1 drives the HCA, by its board or by a counter that only hfi1 has.
func (h *HCA) omniPath() bool {
	return strings.Contains(h.Board, "Omni-Path") ||
		slices.ContainsFunc(h.HWCounters, func(c Counter) bool { return strings.HasPrefix(c.Name, "DcXmitFlits") })
}

// SharedValue returns a counter of a list.
func SharedValue(counters []SharedCounter, name string) (value uint64, known bool) {
	for i := range counters {
		if counters[i].Name == name {
			return counters[i].Value, true
		}
	}
	return 0, false
}

// WithoutBytes returns why the bytes of a port are unknown, or "". counters are the port's.
func (h *HCA) WithoutBytes(p *Port, counters []SharedCounter) string {
	has := func(name string) bool { _, known := SharedValue(counters, name); return known }
	switch sent, received := has(TransmitBytes), has(ReceiveBytes); {
	case sent && received:
		return ""
	case sent != received:
		return "the counter of one direction is missing, or at its highest value"
	case hasTraffic(p.Counters):
		return "the counters of bytes are missing, or at their highest value"
	case h.Netns != 0:
		return "the driver has none in hw_counters, and counters/ is not visible in another network namespace"
	case has(ReceivePackets):
		return "the driver counts packets, and no bytes"
	case len(p.Counters)+len(p.HWCounters) > 0:
		return "the driver counts neither bytes nor packets"
	}
	return "the port has no counters"
}
