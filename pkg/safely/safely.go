// SPDX-License-Identifier: Apache-2.0

// Package safely starts the goroutines of sources: a panic in one of them does not end the sensor.
//
// A goroutine that outlives the call which starts it runs in Do. A panic ends its work for good, so Do records the panic and the
// engine reports the source as failed from then on. A goroutine for which its call waits belongs to a Group, which passes the
// panic on to the call. Try is for calls themselves, such as the constructors of sources.
package safely

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// ErrPanicked is the result of a goroutine that ends by a panic.
var ErrPanicked = errors.New("panic")

// PanicError is a panic as an error.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Recovered returns the error for a value of recover. It is called by the deferred function.
func Recovered(value any) *PanicError {
	if e, ok := value.(*PanicError); ok { // of a Group
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

// panics are those of goroutines, by source. They belong to the process, as the goroutines do.
var (
	mu     sync.Mutex
	panics = map[string]*record{}
)

type record struct {
	first *PanicError
	count uint64
}

// Do calls f, which is the goroutine of a source, and records its panic.
func Do(source string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			add(source, Recovered(v))
		}
	}()
	f()
}

// Go is wg.Go for a goroutine of a source that outlives the call.
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

// Panicked returns the first panic in a goroutine of a source, nil if there was none, and their number.
func Panicked(source string) (first *PanicError, count uint64) {
	mu.Lock()
	defer mu.Unlock()
	if r := panics[source]; r != nil {
		return r.first, r.count
	}
	return nil, 0
}

// A Group is a sync.WaitGroup whose Wait panics if one of the goroutines did. The zero Group is ready.
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

// Wait waits for all goroutines. It panics with the first panic of them.
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
