// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/safely"
)

// Pending is a started call. A nil Pending is a call that was not made.
type Pending[T any] struct {
	method   string
	deadline time.Time
	timers   *timers // of the Call or Group
	fn       func() (T, error)
	end      func() // called at the end, for the Call or Group
	begin    func() // p.call, allocated once
	shared   bool   // somebody besides the starter may have it: a Call does not use it again
	slow     bool   // the call before this one was not fast
	took     time.Duration

	returned atomic.Bool   // value and err are set
	token    chan struct{} // holds a token from then on; a waiter that takes the token puts it back
	value    T
	err      error
}

func newPending[T any](t *timers, end func()) *Pending[T] {
	p := &Pending[T]{timers: t, end: end, token: make(chan struct{}, 1)}
	p.begin = p.call
	return p
}

func (p *Pending[T]) prepare(method string, deadline time.Time, fn func() (T, error)) {
	p.method, p.deadline, p.fn, p.took = method, deadline, fn, 0
}

func (p *Pending[T]) call() {
	began := time.Now()
	defer func() {
		if v := recover(); v != nil {
			p.err = safely.Recovered(v)
		}
		p.took = time.Since(began)
		p.end()
		p.returned.Store(true)
		p.token <- struct{}{}
	}()
	p.value, p.err = p.fn()
}

// cancel ends a call that has not begun. It has no result.
func (p *Pending[T]) cancel() { p.end() }

func (p *Pending[T]) wasSlow() bool { return p.slow }

func (p *Pending[T]) until() time.Time { return p.deadline }

// clear makes a returned call ready for another start. Nobody waits for it.
func (p *Pending[T]) clear() {
	var none T
	<-p.token
	p.value, p.err, p.fn = none, nil, nil
	p.returned.Store(false)
}

// Returned reports whether the call has returned.
func (p *Pending[T]) Returned() bool { return p != nil && p.returned.Load() }

// Wait waits until the call returns, its deadline has passed or ctx ends, and returns the call's result. Without a
// result the error is ErrStuck.
func (p *Pending[T]) Wait(ctx context.Context) (T, error) {
	if p == nil || !p.wait(ctx, p.deadline) {
		var none T
		return none, ErrStuck
	}
	return p.value, p.err
}

// wait waits until the call returns, until has come or ctx ends. It reports whether the call has returned.
func (p *Pending[T]) wait(ctx context.Context, until time.Time) bool {
	if p.Returned() {
		return true
	}
	left := time.Until(until)
	if left <= 0 {
		return false
	}
	timer := p.timers.start(left)
	defer p.timers.stop(timer)
	select {
	case <-p.token:
		p.token <- struct{}{}
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// overdue reports whether the deadline of the call has passed.
func (p *Pending[T]) overdue() bool { return !time.Now().Before(p.deadline) }

// timers keeps the timer of the last wait for the next wait: a sensor waits for dozens of calls per scrape.
type timers struct {
	mu   sync.Mutex
	idle *time.Timer
}

func (t *timers) start(d time.Duration) *time.Timer {
	t.mu.Lock()
	defer t.mu.Unlock()
	timer := t.idle
	if timer == nil {
		return time.NewTimer(d)
	}
	t.idle = nil
	timer.Reset(d)
	return timer
}

func (t *timers) stop(timer *time.Timer) {
	timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = timer
}
