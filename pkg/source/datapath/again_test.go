// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// aborted is a source with the real locator, and a fake with a verbs context whose first queue pair is destroyed, and its
// memory freed, before the first search reads it.
type aborted struct {
	*testSource
	*fake
	o        *kernelObjects
	first    uint64        // the address of the first queue pair
	search   chan struct{} // closed: the first search goes on
	searches atomic.Int32
}

func startAborted(t *testing.T) *aborted {
	t.Helper()
	path, _ := buildFake(t, asProvider...)
	a := &aborted{search: make(chan struct{})}
	a.testSource = startSource(t, 0, path, nil, func(s *testSource) {
		find := locate.New("/proc").Find
		s.searches.find = func(p *locate.Process, qp, context uint64) (locate.Found, error) {
			a.searches.Add(1)
			<-a.search
			return find(p, qp, context)
		}
		go s.loop.receive(context.Background(), s.prober.kernel)
	})
	a.fake = startFake(t, path)
	a.o = traceLifecycle(t, a.prober.kernel, path)
	a.o.use(a.fake, 0, 3)
	a.first = a.make(99)
	a.handle(a.first, 99)
	a.o.modify(a.fake, 0, qpInit)
	eventually(t, "no search", func() bool { return a.searches.Load() == 1 })
	return a
}

// make makes a queue pair with a number and returns its address in the fake.
func (a *aborted) make(qpn int) (qp uint64) {
	a.t.Helper()
	if _, err := fmt.Sscanf(a.do("make-qp", qpn), "0x%x", &qp); err != nil {
		a.t.Fatal(err)
	}
	return qp
}

// handle makes the kernel's queue pair belong to another queue pair of the fake.
func (a *aborted) handle(qp, qpn uint64) {
	a.t.Helper()
	a.o.put(kernelUobject, "ib_uobject.user_handle", qp)
	a.o.number(0, qpn)
}

// destroy destroys a queue pair and frees its memory.
func (a *aborted) destroy(qp uint64, qpn uint64) {
	a.t.Helper()
	a.handle(qp, qpn)
	a.o.destroy(a.fake, 0)
	a.do("free-qp", int(qp)) //nolint:gosec // the fake takes it as an address again
}

// connect makes a queue pair ready to send.
func (a *aborted) connect(qp, qpn uint64) {
	a.t.Helper()
	a.handle(qp, qpn)
	for state := range uint64(qpReadyToSend) {
		a.o.modify(a.fake, 0, state+1)
	}
}

// gaps returns the coverage, without what this machine's kernel adds if it refuses the list of existing queue pairs.
func (a *aborted) gaps() string {
	a.t.Helper()
	var gaps []string
	for _, c := range a.snapshot(a.t).Coverage {
		if c.Gap != model.GapNotSeen {
			gaps = append(gaps, string(c.Gap))
		}
	}
	return strings.Join(gaps, ",")
}

// waitLate waits until the searches have ended without a result: the context is late.
func (a *aborted) waitLate(searches int32) {
	a.t.Helper()
	eventually(a.t, "the search does not end", func() bool {
		var stat gen.DatapathContextStat
		err := a.prober.kernel.object.Coll.Maps[gen.DatapathMapContexts].Lookup(a.key, &stat)
		return err == nil && a.searches.Load() >= searches && stat.Repeated >= uint32(searches)
	})
	if gaps := a.gaps(); gaps != string(model.GapLate) {
		a.t.Errorf("coverage %q after the first queue pair, want late", gaps)
	}
}

// checkCounted checks that all that is posted from now on is counted.
func (a *aborted) checkCounted() {
	a.t.Helper()
	eventually(a.t, "the context is not located", func() bool { return a.located() == 1 && a.counts(a.key) })
	a.do("chain", 10)
	const chain = 128 + 64 + 1054
	eventually(a.t, "wrong counts", func() bool {
		return slices.ContainsFunc(a.snapshot(a.t).Traffic, func(r model.Traffic) bool {
			return r.Direction == model.Transmit && r.Bytes == 10*chain
		})
	})
	if gaps := a.gaps(); gaps != "" && gaps != string(model.GapLate) {
		a.t.Errorf("coverage %q", gaps)
	}
}

// TestFirstQueuePairDestroyed: the first queue pair of a context, as of a connection that is refused, is destroyed before its
// functions are found. The queue pairs after it are counted. FAKE provider and kernel objects.
func TestFirstQueuePairDestroyed(t *testing.T) {
	t.Run("the next one comes later", func(t *testing.T) {
		a := startAborted(t)
		a.destroy(a.first, 99)
		close(a.search)
		a.waitLate(1)
		a.connect(a.qp, 17)
		a.checkCounted()
	})
	t.Run("the next one is connected already", func(t *testing.T) {
		a := startAborted(t)
		a.connect(a.qp, 17)
		a.destroy(a.first, 99)
		close(a.search)
		a.checkCounted()
	})
	t.Run("three are destroyed", func(t *testing.T) {
		a := startAborted(t)
		second, third := a.make(98), a.make(97)
		a.connect(second, 98)
		a.connect(third, 97)
		a.destroy(a.first, 99)
		a.destroy(second, 98)
		a.destroy(third, 97)
		close(a.search)
		a.waitLate(1)
		a.connect(a.qp, 17)
		a.checkCounted()
	})
	t.Run("of a provider that is probed", func(t *testing.T) {
		a := startAborted(t)
		probed := startFake(t, a.Path)
		a.o.use(probed, 1, 3)
		a.destroy(a.first, 99)
		close(a.search)
		a.waitLate(1)
		for state := range uint64(qpReadyToSend) {
			a.o.modify(probed, 1, state+1)
		}
		eventually(t, "the provider is not probed", func() bool { return a.snapshot(t).DataPath.Probes > 0 && a.located() == 1 })
		a.connect(a.qp, 17)
		eventually(t, "not located", func() bool { return a.located() == 2 && a.counts(a.key) })
		eventually(t, "never complete", func() bool { return a.gaps() == "" || a.gaps() == string(model.GapLate) })
	})
}

// TestTriesBounded: the attempts at a context whose functions are never found wait longer and longer, and end. The test does
// what the loop does.
func TestTriesBounded(t *testing.T) {
	path, _ := buildFake(t)
	_, cancel := context.WithCancel(t.Context())
	s := newFakeSource(t, 0, path, nil, cancel)
	f := startFake(t, path)
	o := traceLifecycle(t, s.prober.kernel, path)
	o.use(f, 0, 3)
	o.modify(f, 0, qpInit)
	e, err := s.prober.kernel.events.next()
	if err != nil {
		t.Fatal(err)
	}
	e.cgroup = 5
	var last time.Duration
	const most = 32
	for n := range most + 1 {
		s.tracker.searchAgain(attempt{event: e})
		if len(s.searches.retries) != 1 {
			t.Fatalf("%d attempts are scheduled", len(s.searches.retries))
		}
		wait := time.Until(s.searches.retries[0].at)
		if wait < last/2 || wait > lastRetry {
			t.Errorf("attempt %d in %v, the one before in %v", n, wait, last)
		}
		last = wait
		a := s.searches.retries[0]
		s.searches.retries, s.searches.retriesOf = nil, map[model.CgroupID]int{}
		s.tracker.searchLast(a)
		if n == most {
			break
		}
		w := s.processes.byPID[int(e.key.Tgid)]
		if w == nil || len(w.queue) != 1 || w.queue[0].qp != f.qp || len(s.meter.unlocated) != 0 {
			t.Fatalf("attempt %d: %+v, %v", n, w, s.meter.unlocated)
		}
		w.queue = nil
	}
	if len(s.processes.byPID[int(e.key.Tgid)].queue) != 0 {
		t.Error("one more search")
	}
	snap := s.snapshot(t)
	if !slices.ContainsFunc(snap.Coverage, func(c model.Coverage) bool { return c.Gap == model.GapProviderUnsupported }) {
		t.Errorf("coverage %+v", snap.Coverage)
	}
	s.processes.byPID[int(e.key.Tgid)].Close()
}

// TestRetries: an event that cannot be handled now is handled later, also while others are.
func TestRetries(t *testing.T) {
	path, _ := buildFake(t)
	_, cancel := context.WithCancel(t.Context())
	s := newFakeSource(t, 0, path, nil, cancel)
	f := startFake(t, path)
	e := event{key: f.key, cgroup: 5, device: 3, qp: f.qp, existed: true}
	const more = 3
	for range maxQueue + more {
		s.tracker.observe(e)
	}
	w := s.processes.byPID[f.Process.Pid]
	defer w.Close()
	if len(w.queue) != maxQueue || len(s.searches.retries) != more {
		t.Fatalf("%d in the queue, %d later", len(w.queue), len(s.searches.retries))
	}
	w.queue = w.queue[:maxQueue-1]
	s.tracker.retryDue(time.Now().Add(lastRetry))
	if len(w.queue) != maxQueue || len(s.searches.retries) != more-1 || s.searches.retries[0].tries != 2 {
		t.Errorf("%d in the queue, later %+v", len(w.queue), s.searches.retries)
	}
}

// TestRetriesShare: the attempts of one owner do not keep out attempts of others.
func TestRetriesShare(t *testing.T) {
	s := newTestSource(Options{}, func() {})
	wait := func(owner model.CgroupID, n int) {
		for i := range n {
			s.tracker.retryLater(attempt{event: event{key: gen.DatapathContextKey{Tgid: uint32(i + 1)}, cgroup: owner, qp: 1, device: uint32(owner), existed: true}})
		}
	}
	wait(1, maxWaiting)
	wait(2, 3)
	if len(s.searches.retries) != maxWaitingOfOwner+3 || len(s.meter.unlocated) != maxWaiting-maxWaitingOfOwner {
		t.Errorf("%d attempts wait, %d are given up", len(s.searches.retries), len(s.meter.unlocated))
	}
}

// TestLastTry: an attempt that failed too often is given up, although there is room for it.
func TestLastTry(t *testing.T) {
	s := newTestSource(Options{}, func() {})
	a := attempt{event: event{key: gen.DatapathContextKey{Tgid: 1}, cgroup: 1, qp: 1, device: 1, existed: true}}
	for a.tries = 1; a.tries < maxTries; a.tries++ {
		s.tracker.retryLater(a)
	}
	if len(s.searches.retries) != maxTries-1 || len(s.meter.unlocated) != 0 {
		t.Fatalf("%d attempts wait, %d are given up", len(s.searches.retries), len(s.meter.unlocated))
	}
	if s.tracker.retryLater(a); len(s.searches.retries) != maxTries-1 || len(s.meter.unlocated) != 1 {
		t.Errorf("%d attempts wait, %d are given up", len(s.searches.retries), len(s.meter.unlocated))
	}
}

// TestManyExisting: of the queue pairs that a process had before the start, a few on each device are searched.
func TestManyExisting(t *testing.T) {
	var all []event
	for i := range 100 {
		all = append(all, event{key: gen.DatapathContextKey{Tgid: 1}, device: uint32(i % 2), qp: uint64(i)})
	}
	all = append(all, event{key: gen.DatapathContextKey{Tgid: 2}, qp: 100})
	few := fewOfEach(all)
	if len(few) != 33 || few[31].qp != 31 || few[32].qp != 100 {
		t.Errorf("%d queue pairs, want 33: 16 of each device, and 1 of another process", len(few))
	}
}

// TestRepeatedTooOften: a process cannot have the sensor search for ever.
func TestRepeatedTooOften(t *testing.T) {
	path, _ := buildFake(t)
	k := startKernel(t)
	f := startFake(t, path)
	o := traceLifecycle(t, k, path)
	o.use(f, 0, 3)
	o.modify(f, 0, qpInit)
	var stat gen.DatapathContextStat
	if err := k.object.Coll.Maps[gen.DatapathMapContexts].Lookup(f.key, &stat); err != nil {
		t.Fatal(err)
	}
	key := f.key
	key.Number = stat.Number
	const most = 200
	for n := range most {
		qp, err := k.announceAgain(key)
		if errors.Is(err, errRepeated) {
			if n == 0 {
				t.Error("never announced again")
			}
			break
		}
		if err != nil || qp != f.qp {
			t.Fatalf("%#x, %v, want %#x", qp, err, f.qp)
		}
		o.modify(f, 0, qpInit)
		if n == most-1 {
			t.Errorf("announced again %d times", most)
		}
	}
	o.modify(f, 0, qpInit)
	before := k.events.AvailableBytes()
	o.modify(f, 0, qpInit)
	if after := k.events.AvailableBytes(); before == 0 || after != before {
		t.Errorf("%d bytes of events, then %d", before, after)
	}
	o.destroy(f, 0)
	if err := k.object.Coll.Maps[gen.DatapathMapContexts].Lookup(f.key, &stat); err != nil || stat.Qp != 0 {
		t.Errorf("%#x, %v: the queue pair was destroyed", stat.Qp, err)
	}
	key.Number++
	if _, err := k.announceAgain(key); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("another context: %v", err)
	}
}
