// SPDX-License-Identifier: Apache-2.0

package traffic

// maxMissedRefreshes is the number of refreshes after which the missing counters of a device,
// or the missing rows of a method, count as gone.
const maxMissedRefreshes = 10

type state struct {
	counted bool // the device has counters
	missed  int  // consecutive refreshes in which some counters are missing: the device is waiting
}

type reading int

const (
	readNothing reading = iota // no counters
	readAll                    // all previous counters
	readPart                   // some previous counters are missing
	readOther                  // switch between VF statistics and port counters
	readStale                  // VF statistics that did not change
)

// interval describes the time since the last interval ended.
type interval struct {
	ends bool // the bytes moved in it are credited
	// mixed: the interval includes bytes of earlier intervals, so it has no exclusive owner.
	mixed bool
	// begins: the device had no counters before.
	begins bool
	// before: the bytes were moved before the first reading of all devices.
	before bool
	// untallied: the device moved more bytes than its counters show: a counter was reset, or unreadable at the end.
	untallied bool
}

// next returns the state of a device after a reading. listed reports that the device is listed,
// collected that the list of devices was read.
//
//	state      reading                     next state  interval
//	uncounted  nothing, listed             uncounted   ends: reports are credited as they are
//	uncounted  nothing, not listed         uncounted   open; ends after 10 refreshes
//	uncounted  counters                    counted     ends: all bytes are from before
//	counted    all, also after waiting     counted     ends
//	counted    stale VF statistics         counted     open
//	counted    part, at most 10 times      waiting     open; the next complete reading makes up for it
//	counted    part, more often, or other  counted     ends without bytes; uncounted if nothing was read
func next(s state, r reading, listed, collected bool) (state, interval) {
	switch {
	case r == readStale:
		return s, interval{}
	case !s.counted && r == readNothing:
		s.missed++
		return s, interval{ends: listed || s.missed > maxMissedRefreshes}
	case !s.counted:
		return state{counted: true}, interval{ends: true, mixed: true, begins: true}
	case r == readAll:
		return state{counted: true}, interval{ends: true}
	}
	if collected {
		s.missed++
	}
	switch {
	case r != readOther && s.missed <= maxMissedRefreshes:
		return s, interval{}
	case r == readNothing:
		return state{missed: s.missed}, interval{ends: true, mixed: true}
	}
	return state{counted: true}, interval{ends: true, mixed: true}
}
