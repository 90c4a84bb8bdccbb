// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// forget drops the ended cgroups, first in the sources that count, last in the sources that name: no counter is ever
// without its name. A source that is stuck, or hangs in Forget, forgets them later. Until then only the names of the
// cgroups that it counts remain.
func (e *Engine) forget(r *Refresh) {
	counting, naming := e.forgetters()
	if e.holdingsKnown(r) {
		holding := holders(&r.Facts)
		for _, id := range r.Facts.Expired {
			if _, known := e.expired[id]; !known && !holding[id] {
				e.expired[id] = false
				owe(counting, id)
			}
		}
		for id, done := range e.expired {
			if !done && holding[id] { // it was unknown that the cgroup has objects
				delete(e.expired, id)
				withdraw(counting, id)
			}
		}
	}
	e.forgetOwed(counting, r)
	var counted []model.CgroupID
	for id, done := range e.expired {
		if !done && !owed(counting, id) {
			counted = append(counted, id)
			e.expired[id] = true
			owe(naming, id)
		}
	}
	if len(counted) > 0 {
		e.counters.Forget(counted)
		e.owners.Forget(counted)
	}
	e.forgetOwed(naming, r)
	for id, done := range e.expired {
		if done && !owed(naming, id) {
			delete(e.expired, id)
		}
	}
}

// forgetters returns the sources that forget: those that count, and those that name cgroups.
func (e *Engine) forgetters() (counting, naming []*sourceReader) {
	for _, rd := range e.readers {
		if _, ok := rd.Source.(Forgetter); !ok || rd.Err != nil {
			continue
		}
		if _, ok := rd.Source.(Resolver); ok {
			naming = append(naming, rd)
		} else {
			counting = append(counting, rd)
		}
	}
	return counting, naming
}

// owe makes sources forget a cgroup.
func owe(readers []*sourceReader, id model.CgroupID) {
	for _, rd := range readers {
		if rd.owes == nil {
			rd.owes = map[model.CgroupID]bool{}
		}
		rd.owes[id] = true
	}
}

// withdraw makes sources keep a cgroup.
func withdraw(readers []*sourceReader, id model.CgroupID) {
	for _, rd := range readers {
		delete(rd.owes, id)
	}
}

// holdingsKnown reports whether all sources of objects and memory have answered.
func (e *Engine) holdingsKnown(r *Refresh) bool {
	for i, rd := range e.readers {
		if rd.holdings && r.States[i].State == model.StateStuck {
			return false
		}
	}
	return true
}

// owed reports whether a source has not yet forgotten a cgroup.
func owed(readers []*sourceReader, id model.CgroupID) bool {
	for _, rd := range readers {
		if rd.owes[id] {
			return true
		}
	}
	return false
}

// forgetOwed lets the sources forget what they owe, except stuck sources.
func (e *Engine) forgetOwed(readers []*sourceReader, r *Refresh) {
	for i, rd := range e.readers {
		if len(rd.owes) > 0 && slices.Contains(readers, rd) && r.States[i].State != model.StateStuck {
			rd.forget()
		}
	}
}

// forget makes the source forget what it owes. After a panic it owes nothing.
func (r *sourceReader) forget() {
	ids := slices.Collect(maps.Keys(r.owes))
	_, err := r.forgetting.Do(context.Background(), r.Deadline, func() (struct{}, error) {
		r.Source.(Forgetter).Forget(ids)
		return struct{}{}, nil
	})
	if panicked, ok := errors.AsType[*safely.PanicError](err); ok {
		r.panics.Add(1)
		r.log.Error("panic in Forget", zap.Any("panic", panicked.Value), zap.ByteString("stack", panicked.Stack))
	}
	if !errors.Is(err, hang.ErrStuck) {
		clear(r.owes)
	}
}

// holders returns the cgroups with objects or registered memory.
func holders(facts *model.Snapshot) map[model.CgroupID]bool {
	holds := make(map[model.CgroupID]bool)
	for i := range facts.Objects {
		if facts.Objects[i].Current > 0 {
			holds[facts.Objects[i].Cgroup] = true
		}
	}
	for _, f := range facts.Registered {
		if f.Bytes > 0 {
			holds[f.Cgroup] = true
		}
	}
	return holds
}
