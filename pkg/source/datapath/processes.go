// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// removeEnded removes processes that have ended, once per removeInterval.
func (s *Source) removeEnded(now time.Time) {
	if now.Sub(s.removedAt) < removeInterval {
		return
	}
	s.removedAt = now
	var over []uint32
	for pid, w := range s.processes {
		if w.Exited() {
			s.removeProcess(pid, w)
			over = append(over, uint32(pid))
		}
	}
	over = append(over, s.checkUnobserved()...)
	if len(over) > 0 {
		s.removeContexts(over...)
	}
	s.removeClosed()
	s.checkKept()
	for id, f := range s.files {
		// A file with probes that are still being detached may be mapped again.
		if len(f.paths) == 0 && f.kept == nil && !f.closing[budget.Post].Load() && !f.closing[budget.Poll].Load() {
			delete(s.files, id)
		}
	}
	s.updateChosen()
}

// checkUnobserved returns processes in the kernel's maps that have ended before they
// were observed. Those that exist, and pay for probes, are observed now. It also
// corrects the number of contexts of each cgroup.
func (s *Source) checkUnobserved() (over []uint32) {
	found := map[uint32]model.CgroupID{}
	contexts := map[model.CgroupID]int32{}
	s.mu.Lock()
	err := s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		found[key.Tgid] = model.CgroupID(stat.Cgroup)
		contexts[model.CgroupID(stat.Cgroup)]++
	})
	if err == nil {
		err = s.kernel.recount(contexts)
	}
	err = errors.Join(err, s.kernel.unknownCosts(func(tgid uint32, _ *gen.DatapathUnknownCost) {
		if _, ok := found[tgid]; !ok {
			found[tgid] = 0 // known when it opens a context
		}
	}))
	s.mu.Unlock()
	if err != nil {
		s.opts.Logger.Debug("reading the maps of the data path", zap.Error(err))
	}
	for tgid, cgroup := range found {
		if s.processes[int(tgid)] != nil {
			continue
		}
		p, err := locate.OpenProcess(s.opts.Procfs, int(tgid))
		switch {
		case err == nil:
			p.Close()
			s.observe(event{key: gen.DatapathContextKey{Tgid: tgid}, cgroup: cgroup})
		case errors.Is(err, model.ErrAbsent):
			over = append(over, tgid)
		}
	}
	return over
}

// removeProcess removes a process. The probes of a file that is not kept are detached
// with the last process that maps it.
func (s *Source) removeProcess(pid int, w *watched) {
	for _, f := range s.files {
		f.leave(pid, &s.detaching)
		s.detachUnused(f)
	}
	delete(s.processes, pid)
	w.release()
}

// release closes the process, or has the running search close it.
func (w *watched) release() {
	if w.ended = true; !w.searching {
		w.Close()
	}
}

// removeContexts adds the last counts of processes that have ended to the series and
// removes their entries from the kernel's maps.
func (s *Source) removeContexts(tgids ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.drain()
	over := map[uint32]*endedProcess{}
	for _, tgid := range tgids {
		over[tgid] = &endedProcess{spent: s.budget.SwitchingCost(int(tgid))}
	}
	err = errors.Join(err, s.kernel.unknownCosts(func(tgid uint32, cost *gen.DatapathUnknownCost) {
		if b := over[tgid]; b != nil {
			b.spent += time.Duration(cost.SpentNs[budget.Post] + cost.SpentNs[budget.Poll])
		}
	}))
	err = errors.Join(err, s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		b := over[key.Tgid]
		if b == nil {
			return
		}
		b.cgroup = model.CgroupID(stat.Cgroup)
		b.contexts = append(b.contexts, key)
		b.spent += time.Duration(stat.SpentNs[budget.Post] + stat.SpentNs[budget.Poll])
		if s.wasLate(key, stat) {
			s.fold.markLate(key)
		}
	}))
	maps.DeleteFunc(s.contexts, func(key gen.DatapathContextKey, _ contextState) bool { return over[key.Tgid] != nil })
	for tgid, b := range over {
		err = errors.Join(err, s.kernel.removeProcess(tgid, b.contexts...))
		if len(b.contexts) > 0 {
			s.fold.finish(int(tgid), b.cgroup, b.spent)
		}
		s.fold.endProcess(tgid)
	}
	if err != nil {
		s.opts.Logger.Debug("reading the last counts of processes", zap.Error(err))
	}
}

// removeClosed adds the last counts of closed contexts to the series and removes their
// entries from the kernel's maps.
func (s *Source) removeClosed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var closed []reading
	err := s.kernel.eachContext(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, isClosed bool) {
		if isClosed {
			closed = append(closed, reading{key, *stat})
		}
	})
	if len(closed) > 0 {
		err = errors.Join(err, s.drain())
	}
	for i := range closed {
		c := &closed[i]
		if s.wasLate(c.key, &c.stat) {
			s.fold.markLate(c.key)
		}
		s.fold.endContext(c.key)
		delete(s.contexts, c.key)
		err = errors.Join(err, s.kernel.removeContext(c.key))
	}
	if err != nil {
		s.opts.Logger.Debug("reading the last counts of closed contexts", zap.Error(err))
	}
}

// endedProcess is what a process had when it ended.
type endedProcess struct {
	contexts []gen.DatapathContextKey
	cgroup   model.CgroupID
	spent    time.Duration
}

// wasLate is isLate for a context that has ended. If its functions were not found in
// time, it was late unless all files were probed before it was ready to send and its
// posts were seen.
func (s *Source) wasLate(key gen.DatapathContextKey, stat *gen.DatapathContextStat) bool {
	if stat.Late == 0 || s.contexts[key].final {
		return s.isLate(key, stat)
	}
	for _, f := range s.files {
		if since := f.probedSince(budget.Post, int(key.Tgid)); since == 0 || stat.LateNs < since {
			return true
		}
	}
	return stat.Hits[budget.Post] == 0
}
