// SPDX-License-Identifier: Apache-2.0

package event

import (
	"slices"
	"sync"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxRecent     = 64  // events that are kept for viewers
	maxRecentText = 512 // bytes of a field of one
)

// recent keeps the last events of the node for viewers, whether the collector takes them or not.
type recent struct {
	mu   sync.Mutex
	last []model.RecentEvent // oldest first
}

// add keeps an event. Faults have a history of their own.
func (r *recent) add(ev *model.Event) {
	if ev.Fault != nil {
		return
	}
	one := model.RecentEvent{
		Time: ev.Time, Name: nameOf(ev), Text: shorten(sentence(ev), maxRecentText), Device: shorten(valid(ev.Device), maxRecentText),
		Reconciled: ev.Reconciled,
	}
	if ev.Container.ID != "" {
		one.Workload, one.ContainerID = shorten(identity.WorkloadOf(&ev.Container), maxRecentText), shorten(ev.Container.ID, maxRecentText)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) == maxRecent {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, one)
}

func (r *recent) list() []model.RecentEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]model.RecentEvent{}, r.last...)
}
