// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxContainers = 16384 // that exist, of all runtimes
	maxDead       = 4096  // that are gone and still told
)

// registry is what is known of containers. It turns what runtimes tell into
// events: what exists and what it does changes by an event and in no other way,
// so that whoever replays them all knows the same. Names and labels are brought
// up to date without one. While a runtime cannot be reached nothing changes.
type registry struct {
	grace time.Duration
	now   func() time.Time

	mu       sync.Mutex
	live     map[key]*entry
	dead     []dead            // in the order of their deaths
	told     []model.Container // for Resolve, never changed; nil is to be built
	synced   bool
	lost     uint64
	watchers []func(model.Event)
}

// key tells containers apart: two runtimes may use the same id.
type key struct {
	socket int
	id     string
}

type entry struct {
	model.Container
	// ran is the first process of the run that has ended.
	ran int
}

type dead struct {
	key
	model.Container
	at time.Time
}

func newRegistry(grace time.Duration, now func() time.Time) *registry {
	return &registry{grace: grace, now: now, live: map[key]*entry{}}
}

// A socketFeed is the feed of one socket.
type socketFeed struct {
	*registry
	socket int
	// onSync is called after each list.
	onSync func()
}

func (f *socketFeed) sync(all []model.Container) {
	f.registry.sync(f.socket, all)
	f.onSync()
}

func (f *socketFeed) event(e model.Event) { f.registry.event(f.socket, e) }

// watch has f called with each event from now on.
func (r *registry) watch(f func(model.Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, f)
}

// snapshot calls f with what exists, between two events.
func (r *registry) snapshot(f func([]model.Container)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.list())
}

// list is what exists, in the order of sockets and ids.
func (r *registry) list() []model.Container {
	keys := make([]key, 0, len(r.live))
	for k := range r.live {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.socket, b.socket), cmp.Compare(a.id, b.id))
	})
	out := make([]model.Container, 0, len(keys)+len(r.dead))
	for _, k := range keys {
		out = append(out, r.live[k].Container)
	}
	return out
}

// containers is what exists and what is gone not long ago; nil before any
// runtime has told what it has. Nobody changes the slice.
func (r *registry) containers() []model.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bury()
	if r.told == nil && r.synced {
		r.told = r.list()
		for i := range r.dead {
			r.told = append(r.told, r.dead[i].Container)
		}
	}
	return r.told
}

// losses is what was told and not kept.
func (r *registry) losses() []model.Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []model.Loss{{Reason: "containers_full", Count: r.lost}}
}

// sync compares all that the runtime at socket has with what is known of it.
func (r *registry) sync(socket int, all []model.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told, r.synced = nil, true
	now := r.now()
	seen := make(map[string]bool, len(all))
	for i := range all {
		seen[bound(&all[i]).ID] = true
	}
	var gone []key
	for k := range r.live {
		if k.socket == socket && !seen[k.id] {
			gone = append(gone, k)
		}
	}
	slices.SortFunc(gone, func(a, b key) int { return cmp.Compare(a.id, b.id) })
	for _, k := range gone {
		r.remove(k, model.Event{Time: now, Reconciled: true})
	}
	for i := range all {
		c := &all[i]
		if c.ID == "" || !seen[c.ID] {
			continue
		}
		seen[c.ID] = false // of one that is listed twice the first is believed
		r.compare(key{socket, c.ID}, c, now)
	}
}

// event is what happened to one container, as its runtime tells it.
func (r *registry) event(socket int, e model.Event) {
	c := bound(&e.Container)
	if c.ID == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = nil
	if e.Time.IsZero() {
		e.Time = r.now()
	}
	k := key{socket, c.ID}
	switch {
	case e.Type == model.EventDelete:
		r.remove(k, e)
		return
	case e.Type != model.EventCreate && r.live[k] == nil &&
		slices.ContainsFunc(r.dead, func(d dead) bool { return d.key == k }):
		return // late news of one that is gone
	}
	known := r.admit(k, c, e)
	if known == nil || e.Type == model.EventCreate {
		return
	}
	r.happen(known, e)
}

// admit returns what is known of the container, which is created if nothing
// is; nil when there is no room.
func (r *registry) admit(k key, c *model.Container, e model.Event) *entry {
	known := r.live[k]
	if known != nil && replaced(&known.Container, c) {
		r.remove(k, model.Event{Time: e.Time, Reconciled: true})
		known = nil
	}
	if known != nil {
		describe(&known.Container, c)
		return known
	}
	if len(r.live) >= maxContainers {
		r.lost++
		return nil
	}
	r.dead = slices.DeleteFunc(r.dead, func(d dead) bool { return d.key == k })
	known = &entry{Container: *c}
	known.Status, known.PID, known.Health = model.ContainerCreated, 0, ""
	known.Started, known.Finished, known.ExitCode = time.Time{}, time.Time{}, nil
	r.live[k] = known
	r.emit(known, model.Event{
		Type: model.EventCreate, Time: e.Time, Reconciled: e.Reconciled || e.Type != model.EventCreate,
	})
	return known
}

// remove tells that a container does not exist any more, if it did.
func (r *registry) remove(k key, e model.Event) {
	known := r.live[k]
	if known == nil {
		return
	}
	if runs(known) {
		r.happen(known, model.Event{Type: model.EventExit, Time: e.Time, Reconciled: true})
	}
	e.Type = model.EventDelete
	delete(r.live, k)
	r.emit(known, e)
	known.Status = model.ContainerExited // also if it never ran: it does not wait to
	r.dead = append(r.dead, dead{k, known.Container, r.now()})
	r.bury()
}

// bury drops what is gone for long, and the oldest when there are too many.
func (r *registry) bury() {
	n := max(0, len(r.dead)-maxDead)
	for oldest := r.now().Add(-r.grace); n < len(r.dead) && r.dead[n].at.Before(oldest); {
		n++
	}
	if n > 0 {
		clear(r.dead[:n])
		r.dead, r.told = r.dead[n:], nil
	}
}

// emit tells an event and the state after it.
func (r *registry) emit(known *entry, e model.Event) {
	e.Container = known.Container
	for _, f := range r.watchers {
		f(e)
	}
}
