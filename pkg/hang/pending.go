// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"context"
	"time"

	"github.com/accelscope/accelscope/pkg/safely"
)

// Pending is a started call. A nil Pending is a call that was not made.
type Pending[T any] struct {
	method   string
	deadline time.Time
	returned chan struct{} // closed when value and err are set
	value    T
	err      error
}

func start[T any](method string, deadline time.Time, fn func() (T, error), done func()) *Pending[T] {
	p := &Pending[T]{method: method, deadline: deadline, returned: make(chan struct{})}
	go func() {
		defer close(p.returned)
		defer done()
		defer func() {
			if v := recover(); v != nil {
				p.err = safely.Recovered(v)
			}
		}()
		p.value, p.err = fn()
	}()
	return p
}

// Returned reports whether the call has returned.
func (p *Pending[T]) Returned() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.returned:
		return true
	default:
		return false
	}
}

// Wait waits until the call returns, its deadline has passed or ctx ends, and returns the call's result. Without a
// result the error is ErrStuck.
func (p *Pending[T]) Wait(ctx context.Context) (T, error) {
	if !p.wait(ctx) {
		var none T
		return none, ErrStuck
	}
	return p.value, p.err
}

// wait is Wait without the result. It reports whether the call has returned.
func (p *Pending[T]) wait(ctx context.Context) bool {
	if p.Returned() {
		return true
	}
	if p == nil || p.overdue() {
		return false
	}
	timer := time.NewTimer(time.Until(p.deadline))
	defer timer.Stop()
	select {
	case <-p.returned:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// overdue reports whether the deadline of the call has passed.
func (p *Pending[T]) overdue() bool { return !time.Now().Before(p.deadline) }
