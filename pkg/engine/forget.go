// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// forget drops the cgroups that ended: first in the sources that count, last in the sources
// that name, so that no counter is ever without its name. While one of the sources is
// stuck, forget waits for the next refresh.
func (e *Engine) forget(r *Refresh) {
	if len(r.Facts.Expired) == 0 {
		return
	}
	var counting, naming []*sourceReader
	for i, rd := range e.readers {
		if _, ok := rd.Source.(Forgetter); !ok || rd.Err != nil {
			continue
		}
		if r.States[i].State == model.StateStuck {
			return
		}
		if _, ok := rd.Source.(Resolver); ok {
			naming = append(naming, rd)
		} else {
			counting = append(counting, rd)
		}
	}
	ended := finished(&r.Facts)
	if len(ended) == 0 {
		return
	}
	for _, rd := range counting {
		rd.forget(ended)
	}
	e.counters.Forget(ended)
	e.owners.Forget(ended)
	for _, rd := range naming {
		rd.forget(ended)
	}
}

func (r *sourceReader) forget(cgroups []model.CgroupID) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("panic in Forget", zap.Any("panic", p), zap.Stack("stack"))
		}
	}()
	r.Source.(Forgetter).Forget(cgroups)
}

// finished returns the expired cgroups that hold no objects and no registered memory.
func finished(facts *model.Snapshot) []model.CgroupID {
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
	var ended []model.CgroupID
	for _, id := range facts.Expired {
		if !holds[id] {
			ended = append(ended, id)
		}
	}
	return ended
}
