// SPDX-License-Identifier: Apache-2.0

// Package hang makes calls that may never return: a driver can block inside a system call forever, and nothing ends the
// call from outside.
//
// Each call runs in its own goroutine, so that the caller can stop waiting for it. A call that does not return keeps
// its goroutine, and its thread if it is in a system call. So the number of calls in progress is bounded: one for each
// Call, Group.Limit for each Group. A panic in a call becomes an error.
//
// No caller waits past the deadline of the call. Do and Join discard a later result. Callers of Start can keep it: they
// ask Pending.Returned from time to time.
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

// StuckError is an ErrStuck that names the call without a return.
type StuckError struct{ Method string }

// Error is the text of ErrStuck: the caller adds the method if needed.
func (e *StuckError) Error() string { return ErrStuck.Error() }

// Unwrap returns ErrStuck.
func (e *StuckError) Unwrap() error { return ErrStuck }

// Call makes one call at a time. The zero Call is ready. A Call is safe for concurrent use.
type Call[T any] struct {
	mu      sync.Mutex
	running *Pending[T]
	closed  bool
	release func() // nil unless Close was called while a call was in progress
	end     func() // c.returned, allocated once
}

// Start calls fn unless a call is in progress, and does not wait for it. It returns nil if fn is not called. limit is
// the time that fn has.
func (c *Call[T]) Start(limit time.Duration, fn func() (T, error)) *Pending[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil || c.closed {
		return nil
	}
	return c.start("", limit, fn)
}

// Do calls fn and waits until it returns, limit has passed or ctx ends. The error is ErrStuck if fn has not returned by
// then, and at once if a call is in progress.
func (c *Call[T]) Do(ctx context.Context, limit time.Duration, fn func() (T, error)) (T, error) {
	return c.Start(limit, fn).Wait(ctx)
}

// Join is Do for callers that share a Call. If a call of the same method is in progress, Join waits for it and returns
// its result. If a call of another method is in progress, Join waits for it and then calls fn. A call has limit from
// its own start on, and Join takes no longer than limit altogether.
//
// The error is a StuckError with the method that has not returned.
func (c *Call[T]) Join(ctx context.Context, method string, limit time.Duration, fn func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		p := c.join(method, limit, fn)
		if !p.wait(ctx) {
			var none T
			if p == nil { // the Call is closed
				return none, ErrStuck
			}
			return none, &StuckError{p.method}
		}
		if p.method == method {
			return p.value, p.err
		}
	}
}

func (c *Call[T]) join(method string, limit time.Duration, fn func() (T, error)) *Pending[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.running != nil {
		return c.running
	}
	return c.start(method, limit, fn)
}

// Running reports whether a call is in progress.
func (c *Call[T]) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running != nil
}

// Close lets no further call start and calls release once, when no call is in progress: now, or when the call in
// progress returns. release must not use the Call. A second Close does nothing.
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
	if c.end == nil {
		c.end = c.returned
	}
	c.running = start(method, time.Now().Add(limit), fn, c.end)
	return c.running
}

func (c *Call[T]) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
	if c.release != nil {
		c.release()
	}
}
