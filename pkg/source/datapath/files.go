// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// file is a provider that processes map. Its probes hit all of them, and stay attached
// while the file is kept, so that the next process is counted from its first call.
type file struct {
	id    locate.FileID
	paths map[int]string // path to open it, by process that maps it
	sites map[locate.Site]bool
	// perProcess: each process that maps it has probes of its own.
	perProcess bool
	// kept and home are nil if the probes end with the last process that maps the file.
	kept *locate.Kept
	home *locate.Process // the file is kept while this process exists
	// links are the attached probes of a group, nil if it is detached.
	links [budget.Groups]map[target]io.Closer
	// probed is the time since which a group is probed (CLOCK_MONOTONIC, ns), by the pid of target.
	probed [budget.Groups]map[int]uint64
	// closing: detached probes of a group are still in place.
	closing [budget.Groups]atomic.Bool
	// failed are the targets that could not be probed.
	failed map[target]failure
}

// target is a site in one process, or (pid 0) in all that map the file.
type target struct {
	locate.Site
	pid int
}

// failure is why and when a target could not be probed.
type failure struct {
	err error
	at  time.Time
}

func newFile(id locate.FileID, perProcess bool) *file {
	return &file{
		id: id, perProcess: perProcess,
		paths: map[int]string{}, sites: map[locate.Site]bool{}, failed: map[target]failure{},
	}
}

// probes returns the number of probed places of a group, returns included.
func (f *file) probes(group int) int {
	n := 0
	for s := range f.sites {
		if groupOf(s.Function) == group {
			n++
			if s.Function.Returns() {
				n++
			}
		}
	}
	return n
}

func (f *file) pids() []int { return slices.Collect(maps.Keys(f.paths)) }

// targetPIDs returns the pids of targets.
func (f *file) targetPIDs() []int {
	if f.perProcess {
		return f.pids()
	}
	return []int{0}
}

// probedSince returns the time since which a group is probed in a process, 0: never.
func (f *file) probedSince(group, pid int) uint64 {
	if !f.perProcess {
		pid = 0
	}
	return f.probed[group][pid]
}

// setProbed sets the time since which a group is probed, where it was not before.
func (f *file) setProbed(group int, at uint64) {
	if f.probed[group] == nil {
		f.probed[group] = map[int]uint64{}
	}
	for _, pid := range f.targetPIDs() {
		if f.probed[group][pid] == 0 {
			f.probed[group][pid] = at
		}
	}
}

// failure returns why a site of a group is not probed, nil if all are.
func (f *file) failure(group int) error {
	for t, failed := range f.failed {
		if groupOf(t.Function) == group {
			return failed.err
		}
	}
	return nil
}

// on reports whether a group is attached.
func (f *file) on(group int) bool { return f.links[group] != nil }

// attach probes all sites of a group that are not probed yet.
func (f *file) attach(group int, probe probeFunc) error {
	if f.links[group] == nil {
		f.links[group] = map[target]io.Closer{}
	}
	missing := map[locate.Site][]target{}
	for s := range f.sites {
		for _, pid := range f.targetPIDs() {
			t := target{s, pid}
			if groupOf(s.Function) == group && f.links[group][t] == nil && time.Since(f.failed[t].at) >= retryInterval {
				missing[s] = append(missing[s], t)
			}
		}
	}
	// Sites concurrently, as a process may be about to post.
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, targets := range missing {
		wg.Go(func() {
			for _, t := range targets {
				link, err := f.open(t, probe)
				mu.Lock()
				if err != nil {
					f.failed[t] = failure{err, time.Now()}
					errs = append(errs, err)
				} else {
					delete(f.failed, t)
					f.links[group][t] = link
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// probeFunc attaches the probes of a target through a path of the file.
type probeFunc func(path string, t target) (io.Closer, error)

// open probes a target through the kept file or any process that maps it: some may have
// ended.
func (f *file) open(t target, probe probeFunc) (io.Closer, error) {
	err := fmt.Errorf("no process maps it")
	paths := slices.Collect(maps.Values(f.paths))
	if f.kept != nil {
		paths = append(paths, f.kept.Path())
	}
	for _, path := range paths {
		var link io.Closer
		if link, err = probe(path, t); err == nil {
			return link, nil
		}
	}
	return nil, fmt.Errorf("probing offset %#x of a provider: %w", t.Offset, err)
}

// detach closes the probes of a group. It does not wait for them: done does.
func (f *file) detach(group int, done *sync.WaitGroup) {
	links := f.links[group]
	f.links[group] = nil
	f.closing[group].Store(true)
	done.Go(func() {
		closeLinks(links)
		f.closing[group].Store(false)
	})
}

// leave removes a process, and closes the probes that it has alone.
func (f *file) leave(pid int, done *sync.WaitGroup) {
	delete(f.paths, pid)
	if !f.perProcess {
		return
	}
	alone := map[target]io.Closer{}
	for group := range budget.Groups {
		delete(f.probed[group], pid)
		for t, link := range f.links[group] {
			if t.pid == pid {
				alone[t] = link
				delete(f.links[group], t)
			}
		}
	}
	maps.DeleteFunc(f.failed, func(t target, _ failure) bool { return t.pid == pid })
	if len(alone) > 0 {
		done.Go(func() { closeLinks(alone) })
	}
}

// closeLinks closes probes, those of different sites concurrently, as each waits for an RCU
// grace period.
func closeLinks(links map[target]io.Closer) {
	of := map[locate.Site][]io.Closer{}
	for t, link := range links {
		of[t.Site] = append(of[t.Site], link)
	}
	var wg sync.WaitGroup
	for _, links := range of {
		wg.Go(func() {
			for _, link := range links {
				_ = link.Close()
			}
		})
	}
	wg.Wait()
}
