// SPDX-License-Identifier: Apache-2.0

package traffic

import "github.com/accelscope/accelscope/pkg/identity"

// The bytes that no method counts exactly are split among the owners whose calls are counted in surveys only, in
// proportion to the bytes per second of their last survey. An interval is not split if an unknown user, or an owner
// with neither a survey nor an exact count, could have moved bytes.
//
// A survey lacks the bytes that remote sides read or write, the kernel's bytes, and headers. So it is compared with
// what the device moved meanwhile. If the device moved a quarter more, only the part of the surveyed owners is split.
// If it moved less than a third, its counters lack the traffic, such as loopback, and nothing is split.
const (
	maxOther   = 0.25
	maxSurplus = 3
)

// split credits the bytes that exact methods left and returns the remainder.
func (l *Ledger) split(w *direction, left uint64) uint64 {
	d := w.device
	if d.interval.mixed || !w.comparable || !l.accounted(d) {
		return left
	}
	rates, sum := map[identity.OwnerID]float64{}, 0.0
	var owners []identity.OwnerID
	for j := range d.surveys {
		s := &d.surveys[j]
		if !d.used(s.owner) || l.accounts.live(d, s.owner, byQPCounter) {
			continue
		}
		if _, ok := rates[s.owner]; !ok {
			owners = append(owners, s.owner)
		}
		rates[s.owner] += s.rates[w.index]
		sum += s.rates[w.index]
	}
	if sum == 0 {
		return left
	}
	part := float64(left) / sum
	if w.other > maxOther*sum {
		part = float64(left) / (sum + w.other)
	}
	rest := left
	for _, owner := range owners {
		bytes := min(uint64(part*rates[owner]), rest)
		if bytes == 0 {
			continue
		}
		a := l.account(owner, w, bySurvey)
		a.credited += bytes
		a.won = l.refresh
		rest -= bytes
	}
	return rest
}

// accounted reports whether every user that could have moved bytes in the interval has a survey or an exact count.
func (l *Ledger) accounted(d *device) bool {
	if d.unknownUse || d.wasUnknown || d.lapsed {
		return false
	}
	for id := range d.users {
		switch {
		case !d.used(id):
		case d.covers[id] == unsurveyed:
			return false
		case d.covers[id] != allCounted && !d.surveyed(id) && !l.accounts.live(d, id, byUprobe) && !l.accounts.live(d, id, byQPCounter):
			return false
		}
	}
	return true
}
