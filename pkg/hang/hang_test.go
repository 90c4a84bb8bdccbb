// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/safely"
)

const limit = 5 * time.Second

// blocked is a function that returns its value when release is closed, and counts its calls.
type blocked struct {
	release chan struct{}
	calls   atomic.Int64
}

func newBlocked() *blocked { return &blocked{release: make(chan struct{})} }

func (b *blocked) call() (int64, error) {
	n := b.calls.Add(1)
	<-b.release
	return n, nil
}

// took checks what a function returns and how long it takes.
func took(t *testing.T, what string, f func() (int64, error), want int64, wantErr error, wantTook time.Duration) {
	t.Helper()
	begin := time.Now()
	got, err := f()
	if got != want || !errors.Is(err, wantErr) {
		t.Errorf("%s: %d, %v; want %d, %v", what, got, err, want, wantErr)
	}
	if d := time.Since(begin); d != wantTook {
		t.Errorf("%s: took %v, want %v", what, d, wantTook)
	}
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		failure := errors.New("failure")
		do := func(n int64, err error) func() (int64, error) {
			return func() (int64, error) {
				return c.Do(t.Context(), limit, func() (int64, error) { time.Sleep(time.Second); return n, err })
			}
		}
		took(t, "a call that returns", do(7, nil), 7, nil, time.Second)
		took(t, "a value with an error", do(8, failure), 8, failure, time.Second)
	})
}

// Only one caller waits for a call that hangs, and only for its limit. A later result is discarded.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		b := newBlocked()
		do := func() (int64, error) { return c.Do(t.Context(), limit, b.call) }
		took(t, "it hangs", do, 0, ErrStuck, limit)
		took(t, "it still hangs", do, 0, ErrStuck, 0)
		if n := b.calls.Load(); n != 1 || !c.Running() {
			t.Errorf("%d calls, running %v", n, c.Running())
		}
		close(b.release)
		synctest.Wait()
		if c.Running() {
			t.Error("it runs on after it returned")
		}
		took(t, "it returned", do, 2, nil, 0)
	})
}

func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		b := newBlocked()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took(t, "ctx ends first", func() (int64, error) { return c.Do(ctx, limit, b.call) }, 0, ErrStuck, time.Second)
		took(t, "no new call", func() (int64, error) { return c.Do(t.Context(), limit, b.call) }, 0, ErrStuck, 0)
		close(b.release)
	})
}

func TestPanic(t *testing.T) {
	var c Call[int64]
	got, err := c.Do(t.Context(), limit, func() (int64, error) { panic("driver") })
	var p *safely.PanicError
	if got != 0 || !errors.As(err, &p) || err.Error() != "panic: driver" || !strings.Contains(string(p.Stack), "TestPanic") {
		t.Errorf("%d, %v", got, err)
	}
	if got, err := c.Do(t.Context(), limit, func() (int64, error) { return 3, nil }); got != 3 || err != nil {
		t.Errorf("after the panic: %d, %v", got, err)
	}
}

// Start does not wait. A result that exists when Wait is called counts, even after the deadline.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		b := newBlocked()
		p := c.Start(limit, b.call)
		if other := c.Start(limit, b.call); other != nil {
			t.Error("two calls at a time")
		} else if !other.Returned() {
			took(t, "a call that was not made", func() (int64, error) { return other.Wait(t.Context()) }, 0, ErrStuck, 0)
		}
		time.Sleep(2 * time.Second)
		took(t, "the rest of its limit", func() (int64, error) { return p.Wait(t.Context()) }, 0, ErrStuck, limit-2*time.Second)
		if p.Returned() {
			t.Error("it has not returned")
		}
		took(t, "past its deadline", func() (int64, error) { return p.Wait(t.Context()) }, 0, ErrStuck, 0)
		close(b.release)
		synctest.Wait()
		if !p.Returned() {
			t.Error("it has returned")
		}
		for range 2 {
			took(t, "kept", func() (int64, error) { return p.Wait(t.Context()) }, 1, nil, 0)
		}
	})
}

// Callers of a method share a call, whose deadline counts from its start.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		b := newBlocked()
		join := func() (int64, error) { return c.Join(t.Context(), "Read", limit, b.call) }
		var wg sync.WaitGroup
		for _, after := range []time.Duration{0, 3 * time.Second, limit, 2 * limit} {
			wg.Go(func() {
				time.Sleep(after)
				took(t, "joined after "+after.String(), join, 0, ErrStuck, max(limit-after, 0))
			})
		}
		wg.Wait()
		close(b.release)
		synctest.Wait()
		if n := b.calls.Load(); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}

		slow := func() (int64, error) { time.Sleep(4 * time.Second); return b.call() }
		for _, after := range []time.Duration{0, time.Second, 3 * time.Second} {
			wg.Go(func() {
				time.Sleep(after)
				took(t, "shared after "+after.String(), func() (int64, error) {
					return c.Join(t.Context(), "Read", limit, slow)
				}, 2, nil, 4*time.Second-after)
			})
		}
		wg.Wait()
	})
}

// A call of another method waits for the call in progress. The wait counts toward the caller's limit, but the call then
// has its full deadline.
func TestJoinAnotherMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		join := func(method string, value int64, d time.Duration) func() (int64, error) {
			return func() (int64, error) {
				return c.Join(t.Context(), method, limit, func() (int64, error) { time.Sleep(d); return value, nil })
			}
		}
		var wg sync.WaitGroup
		at := func(after time.Duration, f func()) {
			wg.Go(func() {
				time.Sleep(after)
				f()
			})
		}
		at(0, func() { took(t, "Read", join("Read", 1, 4*time.Second), 1, nil, 4*time.Second) })
		at(time.Second, func() { // its own call lasts from 4 s to 7 s
			took(t, "Resolve", join("Resolve", 2, 3*time.Second), 0, ErrStuck, limit)
		})
		at(6500*time.Millisecond, func() {
			took(t, "Resolve again", join("Resolve", 3, 0), 2, nil, 500*time.Millisecond)
		})
		wg.Wait()

		go join("Read", 1, time.Hour)() //nolint:errcheck // it hangs
		synctest.Wait()
		time.Sleep(limit)
		_, err := join("Close", 4, 0)()
		var stuck *StuckError
		if !errors.As(err, &stuck) || stuck.Method != "Read" || err.Error() != ErrStuck.Error() {
			t.Errorf("%#v", err)
		}
		time.Sleep(time.Hour)
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var idle Call[int64]
		released := 0
		release := func() { released++ }
		idle.Close(release)
		idle.Close(release)
		if released != 1 {
			t.Errorf("released %d times, want once, at once", released)
		}
		if p := idle.Start(limit, func() (int64, error) { return 1, nil }); p != nil {
			t.Error("a call after Close")
		}
		took(t, "Join after Close", func() (int64, error) {
			return idle.Join(t.Context(), "Read", limit, func() (int64, error) { return 1, nil })
		}, 0, ErrStuck, 0)

		var c Call[int64]
		b := newBlocked()
		c.Start(limit, b.call)
		c.Close(release)
		c.Close(release)
		if released != 1 {
			t.Error("released while a call is in progress")
		}
		close(b.release)
		synctest.Wait()
		if released != 2 {
			t.Errorf("released %d times, want 2", released)
		}
	})
}

func TestBackoff(t *testing.T) {
	var b Backoff
	now := time.Unix(1e9, 0)
	for i, minutes := range []time.Duration{0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60} {
		b.Failed(now)
		pause := minutes * time.Minute
		if pause > 0 && b.Left(now) != pause {
			t.Errorf("failure %d: %v are left, want %v", i+1, b.Left(now), pause)
		}
		if b.Waiting(now.Add(pause)) || pause > 0 && !b.Waiting(now.Add(pause-1)) {
			t.Errorf("failure %d: the pause is not %v", i+1, pause)
		}
		now = now.Add(pause)
	}
	if b = (Backoff{}); b.Waiting(now) {
		t.Error("it waits after a success")
	}
}

// A Call uses a returned call's memory again: no result, error or deadline of an earlier call is left in it.
func TestReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Call[int64]
		failed := errors.New("failed")
		for i := range int64(4) {
			answer := func() (int64, error) { return i, nil }
			took(t, "it answers", func() (int64, error) { return c.Do(t.Context(), limit, answer) }, i, nil, 0)
			took(t, "it fails", func() (int64, error) {
				return c.Join(t.Context(), "Read", limit, func() (int64, error) { return 0, failed })
			}, 0, failed, 0)
			if _, err := c.Do(t.Context(), limit, func() (int64, error) { panic("driver") }); err == nil || err.Error() != "panic: driver" {
				t.Errorf("it panics: %v", err)
			}
			b := newBlocked()
			took(t, "it hangs", func() (int64, error) { return c.Do(t.Context(), limit, b.call) }, 0, ErrStuck, limit)
			close(b.release)
			synctest.Wait()
			p := c.Start(limit, func() (int64, error) { return i + 100, nil })
			synctest.Wait()
			took(t, "the next call", func() (int64, error) { return c.Do(t.Context(), limit, answer) }, i, nil, 0)
			took(t, "a started call keeps its result", func() (int64, error) { return p.Wait(t.Context()) }, i+100, nil, 0)
		}
	})
}
