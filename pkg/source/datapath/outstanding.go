// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// DefaultStallAfter is the default of Options.StallAfter.
const DefaultStallAfter = 10 * time.Second

// openContext is what is known of the queue pairs of an open, counted context.
type openContext struct {
	series seriesKey
	// since is the time since which all calls are probed (CLOCK_MONOTONIC, ns), 0 if not all are.
	since  uint64
	polled bool // some call polled, with or without a completion
	// gap is why the work requests of some queue pairs are unknown, empty if all are known.
	gap model.Gap
}

// gapOf returns why the outstanding work requests of a queue pair are unknown, empty if they are known.
//
// Without a completion of the queue pair, its process may poll by means that are not probed. So there must be a poll of the context, and
// no other functions to poll the completion queue.
func (c *openContext) gapOf(o *gen.DatapathOutstanding) model.Gap {
	switch {
	case c.since == 0 || o.SinceNs < c.since:
		return cmp.Or(c.gap, model.GapLate)
	case o.InStep == 0:
		return model.GapUnmatched
	case o.OldestNs != 0 && o.CompletedNs == 0 && (o.Plain == 0 || !c.polled):
		return model.GapUnpolled
	}
	return ""
}

// receiveGapOf returns why the waits of a queue pair for receives are unknown, empty if they are known.
func (c *openContext) receiveGapOf(o *gen.DatapathOutstanding) model.Gap {
	switch {
	case c.since == 0 || o.ReceivesNs < c.since:
		return cmp.Or(c.gap, model.GapLate)
	case o.Ahead != 0:
		return model.GapPreposted
	}
	return ""
}

// fillOutstanding adds the outstanding work requests of the contexts that drain found. The caller holds mu.
func (m *meter) fillOutstanding(snap *model.Snapshot) error {
	rows := map[seriesKey]*model.Outstanding{}
	for _, c := range m.open {
		row := rows[c.series]
		if row == nil {
			row = &model.Outstanding{Cgroup: c.series.cgroup, Device: m.names.of(c.series.device)}
			rows[c.series] = row
		}
		row.Gaps = addGap(row.Gaps, c.gap)
		row.ReceiveGaps = addGap(row.ReceiveGaps, c.gap)
	}
	if m.kernel.refused[gen.DatapathProgListOutstanding] != nil {
		for _, row := range rows {
			row.Gaps = addGap(row.Gaps, model.GapRefused)
			row.ReceiveGaps = addGap(row.ReceiveGaps, model.GapRefused)
		}
		snap.Stalled, snap.QueuePairWaits = nil, nil
		snap.Outstanding = appendNamed(snap.Outstanding, rows)
		return nil
	}
	now := monotonic()
	err := m.kernel.outstanding(func(o *gen.DatapathOutstanding) {
		if c, ok := m.open[gen.DatapathContextKey{Context: o.Key.Context, Tgid: o.Key.Tgid}]; ok {
			m.addSends(snap, rows[c.series], &c, o, now)
			addReceives(snap, rows[c.series], &c, o, now)
		}
	})
	if err != nil {
		return err
	}
	snap.Outstanding = appendNamed(snap.Outstanding, rows)
	return nil
}

// addSends adds the outstanding sends of a queue pair to the row of its context.
func (m *meter) addSends(snap *model.Snapshot, row *model.Outstanding, c *openContext, o *gen.DatapathOutstanding, now uint64) {
	gap := c.gapOf(o)
	row.Gaps = addGap(row.Gaps, gap)
	if gap != "" || o.OldestNs == 0 {
		return
	}
	row.Oldest = max(row.Oldest, age(now, o.OldestNs))
	if silent := age(now, max(o.OldestNs, o.CompletedNs)); silent >= m.opts.StallAfter {
		row.Stalled++
		snap.Stalled = append(snap.Stalled,
			model.StalledQueuePair{Cgroup: row.Cgroup, Device: row.Device, QPN: o.Key.Qpn, For: silent})
	}
}

// addReceives adds the waits for receives of a queue pair.
func addReceives(snap *model.Snapshot, row *model.Outstanding, c *openContext, o *gen.DatapathOutstanding, now uint64) {
	gap := c.receiveGapOf(o)
	row.ReceiveGaps = addGap(row.ReceiveGaps, gap)
	if gap != "" {
		return
	}
	var waiting time.Duration
	if o.WaitingNs != 0 {
		waiting = age(now, o.WaitingNs)
	}
	row.OldestReceive = max(row.OldestReceive, waiting)
	if waited := time.Duration(o.WaitedNs); waited+waiting > 0 {
		snap.QueuePairWaits = append(snap.QueuePairWaits, model.QueuePairWait{
			Cgroup: row.Cgroup, Device: row.Device, QPN: o.Key.Qpn, Waited: waited, Waiting: waiting,
		})
	}
}

// appendNamed appends the rows of devices with a name.
func appendNamed(out []model.Outstanding, rows map[seriesKey]*model.Outstanding) []model.Outstanding {
	for _, id := range slices.SortedFunc(maps.Keys(rows), compareSeries) {
		if row := rows[id]; row.Device != "" {
			slices.Sort(row.Gaps)
			slices.Sort(row.ReceiveGaps)
			out = append(out, *row)
		}
	}
	return out
}

// addGap adds a gap, if there is one and it is not among the others.
func addGap(gaps []model.Gap, gap model.Gap) []model.Gap {
	if gap == "" || slices.Contains(gaps, gap) {
		return gaps
	}
	return append(gaps, gap)
}

// age returns the time since at, in ns, or 0 if at is later.
func age(now, at uint64) time.Duration { return time.Duration(now - min(at, now)) }
