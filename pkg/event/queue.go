// SPDX-License-Identifier: Apache-2.0

package event

import (
	"slices"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Why an event did not arrive.
const (
	lostOverflow = "overflow" // the queue was full
	lostRefused  = "refused"  // the collector refused its batch for good
	lostRejected = "rejected" // the collector took its batch without it
	lostClosed   = "closed"   // the sensor ended
)

// Why a snapshot is sent.
const (
	reasonStart     = "start"
	reasonGap       = "gap"       // events were lost
	reasonReconnect = "reconnect" // who had the earlier ones may be gone
)

// kind says what an entry tells.
type kind int

const (
	happened kind = iota // an event
	begin                // of a snapshot
	member               // a container in it
	end                  // of a snapshot
)

// An entry is what one record tells. Its number is given when it is queued and
// stays, however often it is sent.
type entry struct {
	kind     kind
	seq      uint64
	observed time.Time
	event    model.Event // of a member only its container
	// The following are those of a snapshot: the number of its beginning, which
	// is its name, of how many containers, why, how many events were lost so far;
	// of a member the devices that it has opened.
	snapshot uint64
	count    int
	reason   string
	lost     uint64
	opened   []string

	resent bool // it was sent before, and nobody knows whether it arrived
}

// size is roughly the bytes of the record.
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

// queue keeps what is to be sent, in order. Events are bounded by size; there is
// one snapshot in it at most, which is bounded by the containers of the node.
type queue struct {
	size int
	wake chan struct{} // has an element after something was queued

	mu      sync.Mutex
	started bool // the first snapshot was taken
	closed  bool
	seq     uint64
	entries []entry
	events  int    // in entries and in flight
	parts   int    // of a snapshot, in entries and in flight
	want    string // why a snapshot is to be sent
	lost    uint64 // events, of the whole session

	sent, resent uint64
	dropped      map[string]uint64
}

func newQueue(size int) *queue {
	return &queue{
		size: size, wake: make(chan struct{}, 1), want: reasonStart,
		dropped: map[string]uint64{lostOverflow: 0, lostRefused: 0, lostRejected: 0, lostClosed: 0},
	}
}

// offer queues an event, or counts it as lost. A quarter of the queue is kept
// for what a snapshot cannot tell any more: how containers ended. An event that
// is lost has a number, too, so that its absence shows.
func (q *queue) offer(ev model.Event, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.started || q.closed { // the snapshot to come tells it; nobody is there to be told
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

// snapshot queues what exists now. It is called between two events.
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

// due says whether a snapshot is to be taken: one is wanted and no other under
// way.
func (q *queue) due() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.want != "" && q.parts == 0
}

// ask wants a snapshot; that something was lost is the better reason.
func (q *queue) ask(reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.want == "" {
		q.want = reason
	}
}

// take removes the next batch of at most records and roughly bytes.
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

// delivered books a batch that the collector took but for so many of it. It does
// not say which ones: as many events are lost as may be among them.
func (q *queue) delivered(batch []entry, rejected int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	rejected = min(max(rejected, 0), len(batch))
	events := 0
	for i := range batch {
		if batch[i].resent {
			q.resent++
		}
		if batch[i].kind == happened {
			events++
		}
	}
	q.sent += uint64(len(batch) - rejected)
	q.done(batch)
	if rejected > 0 {
		q.gap(lostRejected, min(rejected, events))
	}
}

// refused books a batch that will never arrive.
func (q *queue) refused(batch []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := 0
	for i := range batch {
		if batch[i].kind == happened {
			events++
		}
	}
	q.done(batch)
	q.gap(lostRefused, events)
}

// abandon counts what is still there as dropped.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped[lostClosed] += uint64(q.events)
	q.entries, q.events, q.parts, q.closed = nil, 0, 0, true
}

// stop takes no more events.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

func (q *queue) done(batch []entry) {
	for i := range batch {
		if batch[i].kind == happened {
			q.events--
		} else {
			q.parts--
		}
	}
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

// losses is how many events were lost so far.
func (q *queue) losses() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

// empty says whether nothing waits.
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
