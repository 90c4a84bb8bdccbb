// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxContainers = 16384 // existing containers of all runtimes
	maxRemoved    = 4096  // removed containers that containers() still returns
)

// registry holds the known containers and turns the reports of runtimes into events. Existence and state change only by
// an event, so a consumer that replays all events has the same state. Names, labels and a late exit code are updated
// without an event. While a runtime cannot be reached nothing changes.
//
// Several sockets may report the same container. The first in the order of sockets determines its state, the others
// only that it exists. When the first no longer has the container, the next continues from the known state.
type registry struct {
	grace time.Duration
	now   func() time.Time

	mu       sync.Mutex
	live     map[string]*entry // by id
	removed  []removed         // in the order of removal
	cached   []model.Container // for Resolve, never changed; nil if it must be rebuilt
	synced   bool
	lost     uint64
	watchers []func(model.Event)
}

type entry struct {
	model.Container
	// sockets are the sockets that report it, in order; the first determines the state.
	sockets []int
	// ran is the first process of the last run, which has ended.
	ran int
	// listed is when a list last changed the state, or zero after an event: an event that arrives right after a list
	// may be older.
	listed time.Time
}

type removed struct {
	model.Container
	at time.Time
}

func newRegistry(grace time.Duration, now func() time.Time) *registry {
	return &registry{grace: grace, now: now, live: map[string]*entry{}}
}

type socketFeed struct {
	*registry
	socket int
	// cgroupOf is Options.CgroupOf.
	cgroupOf func(pid int, id, path string) (cgroup string, own bool)
	// onSync is called after each list.
	onSync func()
}

func (f *socketFeed) sync(all []model.Container) {
	for i := range all {
		f.place(&all[i])
	}
	f.registry.sync(f.socket, all)
	f.onSync()
}

func (f *socketFeed) event(e model.Event) {
	f.place(&e.Container)
	f.registry.event(f.socket, e)
}

// place sets the cgroup of a container with a generated id: "" if the id is enough to find the container. A container
// with another name is known only by the path that the runtime returns.
func (f *socketFeed) place(c *model.Container) {
	switch {
	case !isID(c.ID):
		if f.cgroupOf != nil && c.Cgroup != "" {
			_, own := f.cgroupOf(0, c.ID, c.Cgroup)
			c.NoCgroup = !own
		}
	case f.cgroupOf != nil:
		var own bool
		c.Cgroup, own = f.cgroupOf(c.PID, c.ID, c.Cgroup)
		c.NoCgroup = !own
	case strings.Contains(c.Cgroup, c.ID):
		c.Cgroup = ""
	}
}

func (f *socketFeed) knows(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.live[id]
	return known != nil && known.sockets[0] == f.socket
}

func (r *registry) watch(f func(model.Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, f)
}

// snapshot calls f with the existing containers, between two events.
func (r *registry) snapshot(f func([]model.Container)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.list())
}

// cgroups returns the cgroups of existing containers that their paths alone do not name.
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

// list returns the existing containers, ordered by socket and id.
func (r *registry) list() []model.Container {
	out := make([]model.Container, 0, len(r.live)+len(r.removed))
	for _, known := range slices.SortedFunc(maps.Values(r.live), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.sockets[0], b.sockets[0]), cmp.Compare(a.ID, b.ID))
	}) {
		out = append(out, known.Container)
	}
	return out
}

// containers returns the existing and the recently removed containers, or nil before a runtime was listed. The slice
// must not be changed.
func (r *registry) containers() []model.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire()
	if r.cached == nil && r.synced {
		r.cached = r.list()
		for i := range r.removed {
			r.cached = append(r.cached, r.removed[i].Container)
		}
	}
	return r.cached
}

// label returns a label of a container, and whether all labels of the container and of its pod are known.
func (r *registry) label(id, name string) (value string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.live[id]; c != nil {
		return c.Labels[name], !c.LacksPod()
	}
	return "", false
}

func (r *registry) losses() []model.Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []model.Loss{{Reason: "containers_full", Count: r.lost}}
}

// sync compares the list of the runtime at socket with the known containers.
func (r *registry) sync(socket int, all []model.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cached, r.synced = nil, true
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
		seen[c.ID] = false // the first of duplicate entries counts
		r.compare(socket, c, now)
	}
}

func (r *registry) event(socket int, e model.Event) {
	c := bound(&e.Container)
	if c.ID == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cached = nil
	if e.Time.IsZero() {
		e.Time = r.now()
	}
	switch {
	case e.Type == model.EventDelete:
		r.remove(socket, c.ID, e)
		return
	case e.Type != model.EventCreate && r.live[c.ID] == nil &&
		slices.ContainsFunc(r.removed, func(d removed) bool { return d.ID == c.ID }):
		return // an event of a removed container
	}
	known := r.admit(socket, c, e)
	if known == nil || e.Type == model.EventCreate {
		return
	}
	r.happen(known, e)
}

// admit returns the known container, or creates a new container. It returns nil without room, or if another socket
// determines its state.
func (r *registry) admit(socket int, c *model.Container, e model.Event) *entry {
	known, sockets := r.live[c.ID], []int{socket}
	if known != nil {
		if i, found := slices.BinarySearch(known.sockets, socket); !found {
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
	r.removed = slices.DeleteFunc(r.removed, func(d removed) bool { return d.ID == c.ID })
	known = &entry{Container: *c, sockets: sockets}
	known.Status, known.PID, known.Health = model.ContainerCreated, 0, ""
	known.Started, known.Finished, known.ExitCode = time.Time{}, time.Time{}, nil
	r.live[c.ID] = known
	r.emit(known, model.Event{
		Type: model.EventCreate, Time: e.Time, Reconciled: e.Reconciled || e.Type != model.EventCreate,
	})
	return known
}

// remove emits the deletion of a container if it exists and no other socket reports it.
func (r *registry) remove(socket int, id string, e model.Event) {
	known := r.live[id]
	if known == nil {
		return
	}
	if i, found := slices.BinarySearch(known.sockets, socket); !found {
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
	known.Status = model.ContainerExited // even if it never ran: its creation is final
	r.removed = append(r.removed, removed{known.Container, r.now()})
	r.expire()
}

// expire drops containers that were removed before the grace time, and the oldest if there are too many.
func (r *registry) expire() {
	n := max(0, len(r.removed)-maxRemoved)
	for oldest := r.now().Add(-r.grace); n < len(r.removed) && r.removed[n].at.Before(oldest); {
		n++
	}
	if n > 0 {
		clear(r.removed[:n])
		r.removed, r.cached = r.removed[n:], nil
	}
}

func (r *registry) emit(known *entry, e model.Event) {
	e.Container = known.Container
	for _, f := range r.watchers {
		f(e)
	}
}
