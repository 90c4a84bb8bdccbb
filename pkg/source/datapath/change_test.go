// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestUnwanted: the probes of groups that are not wanted, and of processes that have ended, are detached, the entry of a function before its
// return.
func TestUnwanted(t *testing.T) {
	f := newFile(locate.FileID{Inode: 1}, 0, true)
	f.Paths[1], f.wanted[posts] = "provider", true
	link := io.NopCloser(nil)
	post, poll := locate.Site{Function: locate.PostSend}, locate.Site{Function: locate.PollCQ}
	for _, pid := range []int{1, 2} {
		for _, s := range []locate.Site{post, poll} {
			for _, h := range f.Missing(target{Place: s, PID: pid}, true) {
				f.Links[h] = link
			}
		}
	}
	got := f.Unwanted(f.wants)
	if len(got) != 6 || slices.ContainsFunc(got, func(h half) bool { return h.PID == 1 && h.Place.Function == locate.PostSend }) {
		t.Errorf("%+v", got)
	}
	for i, h := range got {
		if h.Return != (i%2 == 1) || h.Return && h.Target != got[i-1].Target {
			t.Errorf("the order: %+v", got)
		}
	}
	if n := f.probes(); n != 4 {
		t.Errorf("%d targets", n)
	}
}

// TestTake: what is deferred is tried again when the turn comes, and costs no function its coverage; what fails has a reason, and is tried
// after an interval. A function with only one probed half is not complete.
func TestTake(t *testing.T) {
	f := newFile(locate.FileID{Inode: 1}, 0, false)
	s := locate.Site{Function: locate.PostSend}
	f.sites[s], f.wanted[posts] = true, true
	halves := f.missing(posts)
	to := target{Place: s}
	if want := []half{{Target: to, Return: true}, {Target: to}}; !slices.Equal(halves, want) {
		t.Fatalf("%+v are missing, want %+v", halves, want)
	}
	take := func(errs ...error) {
		o := &uprobe.Operation{}
		for i, err := range errs {
			p := uprobe.Probe{Err: err}
			if err == nil {
				p.Link = io.NopCloser(nil)
				f.Links[halves[i]] = p.Link
			}
			o.Probes = append(o.Probes, p)
		}
		f.take(halves, o, false, time.Now())
	}
	deferred := fmt.Errorf("%w: held", uprobe.ErrDeferred)
	take(deferred, deferred)
	if f.failure(posts) != nil || len(f.missing(posts)) != 2 {
		t.Errorf("deferred: %v", f.failed)
	}
	failed := errors.New("no such offset")
	take(nil, failed)
	if !errors.Is(f.failure(posts), failed) || len(f.missing(posts)) != 0 || f.probedSince(0, []locate.Site{s}) != 0 {
		t.Errorf("failed: %v, missing %v", f.failed, f.missing(posts))
	}
	if f.setProbed(posts, 7); f.probedSince(0, nil) != 0 {
		t.Error("one half is enough")
	}
	f.failed[to] = failure{failed, time.Now().Add(-retryInterval)}
	if halves = f.missing(posts); len(halves) != 1 || halves[0].Return {
		t.Errorf("%+v are missing, want the entry", halves)
	}
	take(nil)
	if f.setProbed(posts, 7); f.probedSince(0, nil) != 7 || f.failure(posts) != nil || f.probes() != 1 {
		t.Errorf("probed since %d, %v", f.probedSince(0, nil), f.failed)
	}
}

// TestSurveyCounts: a survey counts from the moment on at which all limited calls are probed. If it never does, or no longer does, it has no
// result, and the file stays limited.
func TestSurveyCounts(t *testing.T) {
	now := time.Now()
	s := newTestSource(Options{}, func() {})
	s.switcher.schedule = schedule{limit: 0.01, length: 10 * time.Second, interval: time.Minute}
	f := newFile(locate.FileID{Inode: 1}, 0, false)
	s.prober.files[f.id] = f
	f.on = [groups]bool{true, true}
	s.switcher.schedule.limitGroup(&f.survey, polls, now)
	f.on[polls] = false // they cannot be attached
	s.switcher.beginCounting(f, now)
	if f.survey.counting || s.meter.places[f.id].surveyed {
		t.Error("counts without probes")
	}
	later := now.Add(9 * time.Second)
	f.on[polls] = true
	s.switcher.beginCounting(f, later)
	if !f.survey.counting || !s.meter.places[f.id].surveyed || f.survey.begun != later || f.survey.broken {
		t.Errorf("does not count: %+v", f.survey)
	}
	if s.switcher.schedule.advance(&f.survey, true, now.Add(10*time.Second)) {
		t.Error("ends early")
	}
	f.on[polls] = false
	if s.switcher.beginCounting(f, later); !f.survey.broken {
		t.Error("incomplete, and has a result")
	}
	s.switcher.schedule.advance(&f.survey, true, later.Add(10*time.Second))
	if f.survey.running || f.survey.counting || !f.survey.isLimited() {
		t.Errorf("after it: %+v", f.survey)
	}
	s.switcher.schedule.begin(&f.survey, now)
	if s.switcher.schedule.advance(&f.survey, true, now.Add(10*time.Second)); !f.survey.broken || !f.survey.isLimited() {
		t.Errorf("never counted: %+v", f.survey)
	}
}

// TestChosenStays: a file that a chosen process has mapped stays probed while another process maps it.
func TestChosenStays(t *testing.T) {
	s := newTestSource(Options{}, func() {})
	f := newFile(locate.FileID{Inode: 1}, 0, false)
	f.Paths[1], f.Paths[2] = "provider", "provider"
	s.processes.byPID[1] = &watched{}
	s.processes.byPID[2] = &watched{}
	if s.switcher.isWanted(f) {
		t.Error("probed without a chosen process")
	}
	s.processes.byPID[2].chosen = true
	if !s.switcher.isWanted(f) {
		t.Error("not probed")
	}
	delete(s.processes.byPID, 2)
	delete(f.Paths, 2)
	if !s.switcher.isWanted(f) {
		t.Error("detached with the chosen process")
	}
	f.Excluded = true
	if s.switcher.isWanted(f) {
		t.Error("probed although a process must not be")
	}
}
