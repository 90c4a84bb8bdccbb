// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"time"
)

// The bytes that no method counts exactly are split among the owners whose calls are probed in
// windows. The estimate of such an owner is wrong by what its windows happened to see. But the bytes
// of the device are known, and windows show how they are distributed. So of the
// bytes that are left of an interval an owner is credited (a ratio estimator)
//
//	left · estimates of the owner / estimates of all owners
//
// One interval has few windows, so the estimates are those of the last observations, which take 10 s
// or more: of 4, or of 8 or 16 while 4 or 8 are uncertain. They are uncertain if they differ so much
// that more than a tenth of the bytes is expected to be credited to wrong owners: half of the sum of
// the standard errors. Bytes stay unattributed while 16 are uncertain too, and until there are 4 since
// an owner began to send.
//
// Estimates may lack bytes: those that remote sides read or write, those of the kernel, those of
// calls without probes. If the device moved more than the estimates of 16 observations, by a quarter
// or while it has unknown users, only the part that the estimates have is split: then an owner whose
// estimate is uncertain gets nothing. Estimates of bursts may be too high. Where they are more
// than three times what the device moved, its counters lack the traffic, such as loopback: nothing is
// split.
const (
	maxObservations = 16
	minObservations = 4
	observationTime = 10 * time.Second
	maxMissing      = 0.25
	maxSurplus      = 3
	maxMisplaced    = 0.1
)

// observations are the bytes of the last observations, the newest one first.
type observations [maxObservations]float64

func (o *observations) next() {
	copy(o[1:], o[:])
	o[0] = 0
}

// sum returns the sum of the last n observations.
func (o *observations) sum(n int) (sum float64) {
	for _, bytes := range o[:n] {
		sum += bytes
	}
	return sum
}

// split credits the bytes that other methods left of an interval and returns the remainder.
func (l *Ledger) split(w *direction, left uint64) uint64 {
	var sampled []*account
	for _, a := range w.accounts {
		if a.sampled {
			sampled = append(sampled, a)
		}
	}
	if len(sampled) == 0 || w.device.interval.mixed {
		return left
	}
	l.observe(w, sampled, left)
	n := minObservations
	for n <= w.observations && misplaced(sampled, n) > maxMisplaced {
		n *= 2
	}
	if n > w.observations {
		return left
	}
	var recent, all float64
	for _, a := range sampled {
		recent, all = recent+a.observed.sum(n), all+a.observed.sum(maxObservations)
	}
	shown, moved := 1.0, w.observed.sum(maxObservations)
	switch {
	case all > maxSurplus*moved:
		return left
	case moved > (1+maxMissing)*all || w.device.unknownUse || w.device.wasUnknown:
		shown = min(all/moved, 1)
	}
	rest := left
	for _, a := range sampled {
		bytes := min(uint64(float64(left)*shown*a.observed.sum(n)/recent), rest)
		if bytes == 0 || shown < 1 && a.uncertain {
			continue
		}
		to := l.account(a.owner, w, bySplit, false)
		to.credited += bytes
		to.won = l.refresh
		rest -= bytes
	}
	return rest
}

// observe adds an interval to the newest observation, which may begin with it.
func (l *Ledger) observe(w *direction, sampled []*account, left uint64) {
	for _, a := range sampled {
		switch known := a.observed.sum(maxObservations) > 0; {
		case known && !w.device.used(a.owner): // earlier observations are as without it
			for i, n := range a.observed {
				w.observed[i] = max(w.observed[i]-n, 0)
			}
			*a.observed = observations{}
		case !known && a.estimate > 0: // earlier observations are without it
			w.observations = 0
		}
	}
	if w.observations == 0 {
		w.observed = observations{}
		for _, a := range sampled {
			*a.observed = observations{}
		}
	}
	if w.observations == 0 || l.now.Sub(w.observedAt) >= observationTime {
		w.observations, w.observedAt = min(w.observations+1, maxObservations), l.now
		w.observed.next()
		for _, a := range sampled {
			a.observed.next()
		}
	}
	w.observed[0] += float64(left)
	for _, a := range sampled {
		a.observed[0] += float64(a.estimate)
	}
}

// misplaced returns the part of the bytes that is expected to be credited to wrong owners if the split
// uses the last n observations.
func misplaced(sampled []*account, n int) (part float64) {
	var estimates observations
	for _, a := range sampled {
		for i, bytes := range a.observed[:n] {
			estimates[i] += bytes
		}
	}
	whole := estimates.sum(n)
	if whole == 0 {
		return 1
	}
	for _, a := range sampled {
		share, squares := a.observed.sum(n)/whole, 0.0
		for i, bytes := range a.observed[:n] {
			difference := bytes - share*estimates[i]
			squares += difference * difference
		}
		part += math.Sqrt(squares*float64(n)/float64(n-1)) / whole / 2
	}
	return part
}
