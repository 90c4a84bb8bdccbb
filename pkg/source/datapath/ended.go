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
func (t *tracker) removeEnded(now time.Time) {
	if now.Sub(t.removedAt) < removeInterval {
		return
	}
	t.removedAt = now
	var over []uint32
	for _, pid := range t.processes.exited() {
		t.removeProcess(pid, t.processes.byPID[pid])
		over = append(over, uint32(pid))
	}
	over = append(over, t.checkUnobserved()...)
	for pid := range t.absent {
		if t.processes.byPID[int(pid)] == nil { // otherwise another process has its number
			over = append(over, pid)
		}
	}
	clear(t.absent)
	if len(over) > 0 {
		t.removeContexts(over...)
	}
	if err := t.meter.removeClosed(t.last.contexts, t.prober.probedBefore); err != nil {
		t.opts.Logger.Debug("reading the last counts of closed contexts", zap.Error(err))
	}
	t.prober.checkKept()
	t.prober.closeUnused()
	t.updateChosen()
	t.updateExcluded()
}

// checkUnobserved returns processes in the kernel's maps that ended before they were observed. Processes that still exist, and pay for
// probes, are observed now.
func (t *tracker) checkUnobserved() (over []uint32) {
	found := map[uint32]model.CgroupID{}
	for tgid := range t.last.spent {
		if t.processes.byPID[tgid] == nil {
			found[uint32(tgid)] = 0
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := t.prober.kernel.unknownCosts(func(tgid uint32, cost *gen.DatapathUnknownCost) {
		if _, ok := found[tgid]; ok {
			found[tgid] = model.CgroupID(cost.Cgroup)
		}
	})
	if err != nil {
		t.opts.Logger.Debug("reading the cgroups of processes without a context", zap.Error(err))
	}
	for i := range t.last.contexts {
		r := &t.last.contexts[i]
		if _, ok := found[r.key.Tgid]; ok {
			found[r.key.Tgid] = model.CgroupID(r.stat.Cgroup)
		}
	}
	for tgid, cgroup := range found {
		p, err := locate.OpenProcess(t.opts.Procfs, int(tgid))
		switch {
		case err == nil:
			p.Close()
			t.observe(event{key: gen.DatapathContextKey{Tgid: tgid}, cgroup: cgroup})
		case errors.Is(err, model.ErrAbsent):
			over = append(over, tgid)
		}
	}
	return over
}

// removeProcess removes a process. The probes of a file that is not kept are detached
// with the last process that maps it.
func (t *tracker) removeProcess(pid int, w *watched) {
	t.prober.leave(pid)
	delete(t.processes.byPID, pid)
	w.release()
}

func (t *tracker) removeContexts(tgids ...uint32) {
	if err := t.meter.removeProcesses(tgids, t.prober.probedBefore); err != nil {
		t.opts.Logger.Debug("reading the last counts of processes", zap.Error(err))
	}
}
