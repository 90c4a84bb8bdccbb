// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// MaxHanging is how many calls of a Group may hang at the same time; each occupies a thread. TasksMax in the systemd
// unit has room for this number in each source.
const MaxHanging = 16

// Group makes calls for many keys, one at a time for each key, and bounds the number of hanging calls. The zero Group
// is ready to use. A Group is safe for concurrent use.
type Group[K comparable, T any] struct {
	Limit int // number of calls in progress, including hanging calls; 0: MaxHanging

	mu    sync.Mutex
	calls map[K]*Pending[T] // in progress
	freed chan struct{}     // closed when a call returns; nil without a waiting caller

	timers timers
}

// Start calls fn for key unless a call for key is in progress. If Limit calls are in progress, Start waits until a call
// returns, unless all are past their deadlines. limit is the time for the wait and fn. Start returns nil if fn is not
// called.
func (g *Group[K, T]) Start(ctx context.Context, key K, limit time.Duration, fn func() (T, error)) *Pending[T] {
	deadline := time.Now().Add(limit)
	for {
		p, freed := g.start(key, deadline, fn)
		if p != nil || freed == nil {
			return p
		}
		timer := g.timers.start(time.Until(deadline))
		select {
		case <-freed:
			g.timers.stop(timer)
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		g.timers.stop(timer)
		return nil
	}
}

// Do is Start, and waits as Pending.Wait does.
func (g *Group[K, T]) Do(ctx context.Context, key K, limit time.Duration, fn func() (T, error)) (T, error) {
	return g.Start(ctx, key, limit, fn).Wait(ctx)
}

// start returns a channel to wait for if the group is full, or neither a channel nor a call if waiting is useless.
func (g *Group[K, T]) start(key K, deadline time.Time, fn func() (T, error)) (*Pending[T], chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls[key] != nil {
		return nil, nil
	}
	if len(g.calls) >= cmp.Or(g.Limit, MaxHanging) {
		if g.hangs() {
			return nil, nil
		}
		if g.freed == nil {
			g.freed = make(chan struct{})
		}
		return nil, g.freed
	}
	if g.calls == nil {
		g.calls = map[K]*Pending[T]{}
	}
	p := newPending[T](&g.timers, func() { g.done(key) })
	g.calls[key] = p
	p.prepare("", deadline, fn)
	go p.begin()
	return p, nil
}

func (g *Group[K, T]) done(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, key)
	if g.freed != nil {
		close(g.freed)
		g.freed = nil
	}
}

func (g *Group[K, T]) hangs() bool {
	for _, p := range g.calls {
		if !p.overdue() {
			return false
		}
	}
	return true
}
