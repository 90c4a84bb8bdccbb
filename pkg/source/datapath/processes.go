// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
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
	if err := s.meter.removeClosed(s.last.contexts, s.probedBefore); err != nil {
		s.opts.Logger.Debug("reading the last counts of closed contexts", zap.Error(err))
	}
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
	for tgid := range s.last.spent {
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
	for i := range s.last.contexts {
		r := &s.last.contexts[i]
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

// removeContexts removes the contexts of processes that have ended.
func (s *Source) removeContexts(tgids ...uint32) {
	if err := s.meter.removeProcesses(tgids, s.probedBefore); err != nil {
		s.opts.Logger.Debug("reading the last counts of processes", zap.Error(err))
	}
}

// probedBefore reports whether all files were probed, for a process, before a time (CLOCK_MONOTONIC, ns).
func (s *Source) probedBefore(pid int, ns uint64) bool {
	for _, f := range s.files {
		if since := f.probedSince(pid, nil); since == 0 || ns < since {
			return false
		}
	}
	return true
}
