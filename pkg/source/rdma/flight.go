// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errStuck says that a call did not come back in time, or that an earlier one
// has still not.
var errStuck = errors.New("no answer in time")

// flight lets one call at a time run in a goroutine of its own, so that whoever
// waits can give it up: a driver may hang inside a system call for ever. While
// it hangs no other is started, and nobody waits for it again.
type flight struct {
	mu     sync.Mutex
	busy   bool
	closed bool
	clean  func() // of the owner, when nothing is under way any more
}

// do runs fn and waits for it until ctx ends or the time is up.
func do[T any](ctx context.Context, f *flight, patience time.Duration, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if !f.begin() {
		return none, errStuck
	}
	done := make(chan result, 1)
	go func() {
		v, err := fn()
		f.end()
		done <- result{v, err}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
		return none, errStuck
	case <-ctx.Done():
		return none, errStuck
	}
}

func (f *flight) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy || f.closed {
		return false
	}
	f.busy = true
	return true
}

func (f *flight) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = false
	if f.closed && f.clean != nil {
		f.clean()
	}
}

// close ends the flight for good: clean runs now, or when the call under way
// comes back.
func (f *flight) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	if !f.busy && f.clean != nil {
		f.clean()
	}
}

// each runs fn for 0 to n-1, at most inFlight at a time, and waits for all.
func each(n int, fn func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range min(n, inFlight) {
		wg.Go(func() {
			for i := range next {
				fn(i)
			}
		})
	}
	wg.Wait()
}

// inFlight is how many devices are read at the same time.
const inFlight = 16

// backoff leaves alone what failed three times in a row: for a minute, then
// for twice as long each time, up to an hour.
type backoff struct {
	fails int
	until time.Time
}

const (
	patienceFails = 3
	shortestPause = time.Minute
	longestPause  = time.Hour
)

func (b *backoff) waiting(now time.Time) bool { return now.Before(b.until) }

func (b *backoff) failed(now time.Time) {
	b.fails++
	if n := b.fails - patienceFails; n >= 0 {
		b.until = now.Add(min(shortestPause<<min(n, 6), longestPause))
	}
}
