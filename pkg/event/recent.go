// SPDX-License-Identifier: Apache-2.0

package event

import (
	"slices"
	"sync"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxRecent     = 64  // kept events
	maxRecentText = 512 // bytes of a field of an event
)

// recent keeps the node's last events for viewers, independent of the collector.
type recent struct {
	mu   sync.Mutex
	last []model.RecentEvent // oldest first
}

// add keeps an event, except faults, which have their own history.
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
