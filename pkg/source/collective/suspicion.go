// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// window is the time in which launches are added up. A rate is the launches of rateWindows.
	window      = 30 * time.Second
	windows     = 120
	rateWindows = 10
	// enoughWindows is how many windows with launches a communicator needs before it is judged.
	enoughWindows = 3 * rateWindows
	// fallen is the share of the median below which a rate is suspicious.
	fallen = 0.9
	// longer is how many times longer than before a communicator stands.
	longer = 2
	// restWindows are between two suspicions against a communicator.
	restWindows   = 20
	looksOfWindow = 3
)

// A watcher finds communicators that launch less than before: it suspects their cgroups, so that what costs too much for healthy jobs can
// be measured for a while.
//
// It keeps, for each communicator with a rank on this node, the launches of its busiest rank in each half minute of the last hour: 2 KiB,
// for as many communicators as are listed, at most. A rank that leaves, as in a shrink, takes no launches away. Half minutes without
// launches, if they are not single, are a pause: they and their neighbors are no part of a rate. After 15 minutes with launches, a
// communicator is suspicious
//   - if its rate in five minutes is less than 90 % of the median of the last hour, and less than the lowest rate by as much as the lowest
//     is less than the median. A job that loads data, a server, or long steps that do not fit the windows have had low rates before.
//   - if its processes launch nothing in any communicator, for StallAfter and twice as long as they did in the last hour.
//
// It is suspected once until it recovers, and not again within ten minutes. So the end of a job causes one suspicion if its processes stay
// without destroying the communicator; a job that stays slow causes one. A communicator that replaces another, and all communicators after
// a restart of the sensor or of their probes, begin without history. Nothing is known while processes launch graphs.
//
// Not found: falls of jobs that pause for half of the time, or whose steps are so long that few are in five minutes, and falls soon after
// another suspicion.
type watcher struct {
	window time.Duration
	after  time.Duration
	looked uint64 // CLOCK_MONOTONIC
	of     map[watchKey]*watched
}

// watchKey identifies a communicator: by its Key, or by its number if it is late.
type watchKey struct {
	key    string
	number uint64
}

// look is a communicator at one time: its ranks on this node. Times are of CLOCK_MONOTONIC.
type look struct {
	cgroups  []model.CgroupID
	launches map[uint64]uint64 // of its ranks, by number
	last     uint64            // the last launch of its processes in any communicator; 0: none
	probed   uint64            // since when all functions are probed
	unprobed bool              // some functions are not
	graphs   bool              // a process launches graphs
}

// watched is what is kept of a communicator.
type watched struct {
	cgroup    model.CgroupID // of a rank
	since     uint64         // the first look
	launches  map[uint64]uint64
	last      uint64
	number    uint64 // of the present window
	history   [windows]launched
	slow      bool
	suspected bool   // and it has not recovered
	at        uint64 // when it was last suspected; 0: never
}

// launched is what a communicator launched in a window: how often, and the longest time without a launch that ended in it.
type launched struct {
	launches uint64
	pause    time.Duration
}

func newWatcher(after time.Duration) watcher {
	return watcher{window: window, after: after, of: map[watchKey]*watched{}}
}

// watch looks at the communicators, if a look is due.
func (s *Source) watch() {
	if s.suspect == nil {
		return
	}
	now, err := monotonic()
	if err != nil || now.monotonic-s.watcher.looked < uint64(s.watcher.window/looksOfWindow) {
		return
	}
	s.mu.Lock()
	err = s.update()
	looks := s.members.looks(s.probes.whole)
	s.mu.Unlock()
	if err != nil {
		return // Read reports it
	}
	if cgroups := s.watcher.look(now.monotonic, looks); len(cgroups) > 0 {
		s.suspect(cgroups)
	}
}

// looks returns the communicators with ranks that have not ended. whole is since when all functions of a process are probed; 0: some are
// not.
func (m *members) looks(whole map[int]uint64) map[watchKey]*look {
	last := map[int]uint64{}
	for _, of := range m.of {
		last[of.pid] = max(last[of.pid], of.last)
	}
	looks := map[watchKey]*look{}
	for number, of := range m.of {
		since, known := whole[of.pid]
		if of.ended != 0 || !known {
			continue
		}
		key := watchKey{key: of.Key}
		if of.late {
			key.number = number
		}
		l := looks[key]
		if l == nil {
			l = &look{launches: map[uint64]uint64{}}
			looks[key] = l
		}
		if !slices.Contains(l.cgroups, of.Cgroup) {
			l.cgroups = append(l.cgroups, of.Cgroup)
		}
		for i := range of.launches {
			l.launches[number] += of.launches[i].Count
		}
		l.last = max(l.last, last[of.pid])
		l.probed, l.unprobed = max(l.probed, since), l.unprobed || since == 0
		l.graphs = l.graphs || of.Process.LastGraph.After(of.Process.LastLaunch)
	}
	return looks
}

// look notes what communicators have launched, and returns the cgroups of communicators that are suspected now.
func (w *watcher) look(now uint64, looks map[watchKey]*look) (cgroups []model.CgroupID) {
	w.looked = now
	maps.DeleteFunc(w.of, func(key watchKey, of *watched) bool {
		l := looks[key]
		return l == nil || l.unprobed || l.probed > of.since
	})
	for key, l := range looks {
		of := w.of[key]
		if of == nil && !l.unprobed && w.hasRoom(l.cgroups[0]) {
			w.of[key] = &watched{cgroup: l.cgroups[0], since: now, launches: l.launches, last: l.last}
		}
		if of == nil {
			continue
		}
		of.note(now, l, w.window)
		if !w.suspects(of, now, l.graphs) {
			continue
		}
		for _, id := range l.cgroups {
			if !slices.Contains(cgroups, id) {
				cgroups = append(cgroups, id)
			}
		}
	}
	return cgroups
}

// hasRoom reports whether another communicator of a cgroup is watched.
func (w *watcher) hasRoom(cgroup model.CgroupID) bool {
	same := 0
	for _, of := range w.of {
		if of.cgroup == cgroup {
			same++
		}
	}
	return len(w.of) < maxListed && same < maxOfWorkload
}

// suspects reports whether a communicator becomes suspected now.
func (w *watcher) suspects(of *watched, now uint64, graphs bool) bool {
	if graphs || !of.slow && !of.stands(now, w.after) {
		of.suspected = false
		return false
	}
	if of.suspected || of.at != 0 && now-of.at < uint64(restWindows*w.window) {
		return false
	}
	of.suspected, of.at = true, now
	return true
}

// note adds what the busiest rank launched since the last look.
func (of *watched) note(now uint64, l *look, span time.Duration) {
	of.turn((now - of.since) / uint64(span))
	most := uint64(0)
	for number, n := range l.launches {
		if before, known := of.launches[number]; known {
			most = max(most, n-min(before, n))
		}
	}
	present := &of.history[of.number%windows]
	present.launches += most
	if of.last != 0 && l.last > of.last {
		present.pause = max(present.pause, time.Duration(l.last-of.last))
	}
	of.launches, of.last = l.launches, max(of.last, l.last)
}

// turn begins a window.
func (of *watched) turn(number uint64) {
	if number == of.number {
		return
	}
	for n := number - min(number-of.number, windows) + 1; n <= number; n++ {
		of.history[n%windows] = launched{}
	}
	of.number = number
	of.slow = isSlow(of.active())
}

// active returns the launches of the windows of the last hour without the windows of pauses, the oldest first; nil if most are of pauses.
// An empty last window may begin a pause.
func (of *watched) active() (active []uint64) {
	var all []uint64
	for n := of.number - min(of.number, windows-1); n < of.number; n++ {
		all = append(all, of.history[n%windows].launches)
	}
	empty := func(i int) bool { return i < 0 || i >= len(all) || all[i] == 0 }
	pauses := func(i int) bool { return empty(i) && (empty(i-1) || empty(i+1)) }
	for i, n := range all {
		if first, last := i == 0, i == len(all)-1; !pauses(i) && (first || !pauses(i-1)) && (last || !pauses(i+1)) {
			active = append(active, n)
		}
	}
	if len(active) < len(all)/2 {
		return nil
	}
	return active
}

// isSlow reports whether the last rate is suspicious. Rates that share windows with it are no history.
func isSlow(active []uint64) bool {
	if len(active) < enoughWindows {
		return false
	}
	var rates []float64
	for end := rateWindows; end <= len(active); end++ {
		sum := uint64(0)
		for _, n := range active[end-rateWindows : end] {
			sum += n
		}
		rates = append(rates, float64(sum))
	}
	last, before := rates[len(rates)-1], rates[:len(rates)-rateWindows]
	slices.Sort(before)
	lowest, median := before[0], before[len(before)/2]
	return last < fallen*median && last < lowest-(median-lowest)
}

// stands reports whether the processes of a communicator have launched nothing for suspiciously long.
func (of *watched) stands(now uint64, after time.Duration) bool {
	active := 0
	for i := range of.history {
		after = max(after, longer*of.history[i].pause)
		if of.history[i].launches > 0 {
			active++
		}
	}
	return active >= enoughWindows && of.last != 0 && now > of.last && time.Duration(now-of.last) >= after
}
