// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// listing is who used the GPUs at one moment, and what the GPUs told of it then.
type listing struct {
	at        time.Time
	processes []model.GPUProcess
	err       error
	gpus      map[string]model.GPU // by UUID; memory and engines only
}

// measured sets memory and engines of a GPU to what they were when its processes
// were listed, so that their shares are shares of it.
func (l *listing) measured(g *model.GPU) {
	if l == nil || g.Suspended || !g.Memory.Used.Known && g.Engines == nil {
		return
	}
	if then, ok := l.gpus[g.UUID]; ok {
		g.Memory, g.Engines, g.Listed = then.Memory, then.Engines, l.at
	}
}

// misses says that a GPU was not there yet when the processes were listed.
func (l *listing) misses(uuid string) bool {
	if l == nil {
		return false
	}
	_, ok := l.gpus[uuid]
	return !ok
}

// discover looks which cards there are: a card that came has a goroutine from then
// on, one that went has not.
func (s *Source) discover() []found {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	places := discover(s.o.Sysfs, s.parents)
	cards := make([]found, 0, len(places))
	for _, p := range places {
		i := slices.IndexFunc(s.cards, func(f found) bool { return f.path == p.path })
		if i >= 0 {
			cards = append(cards, found{s.cards[i].card, p})
			continue
		}
		cards = append(cards, found{newCard(&s.o, p.path, p.address), p})
	}
	for _, f := range s.cards {
		if !slices.ContainsFunc(cards, func(c found) bool { return c.card == f.card }) {
			f.stop()
		}
	}
	s.cards = cards
	if len(cards) == 0 {
		s.listed = nil // nobody lists, and it is not stuck
	}
	return cards
}

// run reads in the background what is slow, each Interval.
func (s *Source) run(ctx context.Context) {
	ticker := time.NewTicker(s.o.Interval)
	defer ticker.Stop()
	var calls hang.Call[*listing]
	var pending *hang.Pending[*listing] // the listing in progress
	var told string
	for {
		s.wholly(ctx)
		if gpus := s.known(); pending == nil && len(gpus) > 0 {
			pending = calls.Start(patience, func() (*listing, error) { return s.list(gpus), nil })
		}
		_, _ = pending.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if pending.Returned() { // a listing that comes late is used, too
			l, err := pending.Wait(ctx)
			if err != nil {
				l = &listing{at: time.Now(), err: err}
			}
			s.tell(l, &told)
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

// wholly has all cards read all of it, and waits for those that answer.
func (s *Source) wholly(ctx context.Context) {
	// It tells which nodes are partitions of what; before the cards, which need it.
	if nodes, err := s.kfd.topology(); err == nil || nodes != nil {
		s.mu.Lock()
		s.parents = renderParents(nodes)
		s.mu.Unlock()
	}
	timer := time.NewTimer(2 * patience)
	defer timer.Stop()
	var asked []<-chan struct{}
	for _, c := range s.discover() {
		if !c.overdue(time.Now()) {
			asked = append(asked, c.ask(wholly))
		}
	}
	for _, done := range asked {
		wait(ctx, timer, done)
	}
}

// known are the GPUs as they were read last.
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

// awake says that no GPU is suspended, or would be without us.
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
		l.gpus[g.UUID] = model.GPU{Memory: g.Memory, Engines: g.Engines}
	}
	l.processes, l.err = s.lister.list(gpus, l.at)
	return l
}

// tell makes a listing known; the same trouble is told once.
func (s *Source) tell(l *listing, told *string) {
	s.mu.Lock()
	s.listed = l
	s.mu.Unlock()
	if l.err == nil {
		*told = ""
	} else if l.err.Error() != *told {
		*told = l.err.Error()
		s.o.Logger.Warn("some users of GPUs are not known", zap.Error(l.err))
	}
}
