// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// counting counts verbs of a cgroup, and names the cgroup.
type counting struct {
	n    atomic.Uint64
	fine atomic.Bool // read is no longer called
	read func(n uint64)
}

func (c *counting) Name() string { return "counting" }
func (c *counting) Close() error { return nil }

func (c *counting) Read(context.Context) (model.Snapshot, error) {
	n := c.n.Add(1)
	if !c.fine.Load() {
		c.read(n)
	}
	return model.Snapshot{Verbs: []model.Series[model.VerbKey, model.Histogram]{{
		Cgroup: 7, Key: model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, Value: model.Histogram{Count: n, Sum: 10 * n},
	}}}, nil
}

func (c *counting) Resolve(context.Context, []model.CgroupID) (model.Snapshot, error) {
	return model.Snapshot{Cgroups: []model.Cgroup{{ID: 7, Workload: "slurm:7"}}}, nil
}

// TestLostReadsKeepCounters: counters of owners are exact even if answers are lost.
func TestLostReadsKeepCounters(t *testing.T) {
	for name, read := range map[string]func(n uint64){
		"slower than its deadline every second time": func(n uint64) {
			if n%2 == 0 {
				time.Sleep(2500 * time.Millisecond) // still running when the next refresh begins
			}
		},
		"panics every third time": func(n uint64) {
			if n%3 == 0 {
				panic("boom")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &counting{read: read}
				e := New(Options{})
				e.Add(Registration{Source: source, Deadline: time.Second})
				e.Start()
				answers := 0
				for range 50 {
					time.Sleep(2 * time.Second)
					r := e.Refresh()
					if r.Shares.Verbs == nil {
						continue
					}
					answers++
					v := r.Shares.Verbs
					if n := v[len(v)-1].Value; len(v) > 2 || n.Count > source.n.Load() || n.Sum != 10*n.Count {
						t.Fatalf("%+v after %d reads", v, source.n.Load())
					}
				}
				if answers < 20 || answers == 50 {
					t.Errorf("%d of 50 refreshes have an answer", answers)
				}
				source.fine.Store(true)
				time.Sleep(5 * time.Second)
				var sum uint64
				for _, v := range e.Refresh().Shares.Verbs {
					sum += v.Value.Count
				}
				if n := source.n.Load(); sum != n {
					t.Errorf("%d verbs are credited, %d were counted", sum, n)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestNotStarted(t *testing.T) {
	e := New(Options{})
	e.Add(Registration{Source: &counting{read: func(uint64) { t.Error("read") }}})
	if r := e.Refresh(); !r.At.IsZero() || r.States != nil {
		t.Errorf("%+v", r)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// expiring counts or names a cgroup until it has forgotten the cgroup.
type expiring struct {
	name    string
	forget  func()
	forgot  atomic.Int32
	expired []model.CgroupID
}

func (s *expiring) Name() string { return s.name }
func (s *expiring) Close() error { return nil }
func (s *expiring) Read(context.Context) (model.Snapshot, error) {
	return model.Snapshot{Expired: s.expired}, nil
}

func (s *expiring) Forget(ids []model.CgroupID) {
	if s.forget != nil {
		s.forget()
	}
	s.forgot.Add(int32(len(ids)))
	if s.expired != nil {
		s.expired = slices.DeleteFunc(s.expired, func(id model.CgroupID) bool { return slices.Contains(ids, id) })
	}
}

type naming struct{ expiring }

func (s *naming) Resolve(context.Context, []model.CgroupID) (model.Snapshot, error) {
	return model.Snapshot{}, nil
}

// A source that hangs in Forget keeps only the names of the cgroups that it has not forgotten, and no refresh waits for
// it again.
func TestForgetHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		hung, other := &expiring{name: "hung", forget: func() { <-released }}, &expiring{name: "other"}
		names := &naming{expiring{name: "names", expired: []model.CgroupID{7, 8}}}
		e := New(Options{})
		for _, s := range []Source{hung, other, names} {
			e.Add(Registration{Source: s, Deadline: time.Second})
		}
		e.Start()
		e.Refresh()
		for range 10 {
			time.Sleep(2 * time.Second)
			begin := time.Now()
			e.Refresh()
			if took := time.Since(begin); took > 0 {
				t.Errorf("a refresh waited %v for a source that hangs in Forget", took)
			}
		}
		if h, o, n := hung.forgot.Load(), other.forgot.Load(), names.forgot.Load(); h != 0 || o != 2 || n != 0 {
			t.Errorf("while one hangs, they have forgotten %d, %d and %d cgroups; want 0, 2, 0", h, o, n)
		}
		close(released)
		time.Sleep(2 * time.Second)
		e.Refresh()
		if h, o, n := hung.forgot.Load(), other.forgot.Load(), names.forgot.Load(); h < 2 || o != 2 || n != 2 { // it may be asked twice
			t.Errorf("then they have forgotten %d, %d and %d cgroups; want 2 each", h, o, n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

type holder struct {
	expiring
	stuck atomic.Bool
}

func (s *holder) Read(context.Context) (model.Snapshot, error) {
	if s.stuck.Load() {
		time.Sleep(90 * time.Second)
	}
	return model.Snapshot{Objects: []model.Objects{{Cgroup: 7, Current: 1}}}, nil
}

// A cgroup with objects is not forgotten while the source of objects is stuck.
func TestForgetHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, other := &holder{expiring: expiring{name: "holder"}}, &expiring{name: "other"}
		names := &naming{expiring{name: "names", expired: []model.CgroupID{7, 8}}}
		e := New(Options{})
		for _, s := range []Source{held, other, names} {
			e.Add(Registration{Source: s, Deadline: time.Second})
		}
		e.Start()
		e.Refresh()
		held.stuck.Store(true)
		for range 5 {
			time.Sleep(2 * time.Second)
			e.Refresh()
		}
		held.stuck.Store(false)
		time.Sleep(2 * time.Minute)
		e.Refresh()
		if h, o, n := held.forgot.Load(), other.forgot.Load(), names.forgot.Load(); h != 1 || o != 1 || n != 1 {
			t.Errorf("they have forgotten %d, %d and %d cgroups, want 1 each: the other holds an object", h, o, n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A panic in Forget is logged, and the cgroups count as forgotten.
func TestForgetPanics(t *testing.T) {
	broken, names := &expiring{name: "broken", forget: func() { panic("boom") }}, &naming{expiring{name: "names", expired: []model.CgroupID{7}}}
	e := New(Options{})
	e.Add(Registration{Source: broken})
	e.Add(Registration{Source: names})
	e.Start()
	e.Refresh()
	if n := names.forgot.Load(); n != 1 {
		t.Errorf("%d cgroups are forgotten, want 1", n)
	}
}

// unnamed panics outside its isolated calls.
type unnamed struct {
	expiring
	calls atomic.Int32
	boom  chan struct{}
}

func (s *unnamed) Name() string {
	if s.calls.Add(1) == 2 { // the first call is at the registration
		<-s.boom
		panic("boom")
	}
	return "unnamed"
}

// A refresh that panics has an error for all waiting callers. The next refresh reads again.
func TestRefreshPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{})
		s := &unnamed{boom: make(chan struct{})}
		e.Add(Registration{Source: s})
		e.Start()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if r := e.Refresh(); r.Err == nil || !r.At.IsZero() {
					t.Errorf("a refresh that panicked: %+v", r)
				}
			})
		}
		synctest.Wait() // one reads, the others wait
		close(s.boom)
		all.Wait()
		if r := e.Refresh(); r.Err != nil || r.At.IsZero() {
			t.Errorf("the next one: %+v", r)
		}
	})
}

// A source whose goroutine panicked still answers, but has failed. The panic is logged once and counted, like panics in
// calls and refreshes.
func TestGoroutinePanics(t *testing.T) {
	core, lines := observer.New(zap.ErrorLevel)
	reads := 0
	s := &named{name: t.Name(), read: func() error {
		reads++
		switch reads {
		case 1, 2:
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				safely.Do(t.Name(), func() { panic("boom") })
			}()
			<-ended
		case 4:
			panic("in Read")
		case 5:
			return model.ErrAbsent
		}
		return nil
	}}
	e := New(Options{Logger: zap.New(core), Reuse: 1})
	e.Add(Registration{Source: s})
	e.Add(Registration{Source: &named{name: "another"}})
	e.Start()
	for i, want := range []uint64{1, 2, 2, 3, 3} {
		r := e.Refresh()
		if got := r.States[0]; got.State != model.StateFailed || !strings.HasPrefix(got.Reason, "a goroutine of the source ended: panic: boom") {
			t.Errorf("refresh %d: %+v", i, got)
		}
		if r.States[1].State != model.StateOK || r.Panics != want {
			t.Errorf("refresh %d: the other source is %s, %d panics, want %d", i, r.States[1].State, r.Panics, want)
		}
	}
	if n := lines.FilterMessage("panic in a source").Len(); n != 1 || lines.Len() != 2 {
		t.Errorf("%d lines for the goroutine, %d in all: %v", n, lines.Len(), lines.All())
	}
}

// A source whose constructor panicked has failed with this reason. The panic is logged once and counted.
func TestConstructorPanics(t *testing.T) {
	core, lines := observer.New(zap.ErrorLevel)
	e := New(Options{Logger: zap.New(core), Reuse: 1})
	err := safely.Try(func() { panic("boom") })
	e.Add(Registration{Source: &named{name: t.Name()}, Err: fmt.Errorf("making the source: %w", err)})
	e.Add(Registration{Source: &named{name: "another"}})
	e.Start()
	for range 2 {
		r := e.Refresh()
		if got := r.States[0]; got.State != model.StateFailed || got.Reason != "making the source: panic: boom" {
			t.Errorf("%+v", got)
		}
		if r.States[1].State != model.StateOK || r.Panics != 1 {
			t.Errorf("the other source is %s, %d panics", r.States[1].State, r.Panics)
		}
	}
	if n := lines.FilterMessage("panic in a source").Len(); n != 1 || lines.Len() != 1 {
		t.Errorf("logged: %v", lines.All())
	}
}

type named struct {
	name string
	read func() error
}

func (s *named) Name() string { return s.name }
func (s *named) Close() error { return nil }

func (s *named) Read(context.Context) (model.Snapshot, error) {
	if s.read == nil {
		return model.Snapshot{}, nil
	}
	return model.Snapshot{}, s.read()
}

// Background sources that start at the same moment are later read at different moments, still at their interval.
func TestBackgroundSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval, sources, rounds = 15 * time.Second, 100, 240
		var mu sync.Mutex
		reads, last := 0, map[int]time.Time{}
		e := New(Options{})
		for i := range sources {
			e.Add(Registration{Interval: interval, Source: &named{name: fmt.Sprint("spread ", i), read: func() error {
				mu.Lock()
				defer mu.Unlock()
				reads++
				last[i] = time.Now()
				return nil
			}}})
		}
		began := time.Now()
		e.Start()
		time.Sleep(rounds * interval)
		mu.Lock()
		defer mu.Unlock()
		if reads < sources*rounds*19/20 || reads > sources*rounds*21/20 {
			t.Errorf("%d readings of %d sources in %d intervals", reads, sources, rounds)
		}
		at := map[time.Duration]int{} // within the interval
		for _, read := range last {
			at[read.Sub(began)%interval/time.Second]++
		}
		for second, n := range at {
			if n > sources/3 {
				t.Errorf("%d of %d sources in second %d of the interval", n, sources, second)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestLeftOut checks that a device that is ok but lacks something is logged once.
func TestLeftOut(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	l := stateLogger{log: zap.New(core)}
	odd := model.DeviceState{Source: "node", Device: "netdev", State: model.StateOK, Reason: `net/dev: the line "x"`}
	plain := model.DeviceState{Source: "node", Device: "stat", State: model.StateOK}
	for range 3 {
		l.update(nil, []model.DeviceState{odd, plain})
	}
	if all := lines.All(); len(all) != 1 || all[0].ContextMap()["reason"] != odd.Reason {
		t.Errorf("logged: %v", all)
	}
}
