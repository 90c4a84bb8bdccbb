// SPDX-License-Identifier: Apache-2.0

package event

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// forgetAfter is how long a container is remembered after it was last seen: longer than any value of a removed
	// container is kept.
	forgetAfter = time.Hour
	maxOpeners  = 65536 // containers to remember
)

// devices remembers which devices each container has opened.
type devices struct {
	mu      sync.Mutex
	openers map[string]*opener
}

type opener struct {
	devices map[string]bool
	seen    time.Time
}

// update returns an event for each container that opened a device for the first time. A container opened a device if it
// has or had a context of the device, or called a verb on it.
func (d *devices) update(a attribution.Attribution, now time.Time) []model.Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[string]*model.Container, len(a.Containers))
	for i := range a.Containers {
		c := a.Containers[i].Container
		known[c.ID] = c
		d.see(c.ID, now)
	}
	for i := range a.Owners {
		d.see(a.Owners[i].ContainerID, now)
	}
	var events []model.Event
	open := func(owner int, device string) {
		o := &a.Owners[owner]
		if o.ContainerID == "" || d.has(o.ContainerID, device, now) {
			return
		}
		ev := model.Event{Type: model.EventDevice, Time: now, Device: device}
		if c := known[o.ContainerID]; c != nil {
			ev.Container = *c
			ev.Container.Status, ev.Container.Health = "", "" // outdated: the container may have been removed since
		} else {
			ev.Container = model.Container{
				ID: o.ContainerID, Namespace: o.Namespace, Pod: o.Pod, Name: o.Container,
			}
			if n := owner - 1; n < len(a.Infos) { // the first owner has no Info
				i := &a.Infos[n]
				ev.Container.Runtime, ev.Container.PodUID, ev.Container.Image = i.Runtime, i.PodUID, i.Image
			}
		}
		events = append(events, ev)
	}
	for i := range a.Objects {
		if s := &a.Objects[i]; s.Type == model.Context && (s.Current > 0 || s.Created > 0) {
			open(s.Owner, s.Device)
		}
	}
	for i := range a.Verbs {
		if s := &a.Verbs[i]; s.Value.Count > 0 {
			open(s.Owner, s.Key.Device)
		}
	}
	for id, o := range d.openers {
		if age := now.Sub(o.seen); age > forgetAfter || age > 0 && len(d.openers) > maxOpeners {
			delete(d.openers, id)
		}
	}
	return events
}

// has notes that a container opened a device, and reports whether this was known.
func (d *devices) has(id, device string, now time.Time) bool {
	o := d.openers[id]
	if o == nil {
		if d.openers == nil {
			d.openers = map[string]*opener{}
		}
		o = &opener{devices: map[string]bool{}}
		d.openers[id] = o
	}
	o.seen = now
	known := o.devices[device]
	o.devices[device] = true
	return known
}

func (d *devices) see(id string, now time.Time) {
	if o := d.openers[id]; o != nil {
		o.seen = now
	}
}

func (d *devices) opened(id string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.openers[id]
	if o == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(o.devices))
}
