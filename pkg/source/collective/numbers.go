// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// numbers are the numbers and times of a member's launches. They compare with other ranks' numbers only if every launch was seen.
type numbers struct {
	counts rank
	known  bool   // counts were read
	made   uint64 // when the communicator was made, CLOCK_MONOTONIC
	whole  bool   // all functions were probed when it was made
	missed bool   // functions were not probed since then
	// comparable: the numbers compare with numbers on other nodes. paired: the numbers of another rank on this node compare, too.
	comparable, paired bool
}

// number takes the launches of a rank.
func (m *members) number(communicator uint64, r *rank) {
	if of := m.of[communicator]; of != nil {
		of.counts, of.known = *r, true
	}
}

// checkProbes notes whether launches may have been missed. whole is since when all functions are probed that the process may call; 0: some
// are not.
func (n *numbers) checkProbes(whole uint64) {
	if whole == 0 || n.made < whole {
		n.missed = true
	} else {
		n.whole = true
	}
}

// compare decides which numbers compare. A second process with the same rank has passed the id of another communicator.
func (m *members) compare(whole map[int]uint64) {
	byKey := map[string]map[string][]*member{}
	for _, of := range m.of {
		if of.late {
			continue
		}
		if since, known := whole[of.pid]; known {
			of.checkProbes(since)
		}
		if byKey[of.Key] == nil {
			byKey[of.Key] = map[string][]*member{}
		}
		byKey[of.Key][of.Rank] = append(byKey[of.Key][of.Rank], of)
	}
	for _, byRank := range byKey {
		paired := len(byRank) > 1
		for _, same := range byRank {
			for _, of := range same {
				of.comparable = len(same) == 1 && of.known && of.whole && !of.missed && !m.lost[of.Cgroup]
				paired = paired && of.comparable
			}
		}
		for _, same := range byRank {
			for _, of := range same {
				of.paired = paired
			}
		}
	}
}

// setNumbers sets what is listed of the numbers and times.
func (of *member) setNumbers(now moment) {
	of.Late, of.Numbered, of.Launched, of.Kept = model.Optional{}, of.comparable, 0, nil
	if of.paired {
		of.Late = model.Some(time.Duration(of.counts.Late).Seconds())
	}
	if of.comparable {
		of.Launched, of.Kept = of.counts.Launched, kept(&of.counts, now)
	}
}

const (
	keptZeros = uint64(gen.CollectiveKeptLaunchesZEROS)
	keptTimes = uint64(gen.CollectiveKeptLaunchesKEPT)
	// stampTurns are the bits of a time that say which launch it is of.
	stampTurns = 0xff
)

// kept returns the times of a rank that the program keeps, by number. A time that the program is replacing is left out.
func kept(r *rank, now moment) (all []model.KeptLaunch) {
	for zeros := range keptZeros {
		multiples := r.Launched >> zeros
		if multiples == 0 {
			break
		}
		last := (multiples - 1) / 2 // the number (2*last+1)<<zeros
		for i := range min(keptTimes, last+1) {
			n := last - i
			at := r.Times[zeros*keptTimes+n%keptTimes]
			if at != 0 && at&stampTurns == n/keptTimes&stampTurns {
				all = append(all, model.KeptLaunch{Number: (2*n + 1) << zeros, Time: now.at(at &^ stampTurns)})
			}
		}
	}
	slices.SortFunc(all, func(a, b model.KeptLaunch) int { return cmp.Compare(a.Number, b.Number) })
	return all
}

// clock returns the state of the node's clock; nil if the sensor may not ask for it.
func clock() *model.Clock {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return nil
	}
	return clockOf(state, &t)
}

// timeError is the state of a clock that is not synchronized, TIME_ERROR in linux/timex.h.
const timeError = 5

// clockOf reads the answer of adjtimex(2), whose errors are in microseconds.
func clockOf(state int, t *unix.Timex) *model.Clock {
	return &model.Clock{
		Synchronized:   state != timeError && t.Status&unix.STA_UNSYNC == 0,
		EstimatedError: time.Duration(t.Esterror) * time.Microsecond, MaximumError: time.Duration(t.Maxerror) * time.Microsecond,
	}
}
