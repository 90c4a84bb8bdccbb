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
	// forgetAfter is how long a container must not have been seen to be
	// forgotten: longer than anyone keeps the figures of one that is gone.
	forgetAfter = time.Hour
	maxOpeners  = 65536 // containers to remember
)

// devices remembers which container has opened which devices.
type devices struct {
	mu      sync.Mutex
	openers map[string]*opener
}

type opener struct {
	devices map[string]bool
	seen    time.Time
}

// update returns the events of what a tells of the first time: who holds a
// context of a device, or ever did, or called a verb, has opened it.
func (d *devices) update(a attribution.Attribution, now time.Time) []model.Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := make(map[string]*model.Container, len(a.Containers))
	for i := range a.Containers {
		c := a.Containers[i].Container
		told[c.ID] = c
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
		if c := told[o.ContainerID]; c != nil {
			ev.Container = *c
			ev.Container.Status, ev.Container.Health = "", "" // of then: it may be gone, and that was told
		} else {
			ev.Container = model.Container{
				ID: o.ContainerID, Namespace: o.Namespace, Pod: o.Pod, Name: o.Container,
			}
			if n := owner - 1; n < len(a.Infos) { // of each owner but the first
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

// has remembers that a container opened a device, and says whether that was
// known.
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

// opened are the devices of a container that were told, sorted.
func (d *devices) opened(id string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.openers[id]
	if o == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(o.devices))
}
