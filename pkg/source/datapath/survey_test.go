// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

var testSchedule = schedule{limit: 0.01, length: 10 * time.Second, interval: 10 * time.Minute}

// at returns a time, in seconds.
func at(seconds float64) time.Time {
	return time.Unix(1e9, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// TestSurveyLife: what is limited is counted for one survey length each interval, with one attachment and one removal of
// its probes.
func TestSurveyLife(t *testing.T) {
	s, v := testSchedule, survey{}
	var surveyed time.Duration
	attached, detached := 0, 0
	on := true
	for second := range 3700 {
		now := at(float64(second))
		if second == 5 {
			s.limitGroup(&v, polls, now)
		}
		v.over = true // as in each survey
		s.advance(&v, true, now)
		if is := v.on(polls); is != on {
			attached, detached, on = attached+toInt[int](is), detached+toInt[int](!is), is
		}
		if v.on(posts) != true {
			t.Fatalf("second %d: posts are not counted", second)
		}
		if second > 5 && v.on(polls) {
			surveyed += time.Second
		}
	}
	if attached != 6 || detached != 7 || surveyed < 65*time.Second || surveyed > 77*time.Second {
		t.Errorf("in an hour, probes were attached %d times and detached %d times, and counted %v", attached, detached, surveyed)
	}
}

// TestSurveysTogether: files that are limited at different times are surveyed at the same time later, and never twice within an interval.
func TestSurveysTogether(t *testing.T) {
	s := testSchedule
	limitedAt := []int{0, 3, 299, 591, 607}
	files := make([]survey, len(limitedAt))
	begun := make([][]int, len(files))
	for second := range 7200 {
		for i := range files {
			v := &files[i]
			if second == limitedAt[i] {
				s.limitGroup(v, posts, at(float64(second)))
				begun[i] = append(begun[i], second)
				continue
			}
			running := v.running
			v.over = true
			s.advance(v, true, at(float64(second)))
			if v.running && !running {
				begun[i] = append(begun[i], second)
			}
		}
	}
	for i, times := range begun {
		for j := 1; j < len(times); j++ {
			if gap := times[j] - times[j-1]; gap < 590 || gap > 1200 {
				t.Errorf("file %d was surveyed %d s after the survey before: %v", i, gap, times)
			}
		}
		if last := times[len(times)-1]; last != begun[0][len(begun[0])-1] {
			t.Errorf("file %d was last surveyed at %d s, file 0 at %d s", i, last, begun[0][len(begun[0])-1])
		}
	}
}

// TestSurveyEnds: a file is counted in full again after a survey in which its processes kept their budget, and once no process uses it.
func TestSurveyEnds(t *testing.T) {
	s, v := testSchedule, survey{}
	s.limitGroup(&v, posts, at(0))
	v.over, v.counting = true, true
	if s.advance(&v, true, at(9)) || !s.advance(&v, true, at(10)) || v.on(posts) || !v.isLimited() {
		t.Fatalf("after the first survey: %+v", v)
	}
	s.advance(&v, true, at(599))
	if v.running {
		t.Error("surveyed too early")
	}
	s.advance(&v, true, at(600))
	if !v.running {
		t.Error("not surveyed after an interval")
	}
	v.counting = true
	if !s.advance(&v, true, at(611)) || v.isLimited() {
		t.Errorf("still limited after a survey within the budget: %+v", v)
	}
	s.limitGroup(&v, posts, at(700))
	v.over = true
	s.advance(&v, true, at(710))
	s.advance(&v, false, at(1900))
	if v.isLimited() || v.running {
		t.Errorf("limited without a process: %+v", v)
	}
}

// TestBrokenSurvey: a survey in which calls were not counted ends no limit, and has no result.
func TestBrokenSurvey(t *testing.T) {
	s, v := testSchedule, survey{}
	s.limitGroup(&v, posts, at(0))
	v.broken = true
	if !s.advance(&v, true, at(10)) || !v.isLimited() || v.running {
		t.Errorf("after a broken survey: %+v", v)
	}
	if s.advance(&v, true, at(600)); !v.running || v.broken {
		t.Errorf("the next survey: %+v", v)
	}
	f := newFold(0.01, time.Minute)
	file := locate.FileID{Inode: 1}
	stat := gen.DatapathContextStat{Cgroup: 7, ReceivedBytes: 10}
	running := place{file: file, limited: [groups]bool{true, true}, surveyed: true}
	f.add(gen.DatapathContextKey{Context: 1, Tgid: 1}, &stat, running)
	f.endSurvey(file, &survey{begun: at(0), ended: at(10), broken: true})
	f.add(gen.DatapathContextKey{Context: 1, Tgid: 1}, &stat, place{file: file, limited: running.limited})
	if rows := filled(f).Surveys; len(rows) != 0 {
		t.Errorf("a broken survey has the result %+v", rows)
	}
	stat.ReceivedBytes += 5
	f.add(gen.DatapathContextKey{Context: 1, Tgid: 1}, &stat, running)
	f.endSurvey(file, &survey{begun: at(600), ended: at(610)})
	if rows := filled(f).Surveys; len(rows) != 1 || rows[0].ReceiveBytes != 5 {
		t.Errorf("the next survey has the result %+v", rows)
	}
}

// TestSuspicion: a limited file is surveyed for a minute on suspicion, once in ten minutes. A running survey becomes longer. Scheduled surveys
// stay at their common times.
func TestSuspicion(t *testing.T) {
	s, v := testSchedule, survey{}
	s.suspicion = time.Minute
	if s.suspect(&v, at(0)) || v.running {
		t.Error("a file without limits is surveyed")
	}
	s.limitGroup(&v, polls, at(0))
	ends := func(second float64) {
		t.Helper()
		v.over = true
		if s.advance(&v, true, at(second-1)) || !v.running || !s.due(&v).Equal(at(second)) {
			t.Errorf("second %g: ended before, or %v is the end", second, s.due(&v))
		}
		if !s.advance(&v, true, at(second)) || v.running || !v.isLimited() {
			t.Errorf("second %g: not ended, or without limit", second)
		}
	}
	ends(10)
	if !s.suspect(&v, at(100)) {
		t.Error("not surveyed on suspicion")
	}
	ends(160)
	if s.suspect(&v, at(699)) {
		t.Error("surveyed again within ten minutes")
	}
	s.advance(&v, true, at(1199))
	if v.running {
		t.Error("surveyed between the common times")
	}
	s.advance(&v, true, at(1200))
	if !s.suspect(&v, at(1205)) {
		t.Error("the running survey is not extended")
	}
	ends(1260)
	s.advance(&v, true, at(1800))
	ends(1810)
	if want := (model.SurveyCounts{Scheduled: 3, Suspected: 2}); s.begun != want {
		t.Errorf("%+v surveys, want %+v", s.begun, want)
	}
}

// TestSuspected: on suspicion the file of a cgroup is probed again, and its result is of this survey. FAKE provider.
func TestSuspected(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0.01, path, sites, func(s *testSource) {
		s.switcher.schedule.length, s.switcher.schedule.interval, s.switcher.schedule.suspicion = time.Second, time.Hour, 3*time.Second
	})
	f := startFake(t, path)
	s.observeFake(f)
	eventually(t, "never probed", func() bool { return s.snapshot(t).DataPath.Probes == uint64(len(sites)) })
	idle := func(ok func(model.Snapshot) bool) func() bool {
		return func() bool {
			f.do("idle", 20_000)
			return ok(s.snapshot(t))
		}
	}
	var first model.Survey
	eventually(t, "never limited", idle(func(snap model.Snapshot) bool {
		for _, first = range snap.Surveys {
			return snap.DataPath.Probes < uint64(len(sites))
		}
		return false
	}))
	s.Survey([]model.CgroupID{6})
	s.Survey([]model.CgroupID{5, 6})
	s.Survey([]model.CgroupID{5})
	eventually(t, "not probed on suspicion", idle(func(snap model.Snapshot) bool { return snap.DataPath.Probes == uint64(len(sites)) }))
	var second model.Survey
	eventually(t, "no result", idle(func(snap model.Snapshot) bool {
		for _, second = range snap.Surveys {
			return second.Begun.After(first.Ended)
		}
		return false
	}))
	if length := second.Ended.Sub(second.Begun); length < 3*time.Second {
		t.Errorf("it took %v", length)
	}
	if got, want := s.snapshot(t).DataPath.Surveys, (model.SurveyCounts{Scheduled: 1, Suspected: 1}); got != want {
		t.Errorf("%+v surveys, want %+v", got, want)
	}
}

// TestExceeded: a process exceeds its budget by what probes took of it in a period, whatever the load was before.
func TestExceeded(t *testing.T) {
	type look struct {
		at    float64
		cpu   float64 // seconds
		spent [groups]float64
	}
	counts := [groups]bool{true, true}
	for name, c := range map[string]struct {
		looks  []look
		counts [groups]bool
		over   int // the look at which it exceeds, -1: never
		group  int
	}{
		"idle":                         {[]look{{0, 0, [2]float64{}}, {10, 0, [2]float64{}}, {20, 0, [2]float64{}}}, counts, -1, 0},
		"within":                       {[]look{{0, 0, [2]float64{}}, {10, 10, [2]float64{0.05, 0.04}}, {20, 20, [2]float64{0.1, 0.08}}}, counts, -1, 0},
		"polls at once":                {[]look{{0, 0, [2]float64{}}, {1, 1, [2]float64{0.01, 0.3}}}, counts, 1, polls},
		"posts over a period":          {[]look{{0, 0, [2]float64{}}, {5, 1, [2]float64{0.01, 0}}, {10, 2, [2]float64{0.03, 0}}}, counts, 2, posts},
		"of little CPU time":           {[]look{{0, 0, [2]float64{}}, {10, 0.01, [2]float64{0.001, 0}}}, counts, 1, posts},
		"a few traps of an idle one":   {[]look{{0, 0, [2]float64{}}, {10, 0.0001, [2]float64{0.0001, 0}}}, counts, -1, 0},
		"many threads, within":         {[]look{{0, 0, [2]float64{}}, {1, 64, [2]float64{0, 0.3}}, {10, 640, [2]float64{0, 3}}}, counts, -1, 0},
		"before it was watched":        {[]look{{0, 100, [2]float64{50, 50}}, {10, 110, [2]float64{50, 50}}}, counts, -1, 0},
		"polls that are limited":       {[]look{{0, 0, [2]float64{}}, {10, 10, [2]float64{0.01, 5}}}, [groups]bool{posts: true}, -1, 0},
		"in the second period":         {[]look{{0, 0, [2]float64{}}, {10, 10, [2]float64{}}, {20, 20, [2]float64{0, 0.2}}}, counts, 2, polls},
		"the first period counts once": {[]look{{0, 0, [2]float64{}}, {10, 10, [2]float64{0, 0.09}}, {20, 20, [2]float64{0, 0.18}}}, counts, -1, 0},
		"another program is executed":  {[]look{{0, 100, [2]float64{}}, {10, 1, [2]float64{0, 9}}, {20, 11, [2]float64{0, 9}}}, counts, -1, 0},
	} {
		s := testSchedule
		var p cost
		over, group := -1, 0
		for i, l := range c.looks {
			seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
			spent := [groups]time.Duration{seconds(l.spent[0]), seconds(l.spent[1])}
			if g, yes := s.exceeded(&p, at(l.at), seconds(l.cpu), spent, c.counts); yes && over < 0 {
				over, group = i, g
			}
		}
		if over != c.over || over >= 0 && group != c.group {
			t.Errorf("%s: exceeded at look %d by group %d, want %d by %d", name, over, group, c.over, c.group)
		}
	}
	unlimited := schedule{length: time.Second, interval: time.Minute}
	var p cost
	unlimited.exceeded(&p, at(0), 0, [groups]time.Duration{}, counts)
	if _, over := unlimited.exceeded(&p, at(1), time.Second, [groups]time.Duration{time.Second, 0}, counts); over {
		t.Error("exceeded without a limit")
	}
}

// TestSurveyed: a process that polls at full speed is counted in surveys only; its posts in the survey are its share. FAKE provider.
func TestSurveyed(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0.01, path, sites, func(s *testSource) {
		s.switcher.schedule.length, s.switcher.schedule.interval = 2*time.Second, 6*time.Second
	})
	f := startFake(t, path)
	s.observeFake(f)
	eventually(t, "never probed", func() bool { return s.snapshot(t).DataPath.Probes == uint64(len(sites)) })
	f.do("chain", 5)
	const chain = 128 + 64 + 1054
	gap := func(snap model.Snapshot) bool {
		return slices.ContainsFunc(snap.Coverage, func(c model.Coverage) bool { return c.Gap == model.GapSurvey })
	}
	eventually(t, "never surveyed", func() bool {
		f.do("idle", 20_000)
		return gap(s.snapshot(t))
	})
	f.do("recv", 3) // in the first survey, with probes that stay attached
	var rows []model.Survey
	eventually(t, "no result", func() bool {
		f.do("idle", 20_000)
		rows = s.snapshot(t).Surveys
		return len(rows) > 0
	})
	first := rows[0]
	if length := first.Ended.Sub(first.Begun); length < 2*time.Second || length > 4*time.Second || first.Cgroup != 5 || first.Device != "fake0" {
		t.Errorf("%+v took %v", first, length)
	}
	snap := s.snapshot(t)
	for _, r := range snap.Traffic {
		if r.Direction == model.Transmit && r.Bytes != 5*chain {
			t.Errorf("%d bytes are counted, want %d", r.Bytes, 5*chain)
		}
		if r.Direction == model.Receive && !r.Resting {
			t.Errorf("%+v does not rest", r)
		}
	}
	eventually(t, "probes of polls stay", func() bool { return s.snapshot(t).DataPath.Probes < uint64(len(sites)) })
	var second model.Survey
	eventually(t, "no second survey", func() bool {
		f.do("idle", 20_000)
		rows = s.snapshot(t).Surveys
		if len(rows) == 1 && rows[0].Begun.After(first.Begun) {
			second = rows[0]
		}
		return !second.Begun.IsZero()
	})
	if gap := second.Begun.Sub(first.Begun); gap < 4*time.Second {
		t.Errorf("the second survey began %v after the first one", gap)
	}
	eventually(t, "not counted in full again", func() bool { snap := s.snapshot(t); return !gap(snap) && len(snap.Surveys) == 0 })
}

// TestExcluded: a file that a process maps which must not have probes has none, and what is counted of the others lacks calls. FAKE provider.
func TestExcluded(t *testing.T) {
	path, sites := buildFake(t)
	var excluded, known atomic.Bool
	s := startSource(t, 0, path, sites, func(s *testSource) {
		s.opts.Consent = func(cgroup model.CgroupID) uprobe.Consent {
			switch {
			case cgroup == 5 && excluded.Load():
				return uprobe.Refused
			case cgroup == 5 && !known.Load():
				return uprobe.Awaited
			}
			return uprobe.Given
		}
		s.opts.SurveyInterval = 5 * time.Second
	})
	f := startFake(t, path)
	s.observeFake(f)
	gaps := func(probes int, want ...model.Gap) func() bool {
		return func() bool {
			snap := s.snapshot(t)
			var got []model.Gap
			for _, c := range snap.Coverage {
				if c.Gap != "" && c.Gap != model.GapNotSeen { // this kernel has no InfiniBand to list what existed
					got = append(got, c.Gap)
				}
			}
			return snap.DataPath.Probes == uint64(probes) && slices.Equal(got, want)
		}
	}
	time.Sleep(time.Second)
	if n := s.snapshot(t).DataPath.Probes; n != 0 {
		t.Errorf("%d probes before the labels are known", n)
	}
	known.Store(true)
	eventually(t, "never probed", gaps(len(sites)))
	f.do("chain", 3)
	excluded.Store(true)
	eventually(t, "still probed", gaps(0, model.GapNotSelected))
	off := time.Now()
	f.do("chain", 100)
	excluded.Store(false)
	eventually(t, "not probed again, or complete", gaps(len(sites), model.GapLate))
	if took := time.Since(off); took < 4*time.Second {
		t.Errorf("probed again after %v, within an interval", took)
	}
	f.do("chain", 2)
	for _, r := range s.snapshot(t).Traffic {
		if want := uint64(5 * (128 + 64 + 1054)); r.Direction == model.Transmit && r.Bytes != want {
			t.Errorf("%d bytes, want %d", r.Bytes, want)
		}
	}
}

// TestOutdatedSurvey: the result of a survey is used for maxIntervals intervals.
func TestOutdatedSurvey(t *testing.T) {
	now := time.Unix(1e9, 0)
	if isOutdated(now.Add(-maxIntervals*time.Minute), now, time.Minute) || !isOutdated(now.Add(-maxIntervals*time.Minute-1), now, time.Minute) {
		t.Error("the result of a survey is used for a shorter or longer time")
	}
}
