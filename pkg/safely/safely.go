// SPDX-License-Identifier: Apache-2.0

// Package safely starts the goroutines of sources: a panic does not end the sensor.
//
// Do runs a goroutine that outlives the call that starts it. A panic ends its work for good: Do records it, and the
// engine reports the source as failed. A Group has the goroutines for which a call waits; it passes a panic on to the
// call. Try is for calls themselves, such as constructors of sources.
package safely

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// ErrPanicked is the result of a goroutine that panicked.
var ErrPanicked = errors.New("panic")

// PanicError is a panic as an error.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Recovered returns the error for a value of recover. Only the deferred function may call it.
func Recovered(value any) *PanicError {
	if e, ok := value.(*PanicError); ok { // passed on by a Group
		return e
	}
	return &PanicError{value, debug.Stack()}
}

// Try calls f, and returns its panic.
func Try(f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Recovered(v)
		}
	}()
	f()
	return nil
}

// panics are the panics of goroutines, by source. Like the goroutines, they belong to the process.
var (
	mu     sync.Mutex
	panics = map[string]*record{}
)

type record struct {
	first *PanicError
	count uint64
}

// Do calls f, a source's goroutine, and records its panic.
func Do(source string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			add(source, Recovered(v))
		}
	}()
	f()
}

// Go is wg.Go for a source's goroutine that outlives the call.
func Go(wg *sync.WaitGroup, source string, f func()) {
	wg.Go(func() { Do(source, f) })
}

func add(source string, e *PanicError) {
	mu.Lock()
	defer mu.Unlock()
	r := panics[source]
	if r == nil {
		r = &record{first: e}
		panics[source] = r
	}
	r.count++
}

// Panicked returns the first panic in a source's goroutines, or nil, and their number.
func Panicked(source string) (first *PanicError, count uint64) {
	mu.Lock()
	defer mu.Unlock()
	if r := panics[source]; r != nil {
		return r.first, r.count
	}
	return nil, 0
}

// A Group is a sync.WaitGroup whose Wait panics if a goroutine panicked. The zero Group is ready to use.
type Group struct {
	wg    sync.WaitGroup
	mu    sync.Mutex
	first *PanicError
}

// Go calls f in a goroutine.
func (g *Group) Go(f func()) {
	g.wg.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				e := Recovered(v)
				g.mu.Lock()
				defer g.mu.Unlock()
				if g.first == nil {
					g.first = e
				}
			}
		}()
		f()
	})
}

// Wait waits for all goroutines. It panics with the first panic.
func (g *Group) Wait() {
	g.wg.Wait()
	if g.first != nil {
		panic(g.first)
	}
}

// Each calls f for 0 to n-1 in goroutines, at most limit at a time, and waits for all of them. It panics as Group.Wait does.
func Each(n, limit int, f func(i int)) {
	var g Group
	var next atomic.Int64
	for range min(n, limit) {
		g.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	g.Wait()
}
