// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// maxAge is how old a state may be. The rules are evaluated each minute.
	maxAge = 15 * time.Second
	// timeout is for all queries of a state, a job or a search.
	timeout = 20 * time.Second
)

// Reader reads states.
type Reader struct {
	prometheus *Prometheus
	now        func() time.Time
	timeout    time.Duration
	visits     *visits

	mu   sync.Mutex
	last *reading // may not be done

	jobs  memo[JobName, *JobReport]
	found memo[string, []Found]
}

// reading is a state, complete when done is closed.
type reading struct {
	done  chan struct{}
	state *State
	at    time.Time // when it was completed
}

// NewReader returns a reader.
func NewReader(p *Prometheus) *Reader {
	return &Reader{prometheus: p, now: time.Now, timeout: timeout, visits: newVisits()}
}

// Enter takes a place for a client, by any name, that searches or asks for a job. It fails with ErrBusy if no place is free in time.
// The client leaves after it has shown the answer, whose memory belongs to its place.
func (r *Reader) Enter(ctx context.Context, client string) (leave func(), err error) {
	return r.visits.enter(ctx, client)
}

// Read returns a state that is at most 15 seconds old. Concurrent callers get the same state. If Prometheus does not
// answer, Read returns the last answered state, with the problems of the last attempt.
func (r *Reader) Read() *State {
	r.mu.Lock()
	before := r.last
	if before != nil && (before.at.IsZero() || r.now().Sub(before.at) < maxAge) {
		r.mu.Unlock()
		<-before.done
		return before.state
	}
	this := &reading{done: make(chan struct{})}
	r.last = this
	r.mu.Unlock()
	this.state = &State{Problems: []string{"no answer"}} // if the queries panic
	defer close(this.done)
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		this.at = r.now()
	}()
	this.state = r.readAfter(before)
	return this.state
}

// readAfter reads a state. A caller's context does not end the queries: others wait, too.
func (r *Reader) readAfter(before *reading) *State {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	now := r.now()
	s := r.read(ctx, now)
	if s.Empty() && before != nil && !before.state.Empty() {
		old := *before.state
		old.Problems = append([]string{fmt.Sprintf("no answers since %s", old.At.UTC().Format("15:04:05 UTC"))}, s.Problems...)
		s = &old
	}
	s.Tried = now
	return s
}

// Empty reports whether no query of the nodes was answered.
func (s *State) Empty() bool {
	return s.Nodes == nil && s.Jobs == nil && s.Alerts == nil && len(s.Problems) > 0
}
