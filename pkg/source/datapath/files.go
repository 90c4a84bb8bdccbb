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
	// kept and home are nil if the probes end with the last process that maps the file.
	kept *locate.Kept
	home *locate.Process // the file is kept while this process exists
	// links are the attached probes of a group, nil if it is detached.
	links [budget.Groups]map[locate.Site]io.Closer
	// probed is the time since which a group is probed (CLOCK_MONOTONIC, ns), 0: never.
	probed [budget.Groups]uint64
	// switchedOn is the time of the last switch on.
	switchedOn [budget.Groups]uint64
	// closing: detached probes of a group are still in place.
	closing [budget.Groups]atomic.Bool
	// failed are the sites that could not be probed.
	failed map[locate.Site]failure
}

// failure is why and when a site could not be probed.
type failure struct {
	err error
	at  time.Time
}

func newFile(id locate.FileID) *file {
	return &file{id: id, paths: map[int]string{}, sites: map[locate.Site]bool{}, failed: map[locate.Site]failure{}}
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

// failure returns why a site of a group is not probed, nil if all are.
func (f *file) failure(group int) error {
	for s, failed := range f.failed {
		if groupOf(s.Function) == group {
			return failed.err
		}
	}
	return nil
}

// tracedSince returns the time since which all sites are probed without a break (CLOCK_MONOTONIC, ns), 0 if some are not.
func (f *file) tracedSince() uint64 {
	if len(f.failed) > 0 || !f.on(budget.Post) || !f.on(budget.Poll) {
		return 0
	}
	return max(f.switchedOn[budget.Post], f.switchedOn[budget.Poll])
}

// on reports whether a group is attached.
func (f *file) on(group int) bool { return f.links[group] != nil }

// attach probes all sites of a group that are not probed yet.
func (f *file) attach(group int, probe func(path string, s locate.Site) (io.Closer, error)) error {
	if f.links[group] == nil {
		f.links[group] = map[locate.Site]io.Closer{}
	}
	// Concurrently, as a process may be about to post.
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	var missing []locate.Site
	for s := range f.sites {
		if groupOf(s.Function) == group && f.links[group][s] == nil && time.Since(f.failed[s].at) >= retryInterval {
			missing = append(missing, s)
		}
	}
	for _, s := range missing {
		wg.Go(func() {
			link, err := f.open(s, probe)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				f.failed[s] = failure{err, time.Now()}
				errs = append(errs, err)
				return
			}
			delete(f.failed, s)
			f.links[group][s] = link
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// open probes a site through the kept file or any process that maps it: some may have
// ended.
func (f *file) open(s locate.Site, probe func(path string, s locate.Site) (io.Closer, error)) (io.Closer, error) {
	err := fmt.Errorf("no process maps it")
	paths := slices.Collect(maps.Values(f.paths))
	if f.kept != nil {
		paths = append(paths, f.kept.Path())
	}
	for _, path := range paths {
		var link io.Closer
		if link, err = probe(path, s); err == nil {
			return link, nil
		}
	}
	return nil, fmt.Errorf("probing offset %#x of a provider: %w", s.Offset, err)
}

// detach closes the probes of a group concurrently, as each waits for an RCU grace
// period. It does not wait for them: done does.
func (f *file) detach(group int, done *sync.WaitGroup) {
	links := f.links[group]
	f.links[group] = nil
	f.closing[group].Store(true)
	done.Go(func() {
		var wg sync.WaitGroup
		for _, link := range links {
			wg.Go(func() { _ = link.Close() })
		}
		wg.Wait()
		f.closing[group].Store(false)
	})
}
