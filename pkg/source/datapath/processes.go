// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// reap lets go of the processes that have ended, now and then.
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
	for id, f := range s.files {
		// One whose probes are still going is the one that comes back.
		if len(f.paths) == 0 && !f.closing[budget.Post].Load() && !f.closing[budget.Poll].Load() {
			delete(s.files, id)
		}
	}
	s.updateChosen()
}

// unseen are the processes that ended before they could be seen. Those that
// live, and pay for probes by calls that nobody asked for, are seen now.
func (s *Source) checkUnobserved() (over []uint32) {
	told := map[uint32]bool{}
	s.mu.Lock()
	err := errors.Join(
		s.kernel.contexts(func(key gen.DatapathContextKey, _ *gen.DatapathContextStat) { told[key.Tgid] = true }),
		s.kernel.unknownCosts(func(tgid uint32, _ *gen.DatapathUnknownCost) { told[tgid] = true }))
	s.mu.Unlock()
	if err != nil {
		s.opts.Logger.Debug("reading the maps of the data path", zap.Error(err))
	}
	for tgid := range told {
		if s.processes[int(tgid)] != nil {
			continue
		}
		p, err := locate.OpenProcess(s.opts.Procfs, int(tgid))
		switch {
		case err == nil:
			p.Close()
			s.observe(event{key: gen.DatapathContextKey{Tgid: tgid}})
		case errors.Is(err, model.ErrAbsent):
			over = append(over, tgid)
		}
	}
	return over
}

// end takes leave of a process: probes of a file go with the last that maps it.
func (s *Source) removeProcess(pid int, w *watched) {
	for _, f := range s.files {
		delete(f.paths, pid)
		if len(f.paths) > 0 {
			continue
		}
		f.probed = [budget.Groups]uint64{}
		for c := range budget.Groups {
			if f.on(c) {
				f.detach(c, &s.detaching)
			}
		}
	}
	delete(s.processes, pid)
	w.release()
}

// dismiss lets go of the process, now or when nobody looks into it any more.
func (w *watched) release() {
	if w.ended = true; !w.searching {
		w.Close()
	}
}

// bury keeps the totals of processes that are gone and drops the rest.
func (s *Source) removeContexts(tgids ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.drain()
	over := map[uint32]*endedProcess{}
	for _, tgid := range tgids {
		over[tgid] = &endedProcess{spent: s.budget.SwitchingCost(int(tgid))}
	}
	err = errors.Join(err, s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		b := over[key.Tgid]
		if b == nil {
			return
		}
		b.cgroup = stat.Cgroup
		b.contexts = append(b.contexts, key)
		b.spent += time.Duration(stat.SpentNs[budget.Post] + stat.SpentNs[budget.Poll])
		if s.wasLate(key, stat) {
			s.late++
		}
		delete(s.contexts, key)
	}))
	for tgid, b := range over {
		err = errors.Join(err, s.kernel.remove(tgid, b.contexts...))
		if len(b.contexts) > 0 {
			s.fold.finish(int(tgid), b.cgroup, b.spent)
		}
		s.fold.endProcess(tgid)
	}
	if err != nil {
		s.opts.Logger.Debug("not all of what processes counted last is known", zap.Error(err))
	}
}

// A burial is what a process that is gone leaves.
type endedProcess struct {
	contexts []gen.DatapathContextKey
	cgroup   uint64
	spent    time.Duration
}

// wasLate is isLate in the end. One that ended before its functions were found was
// late unless all that is probed was so before, and it was seen to post.
func (s *Source) wasLate(key gen.DatapathContextKey, stat *gen.DatapathContextStat) bool {
	if stat.Late == 0 || s.contexts[key].final {
		return s.isLate(key, stat)
	}
	for _, f := range s.files {
		if f.probed[budget.Post] == 0 || stat.LateNs < f.probed[budget.Post] {
			return true
		}
	}
	return stat.Hits[budget.Post] == 0
}
