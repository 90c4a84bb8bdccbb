// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// listing is the list of GPU processes.
type listing = drm.Listing[measured]

// measured has the memory and engines of the GPUs at the moment of a listing.
type measured struct {
	gpus  map[string]model.GPU // by UUID; memory and engines only
	pools pools
}

// measure sets the memory and engines of a GPU to the values of a listing, so that the
// shares of its processes add up to them.
func measure(g *model.GPU, l *listing) {
	if l == nil || g.Suspended || !g.Memory.Used.Known && g.Engines == nil {
		return
	}
	if then, ok := l.GPUs.gpus[g.UUID]; ok {
		g.Memory, g.GTT, g.UsesGTT, g.Engines, g.Listed = then.Memory, then.GTT, then.UsesGTT, then.Engines, l.At
	}
}

// discover updates the list of cards: it starts a goroutine for each new card and stops the goroutines of removed cards.
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
		s.listings.Forget()
	}
	return cards
}

// prepare reads slow values, and returns what lists the processes of the GPUs.
func (s *Source) prepare(ctx context.Context) func() *listing {
	s.readSlow(ctx)
	gpus := s.known()
	if len(gpus) == 0 {
		return nil
	}
	return func() *listing { return s.list(gpus) }
}

// readSlow forces a full read of every card and waits for the cards that answer.
func (s *Source) readSlow(ctx context.Context) {
	// The topology maps render nodes to partitions. The cards depend on it.
	if nodes, err := s.kfd.topology(); err == nil || nodes != nil {
		s.mu.Lock()
		s.parents = renderParents(nodes)
		s.mu.Unlock()
	}
	timer := time.NewTimer(2 * drm.ScrapeTimeout)
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
	l := &listing{At: time.Now(), GPUs: measured{gpus: map[string]model.GPU{}}}
	for _, g := range gpus {
		l.GPUs.gpus[g.UUID] = model.GPU{Memory: g.Memory, GTT: g.GTT, UsesGTT: g.UsesGTT, Engines: g.Engines}
	}
	l.Processes, l.Err = s.lister.list(gpus, l.At)
	l.GPUs.pools = s.lister.pools
	awake := slices.DeleteFunc(slices.Clone(gpus), func(g model.GPU) bool { return g.Suspended })
	s.meter.Add(l.At, s.o.Interval, awake, l.Processes, l.Err, func(p *model.GPUProcess) model.Optional {
		return s.lister.activity[drm.Use{GPU: p.GPU, PID: p.PID}]
	})
	return l
}
