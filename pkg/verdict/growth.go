// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
)

// slots is the number of parts in which a window is counted: a sum covers 7 to 8 eighths of the window.
const slots = 8

// history is the growth of a counter within the last window.
type history struct {
	last  uint64
	slot  int64 // number of the current part, since growth.start
	grown [slots]uint64
	round uint64 // the last round with this counter
}

// advance moves to the part of a moment.
func (h *history) advance(since, window time.Duration) {
	now := int64(since / (window / slots))
	if now-h.slot >= slots {
		h.grown = [slots]uint64{}
		h.slot = now
	}
	for h.slot < now {
		h.slot++
		h.grown[h.slot%slots] = 0
	}
}

// add adds the growth since the last value. A counter that fell was reset.
func (h *history) add(value uint64) {
	if value < h.last {
		h.last = 0
	}
	h.grown[h.slot%slots] += value - h.last
	h.last = value
}

func (h *history) sum() (n uint64) {
	for _, g := range h.grown {
		n += g
	}
	return n
}

type counterKey struct {
	condition *Condition
	number    int // number among the counters of the condition
	device    string
	port      int
	detail    string
	owner     ownerKey
}

// growth keeps the growth of counters over the refreshes.
type growth struct {
	histories          map[counterKey]*history
	number             uint64    // number of the refresh
	start              time.Time // of the first refresh; times are compared by the monotonic clock, which nobody sets
	at, before         time.Time // time of the refresh, and of the previous refresh
	devices, workloads room      // of the refresh
	omitted            int       // counters without room in the refresh
}

func (g *growth) begin(at time.Time) {
	if g.histories == nil {
		g.histories = map[counterKey]*history{}
		g.start = at
	}
	g.number++
	g.before, g.at = g.at, at
	g.devices = room{all: maxCounters}
	g.workloads = room{perOwner: 2 * maxPerOwner, perNamespace: 4 * maxPerNamespace, all: maxCounters / 4}
	g.omitted = 0
}

// history returns the history of a counter, or nil if there is no room for it.
func (g *growth) history(key counterKey, o *identity.Owner) (h *history, known bool) {
	room := &g.devices
	if o != nil {
		key.owner, room = ownerKey{o.Workload, o.ContainerID}, &g.workloads
	}
	h = g.histories[key]
	if (h == nil || h.round != g.number) && !room.take(o) {
		delete(g.histories, key)
		g.omitted++
		return nil, false
	}
	known = h != nil
	if !known {
		h = &history{}
		g.histories[key] = h
	}
	h.advance(g.at.Sub(g.start), key.condition.Window)
	h.round = g.number
	return h, known
}

// grown returns how much a counter of a device has grown in the window of its condition. Its first value does not count
// as growth.
func (g *growth) grown(key counterKey, value uint64) uint64 {
	h, known := g.history(key, nil)
	if h == nil {
		return 0
	}
	if !known {
		h.last = value
	}
	h.add(value)
	return h.sum()
}

// counted returns the growth of a counter that the sensor itself counts, since its start: the first value counts as
// growth.
func (g *growth) counted(key counterKey, value uint64, o *identity.Owner) uint64 {
	h, _ := g.history(key, o)
	if h == nil {
		return 0
	}
	h.add(value)
	return h.sum()
}

// held returns how long a state of a device lasted in the window of its condition, counted by the refreshes that found
// it. Of the time between two refreshes, at most one slot counts.
func (g *growth) held(key counterKey, holds bool) time.Duration {
	h, _ := g.history(key, nil)
	if h == nil {
		return 0
	}
	if between := g.at.Sub(g.before); holds && !g.before.IsZero() && between > 0 {
		h.add(h.last + uint64(min(between, key.condition.Window/slots)))
	}
	return time.Duration(h.sum())
}

// perSecond returns the mean rate of a growth in a window. It divides by the whole window, also if the sensor started
// later, so that the rate of a short time does not pass for the rate of the window.
func perSecond(growth uint64, window time.Duration) float64 {
	return float64(growth) / window.Seconds()
}

// end drops the counters that the refresh did not have.
func (g *growth) end() {
	for key, one := range g.histories {
		if one.round != g.number {
			delete(g.histories, key)
		}
	}
}
