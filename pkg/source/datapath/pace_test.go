// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
)

// TestPace: a job opens 5,120 contexts within two seconds, with two events for each, and a step takes 5 ms. A step at
// each event would take 51 s.
func TestPace(t *testing.T) {
	const (
		events   = 2 * 5120
		launch   = 2 * time.Second
		duration = 5 * time.Millisecond
	)
	began := time.Unix(1000, 0)
	p := pace{due: began}
	steps := 0
	step := func(now time.Time) (end time.Time) {
		steps++
		p.begin(now)
		end = now.Add(duration)
		p.read(end)
		p.due = now.Add(time.Second)
		return end
	}
	now := began
	for i := range events {
		if at := began.Add(launch * time.Duration(i) / events); now.Before(at) {
			now = at
		}
		p.changed = true
		if !now.Before(p.next()) {
			now = step(now)
		}
	}
	if most := int(launch/stepInterval) + 1; steps > most || steps < most/2 {
		t.Errorf("%d steps in %v, want %d", steps, launch, most)
	}
	t.Logf("%d steps, %v, for %d events", steps, time.Duration(steps)*duration, events)

	// A file that is used for the first time: its probes are attached at once, unless a step has just ended.
	now = step(now.Add(time.Second))
	p.attach = true
	if wait := p.next().Sub(now); wait != stepRest*duration {
		t.Errorf("probes are attached %v after a step of %v", wait, duration)
	}
	now = now.Add(stepRest * duration)
	if now.Before(p.next()) {
		t.Error("a file waits for its probes")
	}
	now = step(now)
	if got := p.next(); !got.Equal(p.due) {
		t.Errorf("a step at %v without a reason", got)
	}
	p.due = now // the budget ends a window
	if wait := p.next().Sub(now); wait != stepRest*duration {
		t.Errorf("the budget's step comes %v after a step of %v", wait, duration)
	}
}

// TestProbedFile: a file that is used for the first time is probed at once. The context of the next process is marked
// without a step, by the results of its search. FAKE provider.
func TestProbedFile(t *testing.T) {
	path, sites := buildFake(t)
	s := newFakeSource(t, 0.01, path, sites, func() {})
	defer s.loop.release("the test ends")
	find := func() gen.DatapathContextKey {
		t.Helper()
		f := startFake(t, path)
		s.tracker.observe(event{key: f.key, cgroup: 5, device: 3, qp: f.qp, existed: true})
		s.searches.start(s.prober.perProcess)
		s.tracker.handleFound(<-s.searches.Results)
		s.tracker.markFound(false)
		for key := range s.meter.contexts {
			if key.Tgid == f.key.Tgid {
				return key
			}
		}
		t.Fatal("not found")
		return f.key
	}
	isReady := func(key gen.DatapathContextKey) bool {
		t.Helper()
		return s.prober.kernel.counted(t, key, &gen.DatapathContextStat{}).Ready == 1
	}
	s.loop.pace.due = time.Now().Add(time.Hour)
	first := find()
	if isReady(first) || time.Now().Before(s.loop.pace.next()) {
		t.Errorf("ready before the probes: %t; they come at %v", isReady(first), s.loop.pace.next())
	}
	s.loop.pace.due = s.loop.step()
	for s.prober.manager.Running() > 0 {
		s.prober.manager.Take(<-s.prober.manager.Results, time.Now())
	}
	s.tracker.markFound(false)
	if !isReady(first) || s.meter.contexts[first].probed == 0 {
		t.Errorf("not probed: %+v", s.meter.contexts[first])
	}
	s.loop.pace.due, s.loop.pace.rested = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	if second := find(); !isReady(second) || s.meter.contexts[second].probed == 0 || s.loop.pace.attach {
		t.Errorf("waits for a step: %+v", s.meter.contexts[second])
	}
}
