// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// removeEnded removes processes that have ended, once per removeInterval, after a step.
func (s *Source) removeEnded(now time.Time) {
	if now.Sub(s.removedAt) < removeInterval {
		return
	}
	s.removedAt = now
	var over []uint32
	s.loaded = s.loaded[:0]
	for _, w := range s.processes {
		s.loaded = append(s.loaded, w.Process)
	}
	locate.EachExited(s.loaded, func(i int) {
		pid := s.loaded[i].PID()
		s.removeProcess(pid, s.processes[pid])
		over = append(over, uint32(pid))
	})
	over = append(over, s.checkUnobserved()...)
	for pid := range s.absent {
		if s.processes[int(pid)] == nil { // otherwise another process has its number
			over = append(over, pid)
		}
	}
	clear(s.absent)
	if len(over) > 0 {
		s.removeContexts(over...)
	}
	s.removeClosed()
	s.checkKept()
	for id, f := range s.files {
		if len(f.paths) == 0 && f.kept == nil && !f.hasProbes() {
			f.close()
			delete(s.files, id)
		}
	}
	s.updateChosen()
	s.updateExcluded()
}

// checkUnobserved returns processes in the kernel's maps that have ended before they
// were observed. Those that exist, and pay for probes, are observed now.
func (s *Source) checkUnobserved() (over []uint32) {
	found := map[uint32]model.CgroupID{}
	for tgid := range s.spent {
		if s.processes[tgid] == nil {
			found[uint32(tgid)] = 0
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := s.kernel.unknownCosts(func(tgid uint32, cost *gen.DatapathUnknownCost) {
		if _, ok := found[tgid]; ok {
			found[tgid] = model.CgroupID(cost.Cgroup)
		}
	})
	if err != nil {
		s.opts.Logger.Debug("reading the cgroups of processes without a context", zap.Error(err))
	}
	for i := range s.readings {
		r := &s.readings[i]
		if _, ok := found[r.key.Tgid]; ok {
			found[r.key.Tgid] = model.CgroupID(r.stat.Cgroup)
		}
	}
	for tgid, cgroup := range found {
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
	s.leaveFiles(pid)
	delete(s.processes, pid)
	w.release()
}

// leaveFiles has the probes detached that only a process needs.
func (s *Source) leaveFiles(pid int) {
	for _, f := range s.files {
		f.leave(pid)
		s.change(f, time.Now())
		s.detachUnused(f)
	}
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
	over := map[uint32]*endedProcess{}
	s.ending = make(map[uint32]bool, len(tgids))
	for _, tgid := range tgids {
		over[tgid], s.ending[tgid] = &endedProcess{}, true
	}
	err := s.drain()
	s.ending = nil
	err = errors.Join(err, s.kernel.unknownCosts(func(tgid uint32, cost *gen.DatapathUnknownCost) {
		if b := over[tgid]; b != nil {
			b.cgroup = model.CgroupID(cost.Cgroup)
			b.spent += time.Duration(cost.SpentNs[posts] + cost.SpentNs[polls])
		}
	}))
	err = errors.Join(err, s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		b := over[key.Tgid]
		if b == nil {
			return
		}
		b.cgroup = model.CgroupID(stat.Cgroup)
		b.contexts = append(b.contexts, key)
		b.spent += time.Duration(stat.SpentNs[posts] + stat.SpentNs[polls])
		if s.wasLate(key, stat) {
			s.fold.markLate(key)
		}
	}))
	maps.DeleteFunc(s.contexts, func(key gen.DatapathContextKey, _ contextState) bool { return over[key.Tgid] != nil })
	var contexts []gen.DatapathContextKey
	maps.DeleteFunc(s.unlocated, func(key processDevice, _ unlocated) bool { return over[key.tgid] != nil })
	for tgid, b := range over {
		contexts = append(contexts, b.contexts...)
		if len(b.contexts) > 0 || b.cgroup != 0 {
			s.fold.finish(int(tgid), b.cgroup, b.spent)
		}
	}
	err = errors.Join(err, s.kernel.removeProcesses(slices.Collect(maps.Keys(over)), contexts...))
	s.fold.endProcesses(func(tgid uint32) bool { return over[tgid] != nil })
	if err != nil {
		s.opts.Logger.Debug("reading the last counts of processes", zap.Error(err))
	}
}

// removeClosed adds the last counts of closed contexts to the series and removes their
// entries from the kernel's maps. The counters of a closed context do not change, but it
// may have durations that were not read.
func (s *Source) removeClosed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var closed []*reading
	for i := range s.readings {
		if s.readings[i].closed {
			closed = append(closed, &s.readings[i])
		}
	}
	var err error
	if len(closed) > 0 {
		err = s.drain()
	}
	for _, c := range closed {
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
		if since := f.probedSince(int(key.Tgid), nil); since == 0 || stat.LateNs < since {
			return true
		}
	}
	return stat.Hits[posts] == 0
}
