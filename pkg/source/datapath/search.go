// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// maxLocating is the number of processes that are searched at once, maxLocatingOfOwner
	// that of one owner, whose processes can make their searches hang, maxWaiting
	// the number of events that wait for another attempt, maxQueue that of one process.
	maxLocating        = 64
	maxLocatingOfOwner = maxLocating / 4
	maxWaiting         = 4096
	maxWaitingOfOwner  = maxWaiting / 4
	maxQueue           = 256
	// firstRetry and lastRetry bound the time to the next attempt.
	firstRetry = time.Millisecond
	lastRetry  = time.Second
	maxTries   = 30
	// openInterval is the minimum time between searches of a process that opens
	// contexts.
	openInterval = time.Second
)

// watched is a process that uses verbs.
type watched struct {
	*locate.Process
	cgroup model.CgroupID
	owner  model.CgroupID // of the last search
	// searching: a search is running, which may take as long as the process lives.
	// Other events wait in queue. waiting: the process is listed for a search. ended:
	// the search closes the process.
	searching, waiting, ended bool
	queue                     []attempt
	openedAt                  time.Time
	chosen                    bool  // to be counted
	refused                   error // why it must not be probed
	cost, inSurvey            cost  // of its probes, without and with what is counted in surveys only
	surveyed                  bool  // there is a survey of one of its files
}

// attempt is an event and when to try it.
type attempt struct {
	event
	begun time.Time
	at    time.Time
	tries int
	owner model.CgroupID // while it waits
	again bool           // see searchAgain
}

// searchResult is the result of a search in a process.
type searchResult struct {
	attempt
	locate.Found
	of   *watched
	home *locate.Process // of the process, if its files may be kept
	// lower are the files of an image behind files of the process, to be kept instead.
	lower map[locate.FileID]*locate.Kept
	// refused is why the process must not be probed, err why it cannot be.
	refused, err error
}

// observe handles a context or a queue pair.
func (s *Source) observe(e event) { s.enqueue(attempt{event: e, begun: time.Now()}) }

// enqueue queues a search of the process.
func (s *Source) enqueue(a attempt) {
	pid := int(a.key.Tgid)
	w := s.processes[pid]
	if w != nil && w.Exited() { // another process has its number
		s.removeProcess(pid, w)
		s.removeContexts(uint32(pid))
		w = nil
	}
	if w == nil {
		p, err := locate.OpenProcess(s.opts.Procfs, pid)
		if errors.Is(err, model.ErrAbsent) {
			s.absent[uint32(pid)] = true
			return
		}
		if err != nil { // such as no descriptor left
			s.opts.Logger.Debug("process is not searched yet", zap.Error(err))
			s.retryLater(a)
			return
		}
		p.CheckFile = s.opts.Gate.CheckFile
		w = &watched{Process: p, cgroup: a.cgroup}
		s.processes[pid] = w
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
		s.retryLater(a)
		return
	}
	w.queue = append(w.queue, a)
	s.awaitSearch(w)
}

// awaitSearch lists a process with events in its queue for the next search.
func (s *Source) awaitSearch(w *watched) {
	if !w.waiting && !w.searching && len(w.queue) > 0 {
		w.waiting = true
		s.waiting = append(s.waiting, w)
	}
}

// startSearches starts the first search in the queue of each process, in the order of
// their events, up to maxLocating at once, and maxLocatingOfOwner of each owner.
func (s *Source) startSearches() {
	later := s.waiting[:0]
	for _, w := range s.waiting {
		if w.ended {
			w.waiting = false
			continue
		}
		if s.searching == maxLocating || s.searchesOf[s.ownerOf(w)] >= maxLocatingOfOwner {
			later = append(later, w)
			continue
		}
		w.waiting = false
		a := w.queue[0]
		w.queue = w.queue[1:]
		s.search(w, a)
	}
	clear(s.waiting[len(later):])
	s.waiting = later
}

// ownerOf returns the owner of a process, as the shares of maps have it.
func (s *Source) ownerOf(w *watched) model.CgroupID {
	if s.opts.OwnerOf == nil {
		return w.cgroup
	}
	_, share := s.opts.OwnerOf(w.cgroup)
	return share
}

// searched counts that the search of a process has ended.
func (s *Source) searched(w *watched) {
	w.searching = false
	s.searching--
	if s.searchesOf[w.owner]--; s.searchesOf[w.owner] == 0 {
		delete(s.searchesOf, w.owner)
	}
}

// search searches a process in a goroutine of its own.
func (s *Source) search(w *watched, a attempt) {
	w.searching, w.owner = true, s.ownerOf(w)
	s.searching++
	s.searchesOf[w.owner]++
	perProcess := s.perProcess()
	go safely.Do(s.Name(), func() {
		r := searchResult{attempt: a, of: w, err: safely.ErrPanicked}
		defer func() {
			select {
			case s.results <- r:
			case <-s.done:
				w.Close()
				r.closeKept()
			}
		}()
		if perProcess { // again each time, as the process may have executed another program
			r.refused = w.CheckShadowStack()
		}
		r.Found, r.err = s.find(w.Process, a.qp, a.key.Context)
		if r.err == nil && !s.kept.haveAll(r.Paths) {
			r.home, _ = w.Home() // without one, only files of images are kept
			r.lower = s.lowerFiles(w, r.Paths)
		}
	})
}

// handleFound handles the result of a search.
func (s *Source) handleFound(a searchResult) {
	pid, w := int(a.key.Tgid), a.of
	s.searched(w)
	defer func() { a.closeKept() }()
	if w.ended {
		w.Close()
		return
	}
	s.awaitSearch(w)
	switch {
	case errors.Is(a.err, locate.ErrNotReady):
		s.retryLater(a.attempt)
		return
	case errors.Is(a.err, model.ErrAbsent):
		return // removeEnded removes it
	case errors.Is(a.err, locate.ErrAgain):
		s.opts.Logger.Debug("queue pair is not counted on the data path", zap.Int("pid", pid), zap.Error(a.err))
		s.searchAgain(a.attempt)
		return
	case a.err != nil:
		s.opts.Logger.Info("process is not counted on the data path", zap.Int("pid", pid), zap.Error(a.err))
		if errors.Is(a.err, fs.ErrPermission) {
			s.meter.setFailed(fmt.Errorf("%w: add CAP_SYS_PTRACE", a.err))
		}
		s.meter.setUnlocated(&a.event, a.err)
		return
	}
	s.meter.setFailed(nil)
	if s.refuse(pid, w, a.Sites, a.refused) {
		if isPassing(w.refused) { // of another queue pair, it may not be refused
			s.giveUp(&a.attempt)
		}
		s.meter.setUnlocated(&a.event, w.refused)
		return
	}
	chosen := s.isChosen(a.cgroup)
	w.chosen = w.chosen || chosen
	s.pace.changed = true
	s.pace.attach = s.addSites(pid, a.Found) && w.chosen || s.pace.attach
	if s.isExcluded(w.cgroup) { // before its files get probes
		s.updateExcluded()
	}
	if w.chosen {
		s.keep(&a)
	}
	if a.qp == 0 {
		return
	}
	s.meter.setUnlocated(&a.event, nil)
	a.key.Context = a.Context
	if a.existed {
		var err error
		if a.key.Number, err = s.kernel.insert(a.event, chosen); err != nil {
			s.opts.Logger.Debug("context is not counted yet", zap.Error(err))
			s.retryLater(a.attempt)
			return
		}
	}
	s.meter.setContext(a.key, contextState{
		file: a.File(locate.PostSend), direct: a.Direct, found: monotonic(), cgroup: a.cgroup, chosen: chosen, existed: a.existed,
	})
	s.newContexts = append(s.newContexts, newContext{a.key, a.Sites})
	s.opts.Logger.Debug("located", zap.Int("pid", pid), zap.Int("places", len(a.Sites)),
		zap.Duration("after", time.Since(a.begun)))
}

// markFound marks the contexts that were found, of files that are probed. After a step,
// which has probes attached, it marks the others, too, unless their files are being probed, or will be.
func (s *Source) markFound(all bool) {
	left := s.newContexts[:0]
	for _, c := range s.newContexts {
		key := c.key
		p, ok := s.meter.context(key)
		if !ok {
			continue
		}
		f := s.files[p.file]
		if f == nil && !all || f != nil && !f.isProbed(int(key.Tgid)) && (!all || f.isDelayed()) {
			left = append(left, c)
			continue
		}
		if f != nil {
			p.probed = f.probedSince(int(key.Tgid), c.sites)
		}
		// What is not probed is late as soon as it is ready to send.
		if err := s.kernel.mark(key, p.chosen, p.probed != 0); errors.Is(err, model.ErrAbsent) { // closed meanwhile
			s.meter.removeContext(key)
			continue
		} else if err != nil {
			s.opts.Logger.Debug("context is not counted", zap.Error(err))
		}
		if s.opts.Chosen != nil && p.probed != 0 {
			p.probed = monotonic() // it was not counted before
		}
		p.final = true
		s.meter.setContext(key, p)
	}
	s.newContexts = left
}

// addSites adds the sites of a process to their files, and reports whether one of these
// is not probed.
func (s *Source) addSites(pid int, l locate.Found) (unprobed bool) {
	for _, site := range l.Sites {
		f := s.files[site.File]
		if f == nil {
			f = newFile(site.File, s.perProcess())
			if w := s.processes[pid]; w != nil {
				f.owner = s.ownerOf(w)
			}
			s.files[site.File] = f
		}
		if err := f.open(s.opts.Procfs, l.Paths[site.File]); err != nil {
			s.opts.Logger.Debug("a provider cannot be opened", zap.Error(err))
		}
		f.paths[pid] = l.Paths[site.File]
		f.added = f.added || !f.sites[site]
		f.sites[site] = true
		unprobed = unprobed || !f.isProbed(pid)
	}
	return unprobed
}

// retryLater schedules another attempt, each time after twice as long.
func (s *Source) retryLater(a attempt) {
	if a.tries == maxTries || s.noRoom(&a) {
		s.giveUp(&a)
		return
	}
	s.retryAfter(a, a.tries)
}

// noRoom reports whether no further attempt can wait, of any owner or of this one.
func (s *Source) noRoom(a *attempt) bool {
	return len(s.retries) == maxWaiting || s.retriesOf[s.ownerOfAttempt(a)] >= maxWaitingOfOwner
}

func (s *Source) ownerOfAttempt(a *attempt) model.CgroupID {
	if w := s.processes[int(a.key.Tgid)]; w != nil {
		return s.ownerOf(w)
	}
	return s.ownerOf(&watched{cgroup: a.cgroup})
}

// retryAfter schedules an attempt, by the number of those before it.
func (s *Source) retryAfter(a attempt, tries int) {
	a.at = time.Now().Add(min(firstRetry<<min(tries, 16), lastRetry))
	a.tries++
	a.owner = s.ownerOfAttempt(&a)
	s.retriesOf[a.owner]++
	s.retries = append(s.retries, a)
	if a.at.Before(s.retryAt) {
		s.retryAt = a.at
	}
}

// retryDue queues the attempts that are due and returns when the next one is.
func (s *Source) retryDue(now time.Time) (next time.Time) {
	if now.Before(s.retryAt) {
		return s.retryAt
	}
	s.retryAt = now.Add(lastRetry)
	var due []attempt
	later := s.retries[:0]
	for _, a := range s.retries {
		if !now.Before(a.at) {
			due = append(due, a)
			if s.retriesOf[a.owner]--; s.retriesOf[a.owner] == 0 {
				delete(s.retriesOf, a.owner)
			}
			continue
		}
		later = append(later, a)
		if a.at.Before(s.retryAt) {
			s.retryAt = a.at
		}
	}
	s.retries = later
	for _, a := range due {
		if a.again {
			s.searchLast(a)
		} else {
			s.enqueue(a)
		}
	}
	return s.retryAt
}
