// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// maxLocating is how many processes are looked into at once, maxWaiting how
	// many events wait to be tried again.
	maxLocating = 64
	maxWaiting  = 4096
	// firstRetry and lastRetry bound the time to the next attempt.
	firstRetry = time.Millisecond
	lastRetry  = time.Second
	maxTries   = 30
)

// A watched process is one that uses verbs.
type watched struct {
	*process
	cgroup uint64
	// busy: it is being looked into, which may take as long as it lives. Then what
	// else is seen of it queues, and gone lets go of it afterwards.
	busy  bool
	gone  bool
	queue []attempt
	// refused says that it must not be probed, chosen that it is to be.
	refused, chosen bool
}

// An attempt is an event to be tried.
type attempt struct {
	event
	begun time.Time
	at    time.Time
	tries int
}

// An answer is what was found in a process.
type answer struct {
	attempt
	located
	err error
}

// see takes notice of a context or a queue pair.
func (s *Source) see(e event) { s.try(attempt{event: e, begun: time.Now()}) }

func (s *Source) try(a attempt) {
	pid := int(a.key.Tgid)
	w := s.processes[pid]
	if w != nil && !w.gone && w.exited() {
		s.end(pid, w) // its number is another's by now
		w = s.processes[pid]
	}
	if w == nil {
		p, err := openProcess(s.opts.Procfs, pid)
		if errors.Is(err, model.ErrAbsent) {
			s.bury(uint32(pid))
			return
		}
		if err != nil {
			s.opts.Logger.Debug("process is not watched", zap.Error(err))
			return
		}
		w = &watched{process: p, cgroup: a.cgroup}
		s.processes[pid] = w
		if !s.kernel.shadowStacks && p.shadowStack() {
			w.refused = true
			s.opts.Logger.Warn("process is not watched on the data path: this kernel breaks shadow stacks", zap.Int("pid", pid))
		}
	}
	switch {
	case w.refused || w.gone:
	case w.busy || s.locating() >= maxLocating:
		if len(w.queue) < maxWaiting {
			w.queue = append(w.queue, a)
		}
	default:
		s.locate(w, a)
	}
}

func (s *Source) locating() (n int) {
	for _, w := range s.processes {
		if w.busy {
			n++
		}
	}
	return n
}

// locate looks into a process, beside the loop.
func (s *Source) locate(w *watched, a attempt) {
	w.busy = true
	answers, locator := s.answers, s.locator
	go func() {
		r := answer{attempt: a}
		if a.qp == 0 {
			r.located, r.err = locator.known(w.process)
		} else {
			r.located, r.err = locator.locate(w.process, a.qp)
		}
		answers <- r
	}()
}

// learn takes what was found.
func (s *Source) learn(a answer) {
	pid := int(a.key.Tgid)
	w := s.processes[pid]
	if w == nil || !w.busy { // of before the last release
		return
	}
	w.busy = false
	if w.gone {
		s.dismiss(pid, w)
		return
	}
	if len(w.queue) > 0 {
		defer func(next attempt) {
			w.queue = w.queue[1:]
			s.try(next)
		}(w.queue[0])
	}
	switch {
	case errors.Is(a.err, errNotReady):
		s.postpone(a.attempt)
		return
	case errors.Is(a.err, model.ErrAbsent):
		return // reaped in a moment
	case a.err != nil:
		s.opts.Logger.Info("process is not watched on the data path", zap.Int("pid", pid), zap.Error(a.err))
		if errors.Is(a.err, fs.ErrPermission) {
			s.refuse(fmt.Errorf("%w: add CAP_SYS_PTRACE", a.err))
		}
		return
	}
	s.refuse(nil)
	chosen := s.choose(a.cgroup)
	w.chosen = w.chosen || chosen
	s.add(pid, a.located)
	if a.qp == 0 {
		return
	}
	a.key.Context = a.context
	if a.existed {
		if err := s.kernel.insert(a.event, chosen); err != nil {
			s.opts.Logger.Debug("context is not watched", zap.Error(err))
			return
		}
	}
	at := place{file: a.file(postSend), cgroup: a.cgroup, chosen: chosen}
	s.put(a.key, at)
	s.step() // so that what is to be probed is
	if f := s.files[at.file]; f != nil {
		at.probed = f.probed[post]
		s.put(a.key, at)
	}
	if err := s.kernel.mark(a.key, chosen, true); err != nil {
		s.opts.Logger.Debug("context is not watched", zap.Error(err))
	}
	s.opts.Logger.Debug("watched", zap.Int("pid", pid), zap.Int("places", len(a.sites)),
		zap.Duration("after", time.Since(a.begun)))
}

func (s *Source) choose(cgroup uint64) bool { return s.opts.Chosen == nil || s.opts.Chosen(cgroup) }

func (s *Source) put(key gen.DatapathContextKey, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contexts[key] = p
}

// chooseAgain asks once more who is to be watched.
func (s *Source) chooseAgain() {
	if s.opts.Chosen == nil {
		return
	}
	for key, p := range s.places() {
		w, chosen := s.processes[int(key.Tgid)], s.choose(p.cgroup)
		if w == nil || chosen == p.chosen {
			continue
		}
		p.chosen = chosen
		s.put(key, p)
		w.chosen = w.chosen || chosen
		if err := s.kernel.mark(key, chosen, true); err != nil {
			s.opts.Logger.Debug("context is not watched", zap.Error(err))
		}
		s.kernel.gap(key)
	}
}

func (s *Source) places() map[gen.DatapathContextKey]place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.contexts)
}

// refuse says why processes cannot be looked into.
func (s *Source) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// file is the one that has a function.
func (l *located) file(fn function) fileID {
	for _, s := range l.sites {
		if s.function == fn {
			return s.file
		}
	}
	return fileID{}
}

// add remembers the sites of a process.
func (s *Source) add(pid int, l located) {
	for _, site := range l.sites {
		f := s.files[site.file]
		if f == nil {
			f = newFile(site.file)
			s.files[site.file] = f
		}
		f.paths[pid] = l.paths[site.file]
		f.sites[site] = true
	}
}

// postpone tries again later, each time after twice as long.
func (s *Source) postpone(a attempt) {
	if a.tries == maxTries || len(s.waiting) == maxWaiting {
		return
	}
	a.at = time.Now().Add(min(firstRetry<<min(a.tries, 16), lastRetry))
	a.tries++
	s.waiting = append(s.waiting, a)
}

// again tries what is due.
func (s *Source) again(now time.Time) {
	due := s.waiting
	s.waiting = nil
	for _, a := range due {
		if now.Before(a.at) {
			s.waiting = append(s.waiting, a)
			continue
		}
		s.try(a)
	}
}

// reap lets go of the processes that have ended, now and then.
func (s *Source) reap(now time.Time) {
	if now.Sub(s.reaped) < reapInterval {
		return
	}
	s.reaped = now
	for pid, w := range s.processes {
		if !w.gone && w.exited() {
			s.end(pid, w)
		}
	}
	for id, f := range s.files {
		// One whose probes are still going is the one that comes back.
		if len(f.paths) == 0 && !f.closing[post].Load() && !f.closing[poll].Load() {
			delete(s.files, id)
		}
	}
	s.sweep()
	s.chooseAgain()
}

// end takes leave of a process: probes of a file go with the last that maps it.
func (s *Source) end(pid int, w *watched) {
	for _, f := range s.files {
		delete(f.paths, pid)
		if len(f.paths) > 0 {
			continue
		}
		for c := range callGroups {
			if f.on(c) {
				f.detach(c, &s.detaching)
			}
		}
	}
	s.bury(uint32(pid))
	if w.gone = true; !w.busy {
		s.dismiss(pid, w)
	}
}

func (s *Source) dismiss(pid int, w *watched) {
	if w.gone = true; w.busy {
		return // learn dismisses it
	}
	w.close()
	delete(s.processes, pid)
}

// bury keeps the totals of a process that is gone and drops the rest.
func (s *Source) bury(tgid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fold(); err != nil {
		s.opts.Logger.Debug("what a process counted last is lost", zap.Error(err))
	}
	var keys []gen.DatapathContextKey
	var cgroup uint64
	spent := s.budget.switching(int(tgid))
	err := s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		if key.Tgid != tgid {
			return
		}
		keys = append(keys, key)
		cgroup = stat.Cgroup
		spent += time.Duration(stat.SpentNs[post] + stat.SpentNs[poll])
		if s.isLate(key, stat) {
			s.late++
		}
	})
	if err == nil {
		err = s.kernel.remove(tgid)
	}
	if err != nil {
		s.opts.Logger.Debug("entries of a process stay", zap.Error(err))
	}
	for _, key := range keys {
		delete(s.contexts, key)
	}
	if len(keys) > 0 {
		s.totals.settle(int(tgid), cgroup, spent)
	}
	s.totals.exited(tgid)
}

// sweep finds the contexts of processes that ended before they could be seen.
func (s *Source) sweep() {
	seen := map[uint32]bool{}
	s.mu.Lock()
	_ = s.kernel.contexts(func(key gen.DatapathContextKey, _ *gen.DatapathContextStat) { seen[key.Tgid] = true })
	s.mu.Unlock()
	for tgid := range seen {
		if s.processes[int(tgid)] != nil {
			continue
		}
		p, err := openProcess(s.opts.Procfs, int(tgid))
		if err == nil {
			p.close()
		} else if errors.Is(err, model.ErrAbsent) {
			s.bury(tgid)
		}
	}
}
