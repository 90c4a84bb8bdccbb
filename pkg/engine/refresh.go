// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// fill reads, names and attributes, in this order. At most one call is in progress.
func (e *Engine) fill(r *Refresh) {
	defer close(r.done)
	readings := e.readAll()
	for _, got := range readings {
		r.Facts.Merge(got.facts)
	}
	e.resolveAll(&r.Facts, readings)
	e.retired.add(&r.Facts)
	r.Shares = e.ledger.Attribute(r.Facts)
	r.At = time.Now()
	r.States = e.sourceStates(readings, r.At)
	e.states.update(r.States, r.Facts.DeviceStates)
	e.forget(r)
	e.finished.Store(r)
}

// readAll reads all sources at once and waits for each no longer than its
// deadline. The facts of one that is stuck are absent.
func (e *Engine) readAll() []reading {
	e.awaitFirst()
	readings := make([]reading, len(e.readers))
	var wg sync.WaitGroup
	for i, r := range e.readers {
		switch {
		case r.Err != nil:
			readings[i].err = r.Err
		case r.Interval > 0:
			readings[i] = r.last()
		default:
			wg.Go(func() { readings[i] = r.read() })
		}
	}
	wg.Wait()
	return readings
}

// awaitFirst waits for the first reading of the sources that are read in the
// background, no longer than for one that is read here.
func (e *Engine) awaitFirst() {
	if e.waiting == nil {
		return
	}
	limit, cancel := context.WithTimeout(context.Background(), defaultDeadline)
	defer cancel()
	for _, ready := range e.waiting {
		select {
		case <-ready:
		case <-limit.Done():
		}
	}
	e.waiting = nil
}

// resolveAll asks the resolvers for the owners of all that was read. While one
// of them cannot answer, what it told last still holds: a figure must not move
// to nobody and back because a name was late.
func (e *Engine) resolveAll(facts *model.Snapshot, readings []reading) {
	cgroups, pids := subjects(facts)
	answers := make([]reading, len(e.readers))
	var wg sync.WaitGroup
	for i, r := range e.readers {
		if _, ok := r.Source.(Resolver); !ok || r.Err != nil {
			continue
		}
		if errors.Is(readings[i].err, ErrStuck) {
			answers[i].err = readings[i].err
			continue
		}
		wg.Go(func() { answers[i] = r.resolve(cgroups, pids) })
	}
	wg.Wait()
	complete := true
	// What a resolver tells of a container is newer than what was read.
	read := model.Snapshot{Containers: facts.Containers}
	facts.Containers = nil
	for i, a := range answers {
		facts.Merge(a.facts)
		if a.err != nil {
			complete = false
			readings[i].err = errors.Join(readings[i].err, a.err)
		}
		readings[i].took += a.took
	}
	if !complete {
		facts.Merge(model.Snapshot{Entities: missing(cgroups, facts.Entities, e.names)})
	}
	facts.Merge(read)
	facts.Containers = attribution.Containers(facts.Containers)
	if facts.Entities == nil {
		return
	}
	facts.Entities = attribution.Name(facts, e.names)
	if e.names == nil {
		e.names = map[uint64]model.Entity{}
	}
	maps.Copy(e.names, facts.Entities)
}

// missing are the names of the cgroups that have none now and had one before.
func missing(cgroups []uint64, now, before map[uint64]model.Entity) map[uint64]model.Entity {
	names := map[uint64]model.Entity{}
	for _, id := range cgroups {
		if _, ok := now[id]; ok {
			continue
		}
		if old, ok := before[id]; ok {
			names[id] = old
		}
	}
	return names
}

// subjects are the distinct cgroups and processes that facts speak of.
func subjects(facts *model.Snapshot) (cgroups []uint64, pids []int) {
	seen := map[uint64]struct{}{0: {}} // there is none of this number: of a process it is not known
	add := func(id uint64) {
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			cgroups = append(cgroups, id)
		}
	}
	each(facts.Objects, add, func(f *model.Objects) uint64 { return f.Cgroup })
	each(facts.Registered, add, func(f *model.Registered) uint64 { return f.Cgroup })
	each(facts.Verbs, add, func(f *model.Verb) uint64 { return f.Cgroup })
	each(facts.VerbErrors, add, func(f *model.VerbError) uint64 { return f.Cgroup })
	each(facts.RDMACgroups, add, func(f *model.RDMACgroup) uint64 { return f.Cgroup })
	each(facts.Traffic, add, func(f *model.Traffic) uint64 { return f.Cgroup })
	each(facts.WorkRequests, add, func(f *model.WorkRequests) uint64 { return f.Cgroup })
	each(facts.CompletionErrors, add, func(f *model.CompletionErrors) uint64 { return f.Cgroup })
	each(facts.Completions, add, func(f *model.Completions) uint64 { return f.Cgroup })
	each(facts.Sampling, add, func(f *model.Sampling) uint64 { return f.Cgroup })
	each(facts.Budgets, add, func(f *model.Budget) uint64 { return f.Cgroup })
	each(facts.Usages, add, func(f *model.Usage) uint64 { return f.Cgroup })
	each(facts.Namespaces, add, func(f *model.Namespace) uint64 { return f.Cgroup })
	each(facts.GPUProcesses, add, func(f *model.GPUProcess) uint64 { return f.Cgroup })
	each(facts.DeviceOpens, add, func(f *model.DeviceOpens) uint64 { return f.Cgroup })
	each(facts.DeviceHandles, add, func(f *model.DeviceHandles) uint64 { return f.Cgroup })
	seenPID := make(map[int]struct{})
	for i := range facts.Holdings {
		pid := facts.Holdings[i].PID
		if _, ok := seenPID[pid]; !ok {
			seenPID[pid] = struct{}{}
			pids = append(pids, pid)
		}
	}
	return cgroups, pids
}

func each[F any](facts []F, do func(uint64), cgroup func(*F) uint64) {
	for i := range facts {
		do(cgroup(&facts[i]))
	}
}

func (e *Engine) sourceStates(readings []reading, now time.Time) []model.SourceState {
	states := make([]model.SourceState, len(readings))
	for i, got := range readings {
		r := e.readers[i]
		if !got.at.IsZero() {
			r.answered = got.at
		}
		age := time.Duration(-1)
		if !r.answered.IsZero() {
			age = now.Sub(r.answered)
		}
		states[i] = model.SourceState{
			Source: r.Source.Name(),
			State:  stateOf(got.err),
			Reason: reason(got.err),
			Err:    got.err,
			Took:   got.took,
			Age:    age,
		}
	}
	return states
}
