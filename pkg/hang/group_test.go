// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A key that hangs blocks only itself, and is called again after it has returned.
func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string, int64]
		b := newBlocked()
		do := func(key string, f func() (int64, error)) func() (int64, error) {
			return func() (int64, error) { return g.Do(t.Context(), key, limit, f) }
		}
		took(t, "it hangs", do("a", b.call), 0, ErrStuck, limit)
		took(t, "it still hangs", do("a", b.call), 0, ErrStuck, 0)
		took(t, "another key", do("b", func() (int64, error) { return 9, nil }), 9, nil, 0)
		close(b.release)
		synctest.Wait()
		took(t, "it returned", do("a", b.call), 2, nil, 0)
		if _, err := do("a", func() (int64, error) { panic("driver") })(); err == nil || err.Error() != "panic: driver" {
			t.Errorf("it panics: %v", err)
		}
		if n := len(g.calls); n != 0 {
			t.Errorf("%d calls are kept", n)
		}
	})
}

// A full group makes no call while all calls hang. While a call may return in time, Start waits for it.
func TestGroupLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Group[int, int64]{Limit: 2}
		b := newBlocked()
		answer := func() (int64, error) { return 5, nil }
		do := func(key int, f func() (int64, error)) func() (int64, error) {
			return func() (int64, error) { return g.Do(t.Context(), key, limit, f) }
		}
		g.Start(t.Context(), 1, limit, b.call)
		g.Start(t.Context(), 2, limit, func() (int64, error) { time.Sleep(time.Second); return 0, nil })
		took(t, "a call returns while another waits", do(3, answer), 5, nil, time.Second)
		g.Start(t.Context(), 2, time.Minute, b.call)
		took(t, "no call returns", do(3, answer), 0, ErrStuck, limit)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took(t, "ctx ends", func() (int64, error) { return g.Do(ctx, 3, limit, answer) }, 0, ErrStuck, time.Second)
		time.Sleep(time.Minute)
		took(t, "all calls hang", do(3, answer), 0, ErrStuck, 0)
		close(b.release)
		synctest.Wait()
		took(t, "they returned", do(3, answer), 5, nil, 0)
	})
}

// The wait for a free slot counts toward the limit.
func TestGroupWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Group[int, int64]{Limit: 1}
		g.Start(t.Context(), 1, limit, func() (int64, error) { time.Sleep(3 * time.Second); return 0, nil })
		b := newBlocked()
		took(t, "3 s of waiting", func() (int64, error) { return g.Do(t.Context(), 2, limit, b.call) }, 0, ErrStuck, limit)
		close(b.release)
	})
}

// With many concurrent callers, at most Limit calls are in progress, at most one per key, and each call is answered.
func TestGroupConcurrently(t *testing.T) {
	const bound, keys = 3, 7
	g := Group[int, int]{Limit: bound}
	var running, most, answered atomic.Int64
	var busy [keys]atomic.Bool
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			for j := range 50 {
				key := (i + j) % keys
				got, err := g.Do(t.Context(), key, time.Minute, func() (int, error) {
					n := running.Add(1)
					defer running.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					if busy[key].Swap(true) {
						t.Errorf("two calls of key %d", key)
					}
					defer busy[key].Store(false)
					return key, nil
				})
				if err == nil && got != key {
					t.Errorf("key %d got the answer of %d", key, got)
				}
				if err == nil {
					answered.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := most.Load(); n > bound || n < 1 || answered.Load() == 0 {
		t.Errorf("%d calls at once, %d answered", n, answered.Load())
	}
}
