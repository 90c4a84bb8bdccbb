// SPDX-License-Identifier: Apache-2.0

package event

import (
	"slices"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Reasons for the loss of an event.
const (
	lostOverflow = "overflow" // the queue was full
	lostRefused  = "refused"  // the collector refused its batch permanently
	lostRejected = "rejected" // the collector accepted its batch without it
	lostClosed   = "closed"   // the sensor stopped
)

// Reasons for a snapshot.
const (
	reasonStart     = "start"
	reasonGap       = "gap"       // events were lost
	reasonReconnect = "reconnect" // the receiver may have lost the earlier records
)

// kind is the kind of a record.
type kind int

const (
	happened kind = iota // an event
	begin                // of a snapshot
	member               // a container in it
	end                  // of a snapshot
)

// An entry is the content of a record. Its number is assigned in the queue and stays the same when it is sent again.
type entry struct {
	kind     kind
	seq      uint64
	observed time.Time
	event    model.Event // a member has only the container
	// Fields of a snapshot: its id (the number of its begin record), the number of containers, the reason, the events
	// lost before it; and for a member the devices that it has opened.
	snapshot uint64
	count    int
	reason   string
	lost     uint64
	opened   []string

	resent bool // sent before, and may have arrived
}

func (e *entry) size() int {
	c := &e.event.Container
	n := 512 + len(c.ID) + len(c.Name) + len(c.Namespace) + len(c.Pod) + len(c.Image) + len(c.ImageID)
	for k, v := range c.Labels {
		n += len(k) + min(len(v), maxValue)
	}
	for _, d := range c.Devices {
		n += len(d)
	}
	return n
}

// queue holds the entries to send, in order. size limits the events. At most one snapshot is in the queue; the node's
// containers limit it.
type queue struct {
	size int
	wake chan struct{} // has an element after an entry was queued

	mu      sync.Mutex
	started bool // the first snapshot was taken
	closed  bool
	seq     uint64
	entries []entry
	events  int    // in entries and in flight
	parts   int    // of a snapshot, in entries and in flight
	want    string // reason for the next snapshot, or empty
	lost    uint64 // lost events of the session

	sent, resent uint64
	dropped      map[string]uint64
}

func newQueue(size int) *queue {
	return &queue{
		size: size, wake: make(chan struct{}, 1), want: reasonStart,
		dropped: map[string]uint64{lostOverflow: 0, lostRefused: 0, lostRejected: 0, lostClosed: 0},
	}
}

// offer queues an event, or counts it as lost. A quarter of the queue is reserved for the ends of containers, which a
// snapshot cannot report later. Lost events have numbers, so that receivers see the gap.
func (q *queue) offer(ev model.Event, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.started || q.closed { // the first snapshot contains it; after the end there is no receiver
		return
	}
	q.seq++
	room := q.size
	if ev.Type != model.EventExit && ev.Type != model.EventOOM {
		room -= q.size / 4
	}
	if q.events >= room {
		q.gap(lostOverflow, 1)
		return
	}
	q.events++
	q.entries = append(q.entries, entry{seq: q.seq, observed: now, event: ev})
	q.signal()
}

// begun reports whether events are queued.
func (q *queue) begun() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.started && !q.closed
}

// snapshot queues the existing containers. It is called between two events.
func (q *queue) snapshot(containers []model.Container, opened func(id string) []string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	mark := entry{
		seq: q.seq + 1, observed: now, event: model.Event{Time: now},
		snapshot: q.seq + 1, count: len(containers), reason: q.want, lost: q.lost,
	}
	add := func(k kind, change func(*entry)) {
		q.seq++
		e := mark
		e.kind, e.seq = k, q.seq
		change(&e)
		q.entries = append(q.entries, e)
	}
	q.entries = slices.Grow(q.entries, len(containers)+2)
	add(begin, func(*entry) {})
	for i := range containers {
		add(member, func(e *entry) {
			e.event.Container, e.opened = containers[i], opened(containers[i].ID)
		})
	}
	add(end, func(*entry) {})
	q.parts += len(containers) + 2
	q.want = ""
	q.signal()
}

// due reports whether a snapshot is needed, and not yet queued or in flight.
func (q *queue) due() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.want != "" && q.parts == 0
}

func (q *queue) ask(reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.want == "" {
		q.want = reason
	}
}

// take removes and returns the next batch: at most records entries and about bytes.
func (q *queue) take(records, bytes int) []entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < min(records, len(q.entries)) {
		if bytes -= q.entries[n].size(); bytes < 0 && n > 0 {
			break
		}
		n++
	}
	batch := slices.Clone(q.entries[:n])
	clear(q.entries[:n]) // for the garbage collector
	q.entries = q.entries[n:]
	return batch
}

// delivered counts a batch that the collector accepted except for rejected records. The collector does not report
// which: the maximum possible number of events counts as lost.
func (q *queue) delivered(batch []entry, rejected int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	rejected = min(max(rejected, 0), len(batch))
	for i := range batch {
		if batch[i].resent {
			q.resent++
		}
	}
	q.sent += uint64(len(batch) - rejected)
	events := q.done(batch)
	if rejected > 0 {
		q.gap(lostRejected, min(rejected, events))
	}
}

func (q *queue) refused(batch []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gap(lostRefused, q.done(batch))
}

// abandon counts the events still queued as dropped.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped[lostClosed] += uint64(q.events)
	q.entries, q.events, q.parts, q.closed = nil, 0, 0, true
}

func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// done removes a batch from the counts, and returns its number of events.
func (q *queue) done(batch []entry) (events int) {
	for i := range batch {
		if batch[i].kind == happened {
			events++
		}
	}
	q.events -= events
	q.parts -= len(batch) - events
	return events
}

func (q *queue) gap(why string, events int) {
	q.lost += uint64(events)
	q.dropped[why] += uint64(events)
	q.want = reasonGap
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) losses() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) == 0
}

func (q *queue) stats() *model.EventStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &model.EventStats{Sent: q.sent, Resent: q.resent, Queued: uint64(max(q.events, 0)), Capacity: uint64(q.size)}
	for _, reason := range []string{lostClosed, lostOverflow, lostRefused, lostRejected} {
		s.Dropped = append(s.Dropped, model.Loss{Reason: reason, Count: q.dropped[reason]})
	}
	return s
}
