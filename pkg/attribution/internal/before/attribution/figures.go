// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"math"
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// The directions, as indexes.
const (
	transmit = iota
	receive
	directions
)

var directionNames = [directions]model.Direction{model.Transmit, model.Receive}

// A set of counters tells the bytes of a port. Of several the first is read.
type set uint8

const (
	pmaSet   set = iota // port_xmit_data, port_rcv_data: in words of four bytes
	plain               // tx_bytes, rx_bytes: efa, bnxt_re, mana
	soft                // sent_bytes, rcvd_bytes: rxe since Linux 7.x
	octets4             // ip4OutOctets, ip4InOctets: irdma, in addition to
	octets6             // ip6OutOctets, ip6InOctets
	erdmaSet            // tx_bytes_cnt, rx_bytes_cnt: erdma
	vfStats             // the statistics that a PF keeps of a VF
)

// unit is what one count of the set is in bytes.
func (s set) unit() uint64 {
	if s == pmaSet {
		return 4
	}
	return 1
}

// A figure is one counter of bytes of a device.
type figure struct {
	port      int
	set       set
	direction int
	value     uint64
}

func (f figure) same(o figure) bool {
	return f.port == o.port && f.set == o.set && f.direction == o.direction
}

// pmaFigure and driverFigure know the counters by their names, in sysfs counters/
// and hw_counters/.
func pmaFigure(name string) (direction int, ok bool) {
	switch name {
	case "port_xmit_data":
		return transmit, true
	case "port_rcv_data":
		return receive, true
	}
	return 0, false
}

func driverFigure(name string) (s set, direction int, ok bool) {
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

// portFigures adds what the ports of an HCA tell of bytes.
func portFigures(figures []figure, h *model.HCA) []figure {
	for i := range h.Ports {
		p := &h.Ports[i]
		n := len(figures)
		wide := false
		for j := range p.Counters {
			c := &p.Counters[j]
			// The set with counters of 64 bits tells unicast packets, too.
			wide = wide || c.Name == "unicast_rcv_packets" || c.Name == "unicast_xmit_packets"
			if direction, ok := pmaFigure(c.Name); ok {
				figures = append(figures, figure{p.Number, pmaSet, direction, c.Value})
			}
		}
		if len(figures) > n {
			if !wide {
				figures = append(figures[:n], unsaturated(figures[n:])...)
			}
			continue
		}
		best := vfStats
		for j := range p.HWCounters {
			s, direction, ok := driverFigure(p.HWCounters[j].Name)
			both := s == octets6 && best == octets4 || s == octets4 && best == octets6
			if !ok || s > best && !both {
				continue
			}
			if s < best && !both {
				best, figures = s, figures[:n]
			}
			figures = append(figures, figure{p.Number, s, direction, p.HWCounters[j].Value})
		}
	}
	return figures
}

// unsaturated leaves out the counters that have stopped. One of 32 bits stays at
// its highest value, where it tells nothing; one of 64 bits is there for a moment
// at most, and it does no harm to wait for the next reading.
func unsaturated(figures []figure) []figure {
	moving := figures[:0]
	for _, f := range figures {
		if f.value != math.MaxUint32 {
			moving = append(moving, f)
		}
	}
	return moving
}

// patience is for how many refreshes something may be missing before it is held
// to be gone: a device's counters, an owner, what a source told of a cgroup.
const patience = 10

// advance takes the figures of a device and says how many bytes it has moved since
// they were taken last; not yet when one of them is missing, which the next
// reading then makes up for. A counter that fell began anew, and what it counts
// now was moved since: Prometheus reads it in the same way. looked says that the
// device would be known if it were there.
func (d *meter) advance(read []figure, looked bool) {
	d.due, d.first, d.begins, d.moved = false, false, false, [directions]uint64{}
	switch switched := d.bound && len(read) > 0 && (read[0].set == vfStats) != (d.figures[0].set == vfStats); {
	case d.stale:
	case !d.bound && len(read) == 0:
		// Without counters, and so nothing to wait for. One that is out of sight may
		// have some.
		d.missing++
		d.due = d.told || d.missing > patience
	case !d.bound:
		// What it moved before its first sight is nobody's, and what it moved while it
		// was away is among what those then claimed.
		if complete(read, d.figures) {
			d.add(read)
		} else {
			d.figures = append(d.figures[:0], read...)
		}
		d.due, d.first, d.begins, d.bound = true, true, true, true
	case complete(read, d.figures):
		d.add(read)
	default:
		if looked {
			d.missing++
		}
		if !switched && d.missing <= patience {
			break
		}
		// Other counters from now on: they need not begin where the former ended.
		d.due, d.first, d.bound = true, true, len(read) > 0
		if d.bound {
			d.figures = append(d.figures[:0], read...)
		}
	}
	if d.due && d.bound {
		d.missing = 0
	}
	for i := range d.ways {
		d.ways[i].counted = d.bound && slices.ContainsFunc(d.figures, func(f figure) bool { return f.direction == i })
	}
}

// complete says whether all that was read before is read now.
func complete(read, before []figure) bool {
	for _, f := range before {
		if find(read, f) == nil {
			return false
		}
	}
	return true
}

func (d *meter) add(read []figure) {
	d.due = true
	for _, f := range read {
		before := find(d.figures, f)
		switch {
		case before == nil: // another port
			d.first = true
			d.moved[f.direction] += f.value * f.set.unit()
		case f.value < before.value:
			d.moved[f.direction] += f.value * f.set.unit()
		default:
			d.moved[f.direction] += (f.value - before.value) * f.set.unit()
		}
	}
	d.figures = append(d.figures[:0], read...)
}

func find(figures []figure, f figure) *figure {
	for i := range figures {
		if figures[i].same(f) {
			return &figures[i]
		}
	}
	return nil
}
