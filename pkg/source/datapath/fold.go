// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// fold adds the cumulative counters of verbs contexts to series of cgroups and
// devices. For each context it keeps the last values and the counts that are held back
// until a period of windows ends. It is not safe for concurrent use.
//
// The exact part of a series grows only while all its contexts are probed all the
// time. Otherwise it rests and the sampled part grows: by scaled counts of contexts
// that are probed in windows, and by unscaled counts of the others. So the sum of
// both is the total count. Received bytes come from posts (reads, atomics) and
// from polls (receives): they are exact while both are.
type fold struct {
	contexts map[gen.DatapathContextKey]*contextCounts
	series   map[seriesKey]*series
	late     uint64 // contexts, of all series
	spending
}

// samplings are the samplings of the groups of one file.
type samplings = [budget.Groups]budget.Sampling

// isWindowed reports whether a group is probed in windows.
func isWindowed(w samplings) bool { return w[budget.Post].Windowed || w[budget.Poll].Windowed }

// exact is the sampling of a file that is probed all the time.
var exact = samplings{{Scale: 1, Ratio: 1}, {Scale: 1, Ratio: 1}}

// contextCounts are the values that fold keeps for an existing context.
type contextCounts struct {
	series     seriesKey
	owner      uint64 // the cgroup in whose share of the kernel's map it is
	last, held [counters]uint64
	samplings  samplings
	late       bool
	hits       [budget.Groups]uint64 // the last value
	called     uint64                // CLOCK_MONOTONIC in nanoseconds when hits were seen to rise; 0: never
	unread     uint64                // the last value
	durations  [gen.DatapathCompletedCOMPLETED]*contextDurations
	ahead      [budget.Groups]ahead
}

type contextDurations struct{ last, held gen.DatapathLatency }

// newFold returns an empty fold. limit is that of the budget, 0 for none.
func newFold(limit float64) *fold {
	return &fold{
		contexts: map[gen.DatapathContextKey]*contextCounts{},
		series:   map[seriesKey]*series{},
		spending: newSpending(limit),
	}
}

func (f *fold) contextOf(key gen.DatapathContextKey, stat *gen.DatapathContextStat) *contextCounts {
	id := seriesKey{model.CgroupID(stat.Cgroup), stat.Device}
	c := f.contexts[key]
	if c == nil {
		c = &contextCounts{series: id, owner: stat.Owner, samplings: exact}
		f.contexts[key] = c
		f.seriesOf(id).contexts++
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

// seriesOf returns a series, which may have been forgotten while contexts of it
// exist.
func (f *fold) seriesOf(id seriesKey) *series {
	s := f.series[id]
	if s == nil {
		s = &series{}
		f.series[id] = s
	}
	return s
}

// add adds what a context counted since the last call.
func (f *fold) add(key gen.DatapathContextKey, stat *gen.DatapathContextStat, how samplings) {
	c := f.contextOf(key, stat)
	s := f.seriesOf(c.series)
	for g := range how {
		if c.samplings[g].Windowed && !how[g].Windowed {
			c.flush(s, g)
		}
		s.windowed[g] += toInt[int](how[g].Windowed) - toInt[int](c.samplings[g].Windowed)
	}
	c.samplings = how
	if stat.Hits != c.hits {
		c.hits, c.called = stat.Hits, monotonic()
	}
	var before [budget.Groups]float64
	for g := range how {
		if how[g].Period > 0 {
			before[g] = s.sampled(g)
		}
	}
	for i, n := range flatten(stat) {
		c.addTo(s, i, increase(&c.last[i], n))
	}
	s.unread += increase(&c.unread, stat.Unread)
	for g := range how {
		if how[g].Period > 0 {
			s.confidence[g].observe(s.sampled(g)-before[g], how[g])
			s.pendingCPU[g] += how[g].Weight
			c.ahead[g].joined = 0
		}
	}
	if poll := how[budget.Poll]; poll.Windowed && poll.Scale != 0 {
		c.addDurations(s, false)
	}
}

// endPeriods adds the windows that end now to the confidence, after add for all contexts.
func (f *fold) endPeriods() {
	for _, s := range f.series {
		for g := range s.confidence {
			s.confidence[g].endPeriod()
		}
		s.endPeriods(&s.confidence)
	}
}

// addTo adds n to a counter of the series, or holds it back.
func (c *contextCounts) addTo(s *series, i int, n uint64) {
	how := c.samplings[groupOfCounter(i)]
	held := c.held[i]
	n += held
	c.held[i] = 0
	switch {
	case how.Discard && how.Keep:
		c.held[i] = held
	case how.Discard:
	case how.Scale == 0:
		c.held[i] = n
	case n != 0:
		if how.Period > 0 && how.Weight > 0 {
			s.pending[i] += float64(n) * how.Scale
		}
		s.counts[i].add(n, s.windowed[groupOfCounter(i)] == 0, how.Scale)
		if directionOf(i) == model.Receive {
			s.received.add(n, s.allExact(), how.Scale)
		}
	}
}

// addDurations adds the durations that are held back to the series.
func (c *contextCounts) addDurations(s *series, exact bool) {
	for i, d := range c.durations {
		if d != nil {
			s.durationsOf(i).add(&d.held, exact, c.samplings[budget.Poll].Scale)
			d.held = gen.DatapathLatency{}
		}
	}
}

// addLatency adds the durations of a context after add. how is the sampling of
// polling.
func (f *fold) addLatency(key gen.DatapathLatencyKey, l *gen.DatapathLatency, how budget.Sampling) {
	c := f.contexts[key.Context]
	if c == nil || key.Completed >= uint32(len(c.durations)) {
		return
	}
	d := c.durations[key.Completed]
	if d == nil {
		d = &contextDurations{}
		c.durations[key.Completed] = d
	}
	held := d.held
	d.held.SumNs += increase(&d.last.SumNs, l.SumNs)
	for i, n := range l.Buckets {
		d.held.Buckets[i] += increase(&d.last.Buckets[i], n)
	}
	switch {
	case how.Discard && how.Keep:
		d.held = held
		return
	case how.Scale == 0 && !how.Discard:
		return
	}
	if !how.Discard {
		s := f.seriesOf(c.series)
		s.durationsOf(int(key.Completed)).add(&d.held, s.windowed[budget.Poll] == 0, how.Scale)
	}
	d.held = gen.DatapathLatency{}
}

// flush adds the counts of a group that are held back, when its period ends early. They
// are scaled like the previous period.
func (c *contextCounts) flush(s *series, group int) {
	how := &c.samplings[group]
	how.Scale, how.Discard, how.Period = 1/max(how.Ratio, 1e-6), false, 0
	for i := range c.held {
		if groupOfCounter(i) == group {
			c.addTo(s, i, 0)
		}
	}
	if group == budget.Poll {
		c.addDurations(s, s.windowed[budget.Poll] == 0)
	}
}

// drop removes the counts of a group that are held back, but not errors, which are not expected.
func (c *contextCounts) drop(group int) {
	for i := range c.held[:countErrors] {
		if groupOfCounter(i) == group {
			c.held[i] = 0
		}
	}
}

// split moves the counts of a device to another index. Its contexts count from 0 under the old
// one.
func (f *fold) split(index, to uint32) {
	for id, s := range maps.Clone(f.series) {
		if id.device == index {
			f.series[id] = &series{contexts: s.contexts, windowed: s.windowed}
			s.contexts, s.windowed = 0, [budget.Groups]int{}
			f.series[seriesKey{id.cgroup, to}] = s
		}
	}
}

// endContext removes a context. What it counted stays in the series.
func (f *fold) endContext(key gen.DatapathContextKey) {
	c := f.contexts[key]
	if c == nil {
		return
	}
	s := f.seriesOf(c.series)
	for g := range c.samplings {
		if c.samplings[g].Windowed && s.settle(g, c.ahead[g].cpu) {
			c.drop(g) // part of what was settled
		}
		c.flush(s, g)
	}
	for g, how := range c.samplings {
		s.windowed[g] -= toInt[int](how.Windowed)
	}
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

// forget removes the series of cgroups. A series of which contexts exist starts
// from 0.
func (f *fold) forget(cgroups map[model.CgroupID]bool) {
	for id, s := range f.series {
		switch {
		case !cgroups[id.cgroup]:
		case s.contexts == 0:
			delete(f.series, id)
		default:
			f.series[id] = &series{contexts: s.contexts, windowed: s.windowed}
		}
	}
	for id := range cgroups {
		delete(f.cgroups, id)
	}
}
