// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// tracker follows processes and their contexts: it has processes searched, files probed, and contexts counted. The loop uses it.
type tracker struct {
	opts      *Options
	meter     *meter
	processes *processes
	searches  *searches
	prober    *prober
	pace      *pace

	newContexts []newContext    // not marked yet
	absent      map[uint32]bool // processes that had ended before their event was handled
	last        readings        // of the last step
	removedAt   time.Time
}

// newContext is a context with located functions, and where these functions are probed.
type newContext struct {
	key   gen.DatapathContextKey
	sites []locate.Site
}

// observe handles a context or a queue pair.
func (t *tracker) observe(e event) { t.enqueue(attempt{event: e, begun: time.Now()}) }

func (t *tracker) enqueue(a attempt) {
	pid := int(a.key.Tgid)
	w := t.processes.byPID[pid]
	if w != nil && w.Exited() { // another process has its number
		t.removeProcess(pid, w)
		t.removeContexts(uint32(pid))
		w = nil
	}
	if w == nil {
		p, err := locate.OpenProcess(t.opts.Procfs, pid)
		if errors.Is(err, model.ErrAbsent) {
			t.absent[uint32(pid)] = true
			return
		}
		if err != nil { // such as no descriptor left
			t.opts.Logger.Debug("process is not searched yet", zap.Error(err))
			t.retryLater(a)
			return
		}
		p.CheckFile = t.opts.Gate.CheckFile
		w = &watched{Process: p, cgroup: a.cgroup}
		t.processes.byPID[pid] = w
	}
	if w.cgroup == 0 {
		w.cgroup = a.cgroup
	}
	if a.qp == 0 {
		if a.begun.Sub(w.openedAt) < openInterval {
			return
		}
		w.openedAt = a.begun
	}
	if len(w.queue) == maxQueue {
		t.retryLater(a)
		return
	}
	w.queue = append(w.queue, a)
	t.searches.await(w)
}

// handleFound handles the result of a search.
func (t *tracker) handleFound(a *searchResult) {
	pid, w := int(a.key.Tgid), a.of
	t.searches.ended(w)
	defer func() { a.closeKept() }()
	if w.ended {
		w.Close()
		return
	}
	t.searches.await(w)
	switch {
	case errors.Is(a.err, locate.ErrNotReady):
		t.retryLater(a.attempt)
		return
	case errors.Is(a.err, model.ErrAbsent):
		return // removeEnded removes it
	case errors.Is(a.err, locate.ErrAgain):
		t.opts.Logger.Debug("queue pair is not counted on the data path", zap.Int("pid", pid), zap.Error(a.err))
		t.searchAgain(a.attempt)
		return
	case a.err != nil:
		t.opts.Logger.Info("process is not counted on the data path", zap.Int("pid", pid), zap.Error(a.err))
		if errors.Is(a.err, fs.ErrPermission) {
			t.meter.setFailed(fmt.Errorf("%w: add CAP_SYS_PTRACE", a.err))
		}
		t.meter.setUnlocated(&a.event, a.err)
		return
	}
	t.meter.setFailed(nil)
	if t.refuse(pid, w, a.Sites, a.refused) {
		if isPassing(w.refused) { // of another queue pair, it may not be refused
			t.giveUp(&a.attempt)
		}
		t.meter.setUnlocated(&a.event, w.refused)
		return
	}
	chosen := t.processes.isChosen(a.cgroup)
	w.chosen = w.chosen || chosen
	t.pace.changed = true
	t.pace.attach = t.prober.addSites(pid, a.Found) && w.chosen || t.pace.attach
	if t.processes.isExcluded(w.cgroup) { // before its files get probes
		t.updateExcluded()
	}
	if w.chosen {
		t.prober.keep(a)
	}
	if a.qp == 0 {
		return
	}
	t.meter.setUnlocated(&a.event, nil)
	a.key.Context = a.Context
	if a.existed {
		var err error
		if a.key.Number, err = t.prober.kernel.insert(a.event, chosen); err != nil {
			t.opts.Logger.Debug("context is not counted yet", zap.Error(err))
			t.retryLater(a.attempt)
			return
		}
	}
	t.meter.setContext(a.key, contextState{
		file: a.File(locate.PostSend), direct: a.Direct, found: monotonic(), cgroup: a.cgroup, chosen: chosen, existed: a.existed,
	})
	t.newContexts = append(t.newContexts, newContext{a.key, a.Sites})
	t.opts.Logger.Debug("located", zap.Int("pid", pid), zap.Int("places", len(a.Sites)),
		zap.Duration("after", time.Since(a.begun)))
}

// refuse reports whether a process must not be probed at sites: err refuses it, too many processes have probes of their own, or its owner
// has too many files. It removes the probes of the process.
func (t *tracker) refuse(pid int, w *watched, sites []locate.Site, err error) bool {
	if err == nil && t.prober.perProcess {
		err = uprobe.CheckAlone(t.prober.files, pid)
	}
	if err == nil && !t.prober.hasRoomFor(t.processes.ownerOf(w), sites) {
		err = errFilesOfOwner
	}
	if w.refused = err; err == nil {
		return false
	}
	t.opts.Logger.Info("process is not counted on the data path", zap.Int("pid", pid), zap.Error(err))
	t.prober.leave(pid)
	return true
}

// markFound marks new contexts whose files are probed. After a step, which attaches probes, it also marks the others, unless their files
// will be probed.
func (t *tracker) markFound(all bool) {
	left := t.newContexts[:0]
	for _, c := range t.newContexts {
		key := c.key
		p, ok := t.meter.context(key)
		if !ok {
			continue
		}
		f := t.prober.files[p.file]
		if f == nil && !all || f != nil && !f.isProbed(int(key.Tgid)) && (!all || f.isDelayed()) {
			left = append(left, c)
			continue
		}
		if f != nil {
			p.probed = f.probedSince(int(key.Tgid), c.sites)
		}
		// What is not probed is late as soon as it is ready to send.
		if err := t.prober.kernel.mark(key, p.chosen, p.probed); errors.Is(err, model.ErrAbsent) { // closed meanwhile
			t.meter.removeContext(key)
			continue
		} else if err != nil {
			t.opts.Logger.Debug("context is not counted", zap.Error(err))
		}
		if t.opts.Chosen != nil && p.probed != 0 {
			p.probed = monotonic() // it was not counted before
		}
		p.final = true
		t.meter.setContext(key, p)
	}
	t.newContexts = left
}

// count counts the calls since the last step, and returns the cost by process.
func (t *tracker) count(now time.Time) ([]processLoad, error) {
	if err := t.meter.read(&t.last, now.Sub(t.removedAt) >= removeInterval); err != nil {
		t.opts.Logger.Debug("reading the maps of the data path", zap.Error(err))
		return nil, err
	}
	loads := t.processes.readLoads(t.last.spent)
	t.meter.count(now, t.last.contexts, loads, t.prober.probeState())
	return loads, nil
}

func (t *tracker) retryLater(a attempt) {
	if a.tries == maxTries || t.searches.noRoom(&a) {
		t.giveUp(&a)
		return
	}
	t.searches.retryAfter(a, a.tries)
}

// retryDue queues the attempts that are due and returns when the next one is.
func (t *tracker) retryDue(now time.Time) (next time.Time) {
	for _, a := range t.searches.takeDue(now) {
		if a.again {
			t.searchLast(a)
		} else {
			t.enqueue(a)
		}
	}
	return t.searches.retryAt
}

// release drops all processes and contexts.
func (t *tracker) release() {
	for _, w := range t.processes.byPID {
		w.release()
	}
	clear(t.processes.byPID)
	t.searches.clear()
	clear(t.absent)
	t.newContexts, t.last.contexts = nil, nil
}
