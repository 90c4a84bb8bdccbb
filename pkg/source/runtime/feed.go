// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// feed receives the containers and events of a runtime. A driver calls sync after it has subscribed and listed, then
// event for each event, and sync again after each further list. The feed owns its arguments.
type feed interface {
	// sync receives the complete list of this socket. Differences from the known containers become events that are
	// marked Reconciled.
	sync(all []model.Container)
	// event receives an event: e.Container is the state after it, EventDelete removes the container.
	event(e model.Event)
	// knows reports whether a container of this socket is known to exist.
	knows(id string) bool
}

// afterEvents returns the containers of a list and their ids. touched holds the containers with events since the
// request, and whether each exists after the last event. These events determine the state of a container; the list adds
// only its names.
func afterEvents(listed []model.Container, touched map[string]bool) ([]model.Container, map[string]bool) {
	all, exists := listed[:0], make(map[string]bool, len(listed))
	for _, c := range listed {
		alive, ok := touched[c.ID]
		if ok && !alive {
			continue
		}
		if ok {
			c.Status, c.PID, c.Health, c.Started = "", 0, "", time.Time{}
		}
		all, exists[c.ID] = append(all, c), true
	}
	for id, alive := range touched {
		if alive && !exists[id] {
			all, exists[id] = append(all, model.Container{ID: id}), true
		}
	}
	return all, exists
}
