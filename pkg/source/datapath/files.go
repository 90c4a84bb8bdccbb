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

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
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
	home *locate.Process // the file is kept while this process exists; nil: a file of an image
	// added: sites were added since the last step, which attaches probes.
	added  bool
	survey survey
	// barred is until when the file has no probes, as a process that maps it must not have any.
	barred time.Time
	// links are the attached probes of a group, nil if it is detached.
	links [groups]map[target]io.Closer
	// probed is the time since which a group is probed (CLOCK_MONOTONIC, ns), by the pid of target.
	probed [groups]map[int]uint64
	// attached is when each target was probed first (CLOCK_MONOTONIC, ns).
	attached map[target]uint64
	// closing: detached probes of a group are being closed.
	closing [groups]atomic.Bool
	// switchedOn is the time of the last switch on.
	switchedOn [groups]uint64
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

// due reports whether to try again: what is refused is refused again, and the states of the hooks have the reason.
func (f failure) due() bool { return !hook.Refused(f.err) && time.Since(f.at) >= retryInterval }

func newFile(id locate.FileID, perProcess bool) *file {
	return &file{
		id: id, perProcess: perProcess,
		paths: map[int]string{}, sites: map[locate.Site]bool{},
		attached: map[target]uint64{}, failed: map[target]failure{},
	}
}

// probedSince returns when the posts of a process and these of its sites were probed
// (CLOCK_MONOTONIC, ns), 0 while posts are not. A provider may have further functions for
// other processes. Those of a group that is detached do not count.
func (f *file) probedSince(pid int, sites []locate.Site) uint64 {
	if !f.perProcess {
		pid = 0
	}
	since := f.probed[posts][pid]
	for _, s := range sites {
		if since != 0 {
			since = max(since, f.attached[target{s, pid}])
		}
	}
	return since
}

func (f *file) pids() []int { return slices.Collect(maps.Keys(f.paths)) }

// targetPIDs returns the pids of targets.
func (f *file) targetPIDs() []int {
	if f.perProcess {
		return f.pids()
	}
	return []int{0}
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

// failure returns why a site of a group is not probed although the kernel has its program, nil if all are.
func (f *file) failure(group int) error {
	for t, failed := range f.failed {
		if groupOf(t.Function) == group && !hook.Refused(failed.err) {
			return failed.err
		}
	}
	return nil
}

// isProbed reports whether the calls of a process that post are counted, or are counted in surveys: no step is needed before a context of
// this file is counted.
func (f *file) isProbed(pid int) bool { return !f.added && f.probedSince(pid, nil) != 0 }

// tracedSince returns the time since which all sites are probed without a break (CLOCK_MONOTONIC, ns), 0 if some are not.
func (f *file) tracedSince() uint64 {
	if len(f.failed) > 0 || !f.on(posts) || !f.on(polls) {
		return 0
	}
	return max(f.switchedOn[posts], f.switchedOn[polls])
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
			if groupOf(s.Function) == group && f.links[group][t] == nil && f.failed[t].due() {
				missing[s] = append(missing[s], t)
			}
		}
	}
	// Sites concurrently, as a process may be about to post.
	var mu sync.Mutex
	var wg safely.Group
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
					if f.attached[t] == 0 {
						f.attached[t] = monotonic()
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// hasProbes reports whether probes are attached, or being detached. They keep the mount through which they were attached in use.
func (f *file) hasProbes() bool {
	for c := range groups {
		if f.on(c) || f.closing[c].Load() {
			return true
		}
	}
	return false
}

// openPaths returns the paths of the processes that map the file, and of the kept one:
// some processes may have ended. A file of an image is probed through its own path only.
func (f *file) openPaths() []string {
	if f.kept != nil && f.home == nil {
		return []string{f.kept.Path()}
	}
	paths := slices.Collect(maps.Values(f.paths))
	if f.kept != nil {
		paths = append(paths, f.kept.Path())
	}
	return paths
}

// probeFunc attaches the probes of a target through a path of the file.
type probeFunc func(path string, t target) (io.Closer, error)

// open probes a target.
func (f *file) open(t target, probe probeFunc) (io.Closer, error) {
	err := fmt.Errorf("no process maps it")
	for _, path := range f.openPaths() {
		var link io.Closer
		if link, err = probe(path, t); err == nil {
			return link, nil
		}
	}
	return nil, fmt.Errorf("probing offset %#x of a provider: %w", t.Offset, err)
}

// detach closes the probes of a group concurrently, as each waits for an RCU grace
// period. It does not wait for them: done does.
func (f *file) detach(group int, done *sync.WaitGroup) {
	links := f.links[group]
	f.links[group] = nil
	f.closing[group].Store(true)
	safely.Go(done, model.DataPathSource, func() {
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
	for group := range groups {
		delete(f.probed[group], pid)
		for t, link := range f.links[group] {
			if t.pid == pid {
				alone[t] = link
				delete(f.links[group], t)
			}
		}
	}
	maps.DeleteFunc(f.attached, func(t target, _ uint64) bool { return t.pid == pid })
	maps.DeleteFunc(f.failed, func(t target, _ failure) bool { return t.pid == pid })
	if len(alone) > 0 {
		safely.Go(done, model.DataPathSource, func() { closeLinks(alone) })
	}
}

// closeLinks closes probes, those of different sites concurrently, as each waits for an RCU
// grace period.
func closeLinks(links map[target]io.Closer) {
	of := map[locate.Site][]io.Closer{}
	for t, link := range links {
		of[t.Site] = append(of[t.Site], link)
	}
	var wg safely.Group
	for _, links := range of {
		wg.Go(func() {
			for _, link := range links {
				_ = link.Close()
			}
		})
	}
	wg.Wait()
}
