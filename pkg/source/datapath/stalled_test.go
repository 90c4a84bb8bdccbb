// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// row returns the only row of outstanding work requests.
func (s *testSource) row(t testing.TB) (row model.Outstanding, stalled []model.StalledQueuePair) {
	t.Helper()
	snap := s.snapshot(t)
	if len(snap.Outstanding) != 1 || snap.Outstanding[0].Cgroup != 5 || snap.Outstanding[0].Device != "fake0" {
		t.Fatalf("%+v, want a row of cgroup 5 and fake0", snap.Outstanding)
	}
	return snap.Outstanding[0], snap.Stalled
}

// TestStalled: a queue pair without completions is stalled after a while, one with old work requests that complete is not. FAKE
// provider.
func TestStalled(t *testing.T) {
	const stallAfter = 500 * time.Millisecond
	path, sites := buildFake(t)
	s := startSource(t, 0, path, sites)
	s.prober.kernel.needs(t, gen.DatapathProgListOutstanding)
	s.opts.StallAfter = stallAfter
	if snap := s.snapshot(t); snap.Outstanding == nil || len(snap.Outstanding) != 0 {
		t.Errorf("without a context: %+v", snap.Outstanding)
	}
	f := startFake(t, path)
	e := event{key: f.key, cgroup: 5, device: 3, qp: f.qp}
	e.key = s.prober.kernel.add(t, e, true)
	if row, _ := s.row(t); !slices.Equal(row.Gaps, []model.Gap{model.GapLate}) {
		t.Errorf("before it is probed: %+v", row)
	}
	s.loop.events <- e
	eventually(t, "never traced", func() bool { row, _ := s.row(t); return len(row.Gaps) == 0 })
	f.do("same", 1)
	if row, _ := s.row(t); !slices.Equal(row.Gaps, []model.Gap{model.GapUnmatched}) {
		t.Errorf("work requests that cannot be matched: %+v", row)
	}
	f.do("distinct", 20)
	f.do("recv", 10)
	time.Sleep(stallAfter)
	if row, stalled := s.row(t); row.Oldest != 0 || row.Stalled != 0 || len(stalled) != 0 || len(row.Gaps) != 0 {
		t.Errorf("idle, with posted receives: %+v %+v", row, stalled)
	}

	const depth, rounds = 20, 40
	f.do("silent", depth)
	for i := range rounds {
		time.Sleep(2 * stallAfter / depth)
		answered := time.Now()
		f.do("answer", i%depth)
		f.do("silent-one", i%depth)
		row, stalled := s.row(t)
		// The machine may stop for a moment.
		if row.Stalled != 0 && time.Since(answered) < stallAfter || row.Oldest == 0 {
			t.Fatalf("moving: %+v %+v", row, stalled)
		}
		if i == rounds-1 && row.Oldest < stallAfter {
			t.Errorf("the oldest of %d: %v", depth, row.Oldest)
		}
	}
	begin := time.Now()
	eventually(t, "never stalled", func() bool { row, _ := s.row(t); return row.Stalled == 1 })
	row, stalled := s.row(t)
	if waited := time.Since(begin); len(stalled) != 1 || stalled[0].QPN != 17 || stalled[0].Cgroup != 5 || stalled[0].Device != "fake0" ||
		stalled[0].For < stallAfter || stalled[0].For > waited+time.Second || row.Oldest < stalled[0].For {
		t.Errorf("%+v %+v after %v", row, stalled, waited)
	}
	for i := range depth {
		f.do("answer", (rounds+i)%depth)
	}
	if row, stalled := s.row(t); row.Oldest != 0 || row.Stalled != 0 || len(stalled) != 0 || len(row.Gaps) != 0 {
		t.Errorf("after all completed: %+v %+v", row, stalled)
	}
}

// TestOutstandingRefused: a kernel that refuses the iterator has no stalled queue pairs, and the workload has the reason.
func TestOutstandingRefused(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, path, sites, func(s *testSource) {
		s.prober.kernel.refused[gen.DatapathProgListOutstanding] = hook.ErrRefused
	})
	f := startFake(t, path)
	e := event{key: f.key, cgroup: 5, device: 3, qp: f.qp}
	e.key = s.prober.kernel.add(t, e, true)
	s.loop.events <- e
	eventually(t, "never traced", func() bool {
		row, stalled := s.row(t)
		refused := []model.Gap{model.GapRefused}
		return slices.Equal(row.Gaps, refused) && slices.Equal(row.ReceiveGaps, refused) && row.Oldest == 0 && stalled == nil
	})
}

// TestGaps: whose queue pairs are traced, and the reasons for the others.
func TestGaps(t *testing.T) {
	key := gen.DatapathContextKey{Context: 1, Tgid: 2, Number: 3}
	located := contextState{file: locate.FileID{Inode: 1}, probed: 50, final: true}
	change := func(f func(*contextState)) contextState { p := located; f(&p); return p }
	limited := place{limited: [groups]bool{polls: true}}
	polled := [2]uint64{polls: 1}
	for name, c := range map[string]struct {
		state  contextState
		traced uint64
		how    place
		stat   gen.DatapathContextStat
		queue  gen.DatapathOutstanding
		ofAll  model.Gap
		want   model.Gap
	}{
		"traced":                {located, 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, "", ""},
		"idle, out of step":     {located, 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100}, "", model.GapUnmatched},
		"ready to send before":  {located, 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 99, InStep: 1}, "", model.GapLate},
		"chosen later":          {change(func(p *contextState) { p.probed = 101 }), 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, "", model.GapLate},
		"not located":           {change(func(p *contextState) { p.final = false }), 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, model.GapLate, model.GapLate},
		"not probed":            {located, 0, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, model.GapLate, model.GapLate},
		"existed, traced again": {change(func(p *contextState) { p.existed = true }), 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, model.GapLate, ""},
		"in surveys only":       {located, 0, limited, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, model.GapSurvey, model.GapSurvey},
		"no room for a ring":    {located, 100, full, gen.DatapathContextStat{Ringless: 1}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1}, model.GapQueuesFull, ""},
		"completed before":      {located, 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1, OldestNs: 200, CompletedNs: 150}, "", ""},
		"first work request":    {located, 100, full, gen.DatapathContextStat{Hits: polled}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1, OldestNs: 200, Plain: 1}, "", ""},
		"never polled":          {located, 100, full, gen.DatapathContextStat{}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1, OldestNs: 200, Plain: 1}, "", model.GapUnpolled},
		"extended CQ":           {located, 100, full, gen.DatapathContextStat{Hits: polled}, gen.DatapathOutstanding{SinceNs: 100, InStep: 1, OldestNs: 200}, "", model.GapUnpolled},
	} {
		s := newTestSource(Options{}, func() {})
		s.meter.contexts[key] = c.state
		s.meter.places = map[locate.FileID]place{c.state.file: c.how}
		s.meter.tracedSince = map[locate.FileID]uint64{c.state.file: c.traced}
		context := s.meter.traceOf(key, &c.stat)
		if got := context.gapOf(&c.queue); context.gap != c.ofAll || got != c.want {
			t.Errorf("%s: context %q, queue pair %q, want %q, %q", name, context.gap, got, c.ofAll, c.want)
		}
	}
}
