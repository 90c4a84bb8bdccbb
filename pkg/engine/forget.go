// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// forget tells the sources which cgroups are over: those that hold figures
// first, those that hold names last, so that no figure is ever without its
// name. It waits for the next refresh while one of them is stuck.
func (e *Engine) forget(r *Refresh) {
	if len(r.Facts.Expired) == 0 {
		return
	}
	var figures, names []*sourceReader
	for i, rd := range e.readers {
		if _, ok := rd.Source.(Forgetter); !ok || rd.Err != nil {
			continue
		}
		if r.States[i].State == model.StateStuck {
			return
		}
		if _, ok := rd.Source.(Resolver); ok {
			names = append(names, rd)
		} else {
			figures = append(figures, rd)
		}
	}
	over := finished(&r.Facts)
	if len(over) == 0 {
		return
	}
	e.retired.forget(&r.Facts, over)
	for _, id := range over {
		delete(e.names, id)
	}
	for _, rd := range append(figures, names...) {
		rd.forget(over)
	}
}

func (r *sourceReader) forget(cgroups []uint64) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("panic in Forget", zap.Any("panic", p), zap.Stack("stack"))
		}
	}()
	r.Source.(Forgetter).Forget(cgroups)
}

// finished are the expired cgroups that hold nothing any more.
func finished(facts *model.Snapshot) []uint64 {
	holds := make(map[uint64]bool)
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
	var over []uint64
	for _, id := range facts.Expired {
		if !holds[id] {
			over = append(over, id)
		}
	}
	return over
}
