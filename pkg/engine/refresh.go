// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// fill reads the sources, names the cgroups and attributes the facts. Calls do not overlap.
func (e *Engine) fill(r *Refresh) {
	defer close(r.done)
	defer e.recovered(r)
	readings := e.readAll()
	for i := range readings {
		got := &readings[i].facts
		e.readers[i].holdings = e.readers[i].holdings || got.Objects != nil || got.Registered != nil
		r.Facts.Merge(got)
	}
	r.Facts.Counted = e.counted(readings)
	ids := r.Facts.CgroupIDs()
	e.resolveAll(&r.Facts, ids, readings)
	r.Facts.Containers = identity.Containers(r.Facts.Containers)
	merges := e.owners.Resolve(&r.Facts, ids)
	for _, m := range merges {
		e.ledger.Merge(m)
	}
	r.States = e.sourceStates(readings, time.Now())
	e.compareFacts(r)
	e.measureStates(r)
	r.Panics = e.countPanics()
	r.Dropped = e.countDropped(r.Facts.GPUs)
	e.counters.Credit(&r.Facts, &e.owners, merges)
	r.Shares = attribution.Attribute(&r.Facts, &e.owners, &e.counters, func(a *attribution.Attribution) {
		e.ledger.Settle(&r.Facts, a, &e.owners, time.Now())
		expired := e.owners.Expire(a.AssignedOwners())
		e.counters.Expire(expired)
		e.ledger.Expire(expired)
		a.Traffic = e.ledger.Shares(a.Use)
		a.Coverage = attribution.Coverage(&r.Facts, a, &e.owners, r.States, &e.ledger)
		a.Missed = e.ledger.MissedShares(a.Use)
	})
	r.Facts.DropSeries() // Counters has them
	r.Placement = placement.NewRefresh(&r.Facts, &r.Shares)
	r.At = time.Now()
	e.judgeFacts(r)
	e.states.update(r.States, r.Facts.DeviceStates)
	e.forget(r)
	e.finished.Store(r)
}

// compareFacts adds the devices that the node had and lacks. A panic loses only this comparison.
func (e *Engine) compareFacts(r *Refresh) {
	if e.inventory == nil {
		return
	}
	if err := safely.Try(func() { e.inventory.Compare(time.Now(), &r.Facts, r.States) }); err != nil {
		e.panics.Add(1)
		e.log.Error("comparing a refresh with the inventory failed", zap.Error(err))
	}
}

// measureStates adds devices that stay in an intermediate state for too long. A panic loses only these.
func (e *Engine) measureStates(r *Refresh) {
	if err := safely.Try(func() { e.linger.Update(time.Now(), &r.Facts) }); err != nil {
		e.panics.Add(1)
		e.log.Error("measuring intermediate states failed", zap.Error(err))
	}
}

// judgeFacts adds the verdicts. A panic loses only the verdicts.
func (e *Engine) judgeFacts(r *Refresh) {
	err := safely.Try(func() {
		r.Verdicts = e.judge.Update(verdict.Input{At: r.At, Facts: &r.Facts, Shares: &r.Shares, States: r.States, Placement: r.Placement})
	})
	if err != nil {
		r.Verdicts = verdict.Result{}
		e.panics.Add(1)
		e.log.Error("judging a refresh failed", zap.Error(err))
	}
}

// recovered makes a panic the error of the refresh.
func (e *Engine) recovered(r *Refresh) {
	if p := recover(); p != nil {
		panicked := safely.Recovered(p)
		r.Err = fmt.Errorf("panic in a refresh: %v", panicked.Value)
		e.panics.Add(1)
		r.At, r.Facts, r.Shares, r.States = time.Time{}, model.Snapshot{}, attribution.Attribution{}, nil
		r.Placement = nil
		e.log.Error(r.Err.Error(), zap.ByteString("stack", panicked.Stack))
	}
}

// readAll reads all sources, each up to its deadline. The facts of a stuck source are absent.
func (e *Engine) readAll() []reading {
	e.awaitFirst()
	readings := make([]reading, len(e.readers))
	calls := make([]method, len(e.readers))
	for i, r := range e.readers {
		switch {
		case r.Err != nil:
			readings[i].err = r.Err
		case r.Interval > 0:
			readings[i] = r.last()
		default:
			calls[i] = r.read
		}
	}
	e.callAll(calls, readings)
	return readings
}

// callAll makes the calls of sources, and sets their results in readings.
func (e *Engine) callAll(calls []method, readings []reading) {
	ctx, cancel := limited(e.base, defaultDeadline)
	defer cancel()
	round := hang.NewRound(len(e.readers), len(e.readers))
	var wg safely.Group
	for i, r := range e.readers {
		if calls[i].call != nil && !r.queue(ctx, round, calls[i]) {
			wg.Go(func() { readings[i] = r.do(calls[i]) })
		}
	}
	round.Wait(context.Background())
	for i, r := range e.readers {
		if calls[i].call != nil && r.pending != nil {
			readings[i] = r.answer(calls[i])
		}
	}
	wg.Wait()
}

// counted returns when the first of the readings began. Background sources have no cumulative values of owners and are
// left out.
func (e *Engine) counted(readings []reading) (first time.Time) {
	for i := range readings {
		got := &readings[i]
		if e.readers[i].Interval > 0 || got.at.IsZero() {
			continue
		}
		if begin := got.at.Add(-got.took); first.IsZero() || begin.Before(first) {
			first = begin
		}
	}
	return first
}

// awaitFirst waits for the first reading of the background sources, at most for the default deadline.
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

// resolveAll asks the resolvers for the names of the cgroups. While a resolver does not answer, identity.Table keeps
// the last names: a late name does not move values to another owner and back.
func (e *Engine) resolveAll(facts *model.Snapshot, ids []model.CgroupID, readings []reading) {
	answers := make([]reading, len(e.readers))
	calls := make([]method, len(e.readers))
	for i, r := range e.readers {
		if _, ok := r.Source.(Resolver); !ok || r.Err != nil {
			continue
		}
		if errors.Is(readings[i].err, ErrStuck) {
			continue
		}
		calls[i] = r.resolving(ids)
	}
	e.callAll(calls, answers)
	// A resolver's containers are newer than the containers that sources read.
	read := model.Snapshot{Containers: facts.Containers}
	facts.Containers = nil
	for i := range answers {
		a := &answers[i]
		facts.Merge(&a.facts)
		if a.err != nil {
			readings[i].err = errors.Join(readings[i].err, a.err)
		}
		readings[i].took += a.took
	}
	facts.Merge(&read)
}

// Dropped names impossible GPU values.
type Dropped struct{ Source, Value string }

// Compare orders by source and value.
func (d Dropped) Compare(o Dropped) int {
	return cmp.Or(strings.Compare(d.Source, o.Source), strings.Compare(d.Value, o.Value))
}

func (e *Engine) countDropped(gpus []model.GPU) map[Dropped]uint64 {
	for i := range gpus {
		for _, d := range gpus[i].Dropped {
			e.dropped[Dropped{gpus[i].Vendor.Row().Source, d.Value}]++
		}
	}
	return maps.Clone(e.dropped)
}

// countPanics returns the number of panics since the start.
func (e *Engine) countPanics() uint64 {
	n := e.panics.Load()
	for _, r := range e.readers {
		_, count := safely.Panicked(r.Source.Name())
		n += count
		if panicked(r.Err) {
			n++
		}
	}
	return n
}

func (e *Engine) sourceStates(readings []reading, now time.Time) []model.SourceState {
	states := make([]model.SourceState, len(readings))
	for i, got := range readings {
		r := e.readers[i]
		if err := r.broken(); err != nil {
			got.err = errors.Join(err, got.err)
		}
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
