// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// fold adds the cumulative counters of verbs contexts to series of cgroups and devices. It keeps the last values of each context. It is
// not safe for concurrent use.
//
// A series grows only while the calls of all its contexts are counted all the time: otherwise the counts of some contexts would be taken
// for the whole. Received bytes come from posts (reads, atomics) and from polls (receives), so they grow while both are counted. Waits for
// receives also grow by what contexts wait in surveys.
type fold struct {
	contexts map[gen.DatapathContextKey]*contextCounts
	series   map[seriesKey]*series
	late     uint64 // contexts, of all series
	spending
}

// contextCounts are the values that fold keeps for an existing context.
type contextCounts struct {
	series    seriesKey
	owner     uint64 // the cgroup in whose share of the kernel's map it is
	last      [counters]uint64
	place     place
	late      bool
	hits      [groups]uint64 // the last value
	called    uint64         // CLOCK_MONOTONIC in nanoseconds when hits were seen to rise; 0: never
	unread    uint64         // the last value
	lost      uint64         // the last value
	waited    uint64         // the last value
	durations [gen.DatapathCompletedCOMPLETED]*gen.DatapathLatency
}

// newFold returns an empty fold. limit is the share of a process's CPU time that probes may take, 0 for no limit. interval is the time
// between surveys.
func newFold(limit float64, interval time.Duration) *fold {
	return &fold{
		contexts: map[gen.DatapathContextKey]*contextCounts{},
		series:   map[seriesKey]*series{},
		spending: newSpending(limit, interval),
	}
}

func (f *fold) contextOf(key gen.DatapathContextKey, stat *gen.DatapathContextStat) *contextCounts {
	id := seriesKey{model.CgroupID(stat.Cgroup), stat.Device}
	c := f.contexts[key]
	if c == nil {
		c = &contextCounts{series: id, owner: stat.Owner}
		f.contexts[key] = c
		s := f.seriesOf(id)
		s.contexts++
		s.enter(c.place)
	}
	return c
}

// markLate counts a context whose first operations are not counted, once.
func (f *fold) markLate(key gen.DatapathContextKey) {
	c := f.contexts[key]
	if c == nil || c.late {
		return
	}
	c.late = true
	f.seriesOf(c.series).late++
	f.late++
}

// seriesOf returns a series. A series may be forgotten while its contexts exist.
func (f *fold) seriesOf(id seriesKey) *series {
	s := f.series[id]
	if s == nil {
		s = &series{}
		f.series[id] = s
	}
	return s
}

// add adds what a context counted since the last call.
func (f *fold) add(key gen.DatapathContextKey, stat *gen.DatapathContextStat, at place) {
	c := f.contextOf(key, stat)
	s := f.seriesOf(c.series)
	s.leave(c.place)
	s.enter(at)
	c.place = at
	if stat.Hits != c.hits {
		c.hits, c.called = stat.Hits, monotonic()
	}
	w := s.windowOf(at)
	for i, n := range flatten(stat) {
		s.add(i, increase(&c.last[i], n), w)
	}
	s.unread += increase(&c.unread, stat.Unread)
	s.lost = s.lost || increase(&c.lost, stat.Lost) > 0
	if waited := increase(&c.waited, stat.WaitedNs); at.surveyed || s.resting == [groups]int{} {
		s.waited += waited
	}
}

// addLatency adds the durations of a context after add. While polls are limited, durations are dropped: a survey has few.
func (f *fold) addLatency(key gen.DatapathLatencyKey, l *gen.DatapathLatency) {
	c := f.contexts[key.Context]
	if c == nil || key.Completed >= uint32(len(c.durations)) {
		return
	}
	if c.durations[key.Completed] == nil {
		c.durations[key.Completed] = &gen.DatapathLatency{}
	}
	d := &durations{} // dropped
	if s := f.seriesOf(c.series); s.resting[polls] == 0 {
		d = s.durationsOf(int(key.Completed))
	}
	d.add(c.durations[key.Completed], l)
}

// endSurvey ends the survey of a file.
func (f *fold) endSurvey(file locate.FileID, v *survey) {
	for _, s := range f.series {
		if w := s.surveys[file]; w != nil && w.running {
			result := w.moved
			if *w = (window{}); v.broken {
				continue
			}
			w.result = result
			w.begun, w.ended = v.begun, v.ended
		}
	}
}

// split moves the counts of a device to another index. The contexts of the old index count from 0.
func (f *fold) split(index, to uint32) {
	for id, s := range maps.Clone(f.series) {
		if id.device == index {
			f.series[id] = s.successor()
			s.contexts, s.resting, s.surveyed, s.files, s.surveys = 0, [groups]int{}, 0, nil, nil
			f.series[seriesKey{id.cgroup, to}] = s
		}
	}
}

// endContext removes a context. Its counts stay in the series.
func (f *fold) endContext(key gen.DatapathContextKey) {
	c := f.contexts[key]
	if c == nil {
		return
	}
	s := f.seriesOf(c.series)
	s.leave(c.place)
	s.contexts--
	delete(f.contexts, key)
}

// endProcesses removes the contexts of processes after their last add.
func (f *fold) endProcesses(ended func(tgid uint32) bool) {
	for key := range f.contexts {
		if ended(key.Tgid) {
			f.endContext(key)
		}
	}
	maps.DeleteFunc(f.processes, func(pid int, _ *processSpending) bool { return ended(uint32(pid)) })
}

// endAll removes all contexts, before the kernel's maps are closed.
func (f *fold) endAll() {
	for key := range f.contexts {
		f.endContext(key)
	}
	clear(f.processes)
}

// forget removes the series of cgroups. A series with existing contexts starts from 0.
func (f *fold) forget(cgroups map[model.CgroupID]bool) {
	for id, s := range f.series {
		switch {
		case !cgroups[id.cgroup]:
		case s.contexts == 0:
			delete(f.series, id)
		default:
			f.series[id] = s.successor()
		}
	}
	for id := range cgroups {
		delete(f.cgroups, id)
	}
}
