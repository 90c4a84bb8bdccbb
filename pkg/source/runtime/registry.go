// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"maps"
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
// up to date without one, and so is an exit code that is learnt late. While a
// runtime cannot be reached nothing changes.
//
// Several sockets may tell of the same container. The first of them in the
// order of sockets is believed, and the others' word is that it exists: when
// the first has it no more, the next one goes on with what is known.
type registry struct {
	grace time.Duration
	now   func() time.Time

	mu       sync.Mutex
	live     map[string]*entry // by id
	dead     []dead            // in the order of their deaths
	told     []model.Container // for Resolve, never changed; nil is to be built
	synced   bool
	lost     uint64
	watchers []func(model.Event)
}

type entry struct {
	model.Container
	// sockets are those that tell of it, in their order; the first is believed.
	sockets []int
	// ran is the first process of the run that has ended.
	ran int
	// listed is when a list last changed it, zero once an event did: an event
	// that comes right after a list may be older than that.
	listed time.Time
}

type dead struct {
	model.Container
	at time.Time
}

func newRegistry(grace time.Duration, now func() time.Time) *registry {
	return &registry{grace: grace, now: now, live: map[string]*entry{}}
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

func (f *socketFeed) knows(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.live[id]
	return known != nil && known.sockets[0] == f.socket
}

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

// cgroups are those of the containers that exist whose ids are not in the paths.
func (r *registry) cgroups() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var paths []string
	for _, known := range r.live {
		if known.Cgroup != "" {
			paths = append(paths, known.Cgroup)
		}
	}
	return paths
}

// list is what exists, in the order of sockets and ids.
func (r *registry) list() []model.Container {
	out := make([]model.Container, 0, len(r.live)+len(r.dead))
	for _, known := range slices.SortedFunc(maps.Values(r.live), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.sockets[0], b.sockets[0]), cmp.Compare(a.ID, b.ID))
	}) {
		out = append(out, known.Container)
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
	var gone []string
	for id, known := range r.live {
		if !seen[id] && slices.Contains(known.sockets, socket) {
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	for _, id := range gone {
		r.remove(socket, id, model.Event{Time: now, Reconciled: true})
	}
	for i := range all {
		c := &all[i]
		if c.ID == "" || !seen[c.ID] {
			continue
		}
		seen[c.ID] = false // of one that is listed twice the first is believed
		r.compare(socket, c, now)
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
	switch {
	case e.Type == model.EventDelete:
		r.remove(socket, c.ID, e)
		return
	case e.Type != model.EventCreate && r.live[c.ID] == nil &&
		slices.ContainsFunc(r.dead, func(d dead) bool { return d.ID == c.ID }):
		return // late news of one that is gone
	}
	known := r.admit(socket, c, e)
	if known == nil || e.Type == model.EventCreate {
		return
	}
	r.happen(known, e)
}

// admit returns what is known of the container, which is created if nothing
// is; nil when there is no room, or another socket is believed.
func (r *registry) admit(socket int, c *model.Container, e model.Event) *entry {
	known, sockets := r.live[c.ID], []int{socket}
	if known != nil {
		if i, told := slices.BinarySearch(known.sockets, socket); !told {
			known.sockets = slices.Insert(known.sockets, i, socket)
		}
		if known.sockets[0] != socket {
			return nil
		}
		if !replaced(&known.Container, c) {
			describe(&known.Container, c)
			return known
		}
		known.sockets, sockets = sockets, known.sockets
		r.remove(socket, c.ID, model.Event{Time: e.Time, Reconciled: true})
	}
	if len(r.live) >= maxContainers {
		r.lost++
		return nil
	}
	r.dead = slices.DeleteFunc(r.dead, func(d dead) bool { return d.ID == c.ID })
	known = &entry{Container: *c, sockets: sockets}
	known.Status, known.PID, known.Health = model.ContainerCreated, 0, ""
	known.Started, known.Finished, known.ExitCode = time.Time{}, time.Time{}, nil
	r.live[c.ID] = known
	r.emit(known, model.Event{
		Type: model.EventCreate, Time: e.Time, Reconciled: e.Reconciled || e.Type != model.EventCreate,
	})
	return known
}

// remove tells that a container does not exist any more, if it did and no other
// socket has it.
func (r *registry) remove(socket int, id string, e model.Event) {
	known := r.live[id]
	if known == nil {
		return
	}
	if i, told := slices.BinarySearch(known.sockets, socket); !told {
		return
	} else if len(known.sockets) > 1 {
		known.sockets = slices.Delete(known.sockets, i, i+1)
		return
	}
	if runs(known) {
		r.happen(known, model.Event{Type: model.EventExit, Time: e.Time, Reconciled: true})
	}
	e.Type = model.EventDelete
	delete(r.live, id)
	r.emit(known, e)
	known.Status = model.ContainerExited // also if it never ran: it does not wait to
	r.dead = append(r.dead, dead{known.Container, r.now()})
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
