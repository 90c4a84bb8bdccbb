// SPDX-License-Identifier: Apache-2.0

package traffic

// maxMissedRefreshes is for how many refreshes the counters of a device may be missing, or
// the rows of a method, before they count as gone.
const maxMissedRefreshes = 10

// state is what is known of a device's counters.
type state struct {
	counted bool // it has counters
	missed  int  // refreshes in a row without all of them: it is waiting
}

// reading is what was read of a device's counters in a refresh.
type reading int

const (
	readNothing reading = iota // no counters
	readAll                    // all that were read before
	readPart                   // some are missing
	readOther                  // VF statistics instead of port counters, or back
	readStale                  // VF statistics that were not read since
)

// interval is what becomes of the time since the last interval ended.
type interval struct {
	ends bool // what was moved in it is credited
	// mixed: not all that was moved is of this interval, so it has no exclusive owner.
	mixed bool
	// begins: the device had no counters before.
	begins bool
}

// next returns the state of a device after a reading. listed says that the device is listed,
// looked that it would be if it were there.
//
//	state      reading                     next state  interval
//	uncounted  nothing, listed             uncounted   ends: reports are credited as they are
//	uncounted  nothing, not listed         uncounted   open; ends after 10 refreshes
//	uncounted  counters                    counted     ends: all of it was before
//	counted    all, also after waiting     counted     ends
//	counted    stale VF statistics         counted     open
//	counted    part, at most 10 times      waiting     open; the next complete reading makes up for it
//	counted    part, more often, or other  counted     ends without bytes; uncounted if nothing was read
func next(s state, r reading, listed, looked bool) (state, interval) {
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
	if looked {
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
