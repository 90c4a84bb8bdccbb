// SPDX-License-Identifier: Apache-2.0

// Package hang makes calls that may never return: a driver can block forever inside a system call.
//
// Each call runs in its own goroutine, or in one that makes several calls of a Round, so that the caller can stop
// waiting. A call that does not return keeps its goroutine and, in a system call, its thread. The number of calls in
// progress is therefore bounded: one for each Call, Group.Limit for each Group. A panic in a call becomes an error.
//
// No caller waits for a call after the call's deadline. Do and Join discard later results. Callers of Start can get
// them: they ask Pending.Returned from time to time.
package hang

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrStuck is the error of a call that has not returned in time, and of a call that is not made because an earlier call
// has not returned.
var ErrStuck = errors.New("no answer in time")

// StuckError is an ErrStuck that names the call.
type StuckError struct{ Method string }

// Error returns the text of ErrStuck: the caller adds the method where it matters.
func (e *StuckError) Error() string { return ErrStuck.Error() }

// Unwrap returns ErrStuck.
func (e *StuckError) Unwrap() error { return ErrStuck }

// Call makes one call at a time. The zero Call is ready to use. A Call is safe for concurrent use.
type Call[T any] struct {
	mu      sync.Mutex
	running *Pending[T]
	idle    *Pending[T] // returned, for the next call
	slow    bool        // the last call was not fast
	closed  bool
	release func() // nil unless Close was called while a call was in progress
	timers  timers
}

// Start calls fn unless a call is in progress, and does not wait. limit is the time for fn. Start returns nil if fn is
// not called.
func (c *Call[T]) Start(limit time.Duration, fn func() (T, error)) *Pending[T] {
	return c.begin(limit, fn, true)
}

func (c *Call[T]) begin(limit time.Duration, fn func() (T, error), shared bool) *Pending[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil || c.closed {
		return nil
	}
	p := c.start("", limit, fn)
	p.shared = shared
	return p
}

// Do calls fn and waits until it returns, limit has passed or ctx ends. The error is ErrStuck if fn has not returned,
// and immediately if a call is in progress.
func (c *Call[T]) Do(ctx context.Context, limit time.Duration, fn func() (T, error)) (T, error) {
	p := c.begin(limit, fn, false)
	value, err := p.Wait(ctx)
	c.keep(p)
	return value, err
}

// keep keeps p for the next call if p has returned and nobody else has it. A scrape makes dozens of calls.
func (c *Call[T]) keep(p *Pending[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Returned() && !p.shared {
		p.clear()
		c.idle = p
	}
}

// Join is Do for callers that share a Call. If a call of the same method is in progress, Join returns its result. If a
// call of another method is in progress, Join waits for it and then calls fn. A call has limit from its own start on;
// Join takes at most limit.
//
// The error is a StuckError with the method that has not returned.
func (c *Call[T]) Join(ctx context.Context, method string, limit time.Duration, fn func() (T, error)) (T, error) {
	var none T
	end := time.Now().Add(limit)
	for {
		p, mine := c.join(method, limit, fn)
		if p == nil { // the Call is closed
			return none, ErrStuck
		}
		if !p.wait(ctx, earlier(end, p.deadline)) {
			return none, &StuckError{p.method}
		}
		if mine {
			value, err := p.value, p.err
			c.keep(p)
			return value, err
		}
		if p.method == method {
			return p.value, p.err
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// join returns the call in progress, or a new one, which is the caller's.
func (c *Call[T]) join(method string, limit time.Duration, fn func() (T, error)) (p *Pending[T], mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		c.running.shared = true
	}
	if c.closed || c.running != nil {
		return c.running, false
	}
	return c.start(method, limit, fn), true
}

// Running reports whether a call is in progress.
func (c *Call[T]) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running != nil
}

// Close prevents further calls. It calls release once, when no call is in progress: now, or when the call in progress
// returns. release must not use the Call. A second Close does nothing.
func (c *Call[T]) Close(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.running != nil {
		c.release = release
		return
	}
	release()
}

func (c *Call[T]) start(method string, limit time.Duration, fn func() (T, error)) *Pending[T] {
	p := c.prepare(method, limit, fn)
	go p.begin()
	return p
}

// prepare occupies the Call for fn.
func (c *Call[T]) prepare(method string, limit time.Duration, fn func() (T, error)) *Pending[T] {
	p := c.idle
	if c.idle = nil; p == nil {
		p = newPending[T](&c.timers, c.returned)
	}
	c.running = p
	p.slow = c.slow
	p.prepare(method, time.Now().Add(limit), fn)
	return p
}

// returned ends the call in progress.
func (c *Call[T]) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow = c.running.took > fast
	c.running = nil
	if c.release != nil {
		c.release()
	}
}
