// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"cmp"
	"context"
	"sync"
	"time"
)

const (
	// fast is how long a call may take to be made in turn the next time: a goroutine of its own costs about as much.
	fast = 300 * time.Microsecond
	// soon is how long calls wait behind a call that was fast the last time.
	soon = time.Millisecond
	// late is when a call no longer counts as one of Round.Limit.
	late = 100 * time.Millisecond
)

// A Round makes the calls of a scrape for many devices, and waits for all of them with one timer. One goroutine makes
// the calls that were fast the last time in turn, each other call has a goroutine. If a call of the first goroutine does
// not return at once, other goroutines make the calls behind it. So a call that hangs keeps one goroutine, as always, and
// delays no other call. A Round is for one use and one caller.
type Round struct {
	Limit int // goroutines, without those whose call is late; 0: MaxHanging

	mu    sync.Mutex
	turns []turn
	next  int           // the first turn that has not begun
	seen  int           // next at the last look
	crew  int           // goroutines that may run, as Limit
	left  int           // turns that have not ended
	done  chan struct{} // closed when all have ended
}

// A turn is a call, or two of a device, the second after the first.
type turn struct {
	first, second queued // second may be nil
	began         time.Time
	ended         bool
}

// queued is a *Pending of Call.Queue.
type queued interface {
	call()
	cancel()
	wasSlow() bool
	until() time.Time
}

// Queue is Start for a call that a Round makes. method names the call for Join.
func (c *Call[T]) Queue(method string, limit time.Duration, fn func() (T, error)) *Pending[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil || c.closed {
		return nil
	}
	return c.prepare(method, limit, fn)
}

// Here is Do in the goroutine of the caller, which may hang.
func (c *Call[T]) Here(method string, fn func() (T, error)) (T, error) {
	p := c.Queue(method, 0, fn)
	if p != nil {
		p.call()
	}
	return c.Answer(p)
}

// Answer returns the result of a queued call after the Round, and ErrStuck without a result.
func (c *Call[T]) Answer(p *Pending[T]) (T, error) {
	if !p.Returned() {
		var none T
		return none, ErrStuck
	}
	value, err := p.value, p.err
	c.keep(p)
	return value, err
}

// NewRound returns a Round for about n calls.
func NewRound(n, limit int) *Round { return &Round{Limit: limit, turns: make([]turn, 0, n)} }

// Add adds a call, which is not nil. second, if not nil, is made after it by the same goroutine.
func (r *Round) Add(first, second queued) {
	r.turns = append(r.turns, turn{first: first, second: second})
}

// Wait makes the calls. It returns when all have returned, or those that have not are past their deadlines, or ctx ends.
func (r *Round) Wait(ctx context.Context) {
	if len(r.turns) == 0 {
		return
	}
	r.begin()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	for wait := soon; wait > 0; {
		select {
		case <-r.done:
			return
		case <-ctx.Done():
			wait = 0
		case <-timer.C:
			wait = r.look(time.Now())
			timer.Reset(wait)
		}
	}
	r.abandon()
}

func (r *Round) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.done, r.crew = len(r.turns), make(chan struct{}), 1
	for i := range r.turns {
		if t := &r.turns[i]; t.first.wasSlow() || t.second != nil && t.second.wasSlow() {
			r.crew++
		}
	}
	r.crew = min(r.crew, r.limit())
	r.start(r.crew)
	r.seen = r.next
}

func (r *Round) limit() int { return cmp.Or(r.Limit, MaxHanging) }

// start starts at most n goroutines.
func (r *Round) start(n int) {
	for range n {
		if t := r.take(); t != nil {
			go r.work(t)
		}
	}
}

// work makes the calls of a turn, and of further turns.
func (r *Round) work(t *turn) {
	for t != nil {
		t.first.call()
		if t.second != nil {
			t.second.call()
		}
		t = r.after(t)
	}
}

// take returns the next turn; nil if all have begun.
func (r *Round) take() *turn {
	if r.next == len(r.turns) {
		return nil
	}
	t := &r.turns[r.next]
	r.next++
	t.began = time.Now()
	return t
}

// after ends a turn, and takes the next.
func (r *Round) after(t *turn) *turn {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.ended = true
	if r.left--; r.left == 0 {
		close(r.done)
	}
	return r.take()
}

// look starts goroutines for turns that wait behind others. It returns when to look again, or 0 if all deadlines passed.
func (r *Round) look(now time.Time) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == r.seen {
		r.crew = r.limit()
	}
	busy := 0
	for i := range r.turns {
		t := &r.turns[i]
		if t.ended {
			continue
		}
		if left := t.first.until().Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
		if i < r.next && now.Sub(t.began) < late {
			busy++
		}
	}
	r.start(r.crew - busy)
	r.seen = r.next
	switch {
	case r.next == len(r.turns): // only deadlines are left
	case r.crew < r.limit():
		wait = min(wait, soon)
	default:
		wait = min(wait, late)
	}
	return wait
}

// abandon cancels the calls that have not begun.
func (r *Round) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.next; i < len(r.turns); i++ {
		t := &r.turns[i]
		t.first.cancel()
		if t.second != nil {
			t.second.cancel()
		}
	}
	r.next = len(r.turns)
}
