// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"maps"
	"sync"
	"time"
)

// maxKept is the number of jobs, and of searches, with kept answers.
const maxKept = 32

// memo keeps answers for maxAge. Each of the two memos has half of maxKeptBytes.
type memo[K comparable, V any] struct {
	mu   sync.Mutex
	kept map[K]*kept[V]
}

// kept is an answer, complete when done is closed.
type kept[V any] struct {
	done     chan struct{}
	at       time.Time // when it was completed; zero before
	answer   V
	problems []string
	bytes    int
}

// get returns the kept answer for a key, or asks for it. Concurrent callers for a key share the answer. The end of ctx
// ends the wait, but not ask: others wait for it.
func (m *memo[K, V]) get(ctx context.Context, key K, now func() time.Time, ask func() (V, []string, int)) (V, []string) {
	m.mu.Lock()
	maps.DeleteFunc(m.kept, func(_ K, k *kept[V]) bool { return !k.at.IsZero() && now().Sub(k.at) >= maxAge })
	k, ok := m.kept[key]
	if ok {
		m.mu.Unlock()
		select {
		case <-k.done:
			return k.answer, k.problems
		case <-ctx.Done():
			var unknown V
			return unknown, []string{ctx.Err().Error()}
		}
	}
	k = &kept[V]{done: make(chan struct{})}
	if m.kept == nil {
		m.kept = map[K]*kept[V]{}
	}
	m.kept[key] = k
	m.mu.Unlock()
	k.problems = []string{"no answer"} // if ask panics
	defer close(k.done)
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		k.at = now()
		m.shrink()
	}()
	k.answer, k.problems, k.bytes = ask()
	return k.answer, k.problems
}

// shrink drops the oldest answers until few enough and small enough answers are left.
func (m *memo[K, V]) shrink() {
	for {
		n, bytes := 0, 0
		var oldest K
		for key, k := range m.kept {
			if k.at.IsZero() {
				continue
			}
			if n == 0 || k.at.Before(m.kept[oldest].at) {
				oldest = key
			}
			n, bytes = n+1, bytes+k.bytes
		}
		if n <= maxKept && bytes <= maxKeptBytes/2 {
			return
		}
		delete(m.kept, oldest)
	}
}
