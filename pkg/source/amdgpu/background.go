// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// listing is the list of GPU processes, with the memory and engines of the GPUs at the same
// moment.
type listing struct {
	at        time.Time
	processes []model.GPUProcess
	err       error
	gpus      map[string]model.GPU // by UUID; memory and engines only
	pools     pools
}

// measured sets the memory and engines of a GPU to the values of the listing, so that the
// shares of its processes add up to them.
func (l *listing) measured(g *model.GPU) {
	if l == nil || g.Suspended || !g.Memory.Used.Known && g.Engines == nil {
		return
	}
	if then, ok := l.gpus[g.UUID]; ok {
		g.Memory, g.GTT, g.UsesGTT, g.Engines, g.Listed = then.Memory, then.GTT, then.UsesGTT, then.Engines, l.at
	}
}

// misses reports whether a GPU did not exist when the processes were listed.
func (l *listing) misses(uuid string) bool {
	if l == nil {
		return false
	}
	_, ok := l.gpus[uuid]
	return !ok
}

// discover updates the list of cards: it starts a goroutine for a new card and stops that of a
// removed one.
func (s *Source) discover(all []drm.Card) []found {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	places := discover(all, s.parents)
	cards := make([]found, 0, len(places))
	for _, p := range places {
		i := slices.IndexFunc(s.cards, func(f found) bool { return f.Path == p.Path })
		if i >= 0 {
			cards = append(cards, found{s.cards[i].card, p})
			continue
		}
		cards = append(cards, found{newCard(&s.o, p.Path, p.PCIAddress), p})
	}
	for _, f := range s.cards {
		if !slices.ContainsFunc(cards, func(c found) bool { return c.card == f.card }) {
			f.stop()
		}
	}
	s.cards = cards
	if len(cards) == 0 {
		s.listed = nil // nothing is listed, and the listing is not stuck
	}
	return cards
}

// run reads slow values in the background, every Interval.
func (s *Source) run(ctx context.Context) {
	ticker := time.NewTicker(s.o.Interval)
	defer ticker.Stop()
	var calls hang.Call[*listing]
	var pending *hang.Pending[*listing] // the listing in progress
	var logged string
	for {
		s.readSlow(ctx)
		if gpus := s.known(); pending == nil && len(gpus) > 0 {
			pending = calls.Start(scrapeTimeout, func() (*listing, error) { return s.list(gpus), nil })
		}
		_, _ = pending.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if pending.Returned() { // a late listing is used, too
			l, err := pending.Wait(ctx)
			if err != nil {
				l = &listing{at: time.Now(), err: err}
			}
			s.publish(l, &logged)
			pending = nil
		}
		s.begun.Do(func() { close(s.first) })
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// readSlow forces a full read of every card and waits for the cards that answer.
func (s *Source) readSlow(ctx context.Context) {
	// The topology maps render nodes to partitions. The cards depend on it.
	if nodes, err := s.kfd.topology(); err == nil || nodes != nil {
		s.mu.Lock()
		s.parents = renderParents(nodes)
		s.mu.Unlock()
	}
	timer := time.NewTimer(2 * scrapeTimeout)
	defer timer.Stop()
	var asked []<-chan struct{}
	all, _ := s.all.List()
	for _, c := range s.discover(all) {
		if !c.overdue(time.Now()) {
			asked = append(asked, c.ask(full))
		}
	}
	for _, done := range asked {
		wait(ctx, timer, done)
	}
}

// known returns the GPUs as of their last read.
func (s *Source) known() []model.GPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gpus []model.GPU
	for _, c := range s.cards {
		st := c.last()
		gpus = append(gpus, divide(st.gpu, st.partitions, c.place, "")...)
	}
	return gpus
}

// awake reports whether no GPU is suspended, or would be without the source's reads.
func (s *Source) awake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cards {
		if st := c.last(); st.sleeper || !st.read {
			return false
		}
	}
	return len(s.cards) > 0
}

func (s *Source) list(gpus []model.GPU) *listing {
	l := &listing{at: time.Now(), gpus: map[string]model.GPU{}}
	for _, g := range gpus {
		l.gpus[g.UUID] = model.GPU{Memory: g.Memory, GTT: g.GTT, UsesGTT: g.UsesGTT, Engines: g.Engines}
	}
	l.processes, l.err = s.lister.list(gpus, l.at)
	l.pools = s.lister.pools
	return l
}

// publish publishes a listing and logs a new error once.
func (s *Source) publish(l *listing, logged *string) {
	s.mu.Lock()
	s.listed = l
	s.mu.Unlock()
	if l.err == nil {
		*logged = ""
	} else if l.err.Error() != *logged {
		*logged = l.err.Error()
		s.o.Logger.Warn("listing the users of GPUs", zap.Error(l.err))
	}
}
