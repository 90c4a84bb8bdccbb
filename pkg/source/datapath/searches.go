// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// maxWaiting is the number of events that wait for another attempt. maxQueue is the number of events in the queue of a process.
	maxWaiting        = 4096
	maxWaitingOfOwner = maxWaiting / 4
	maxQueue          = 256
	// firstRetry and lastRetry bound the time to the next attempt.
	firstRetry = time.Millisecond
	lastRetry  = time.Second
	maxTries   = 30
	// openInterval is the minimum time between searches of a process that opens
	// contexts.
	openInterval = time.Second
)

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
	// lower are files of an image behind files of the process. They are kept in place of these files.
	lower map[locate.FileID]*locate.Kept
	// refused is why the process must not be probed, err why it cannot be.
	refused, err error
}

// closeKept closes the files that prober.keep did not take over.
func (r *searchResult) closeKept() {
	if r.home != nil {
		r.home.Close()
	}
	for _, k := range r.lower {
		k.Close()
	}
}

// drop closes a result that nothing takes, and its process.
func (r *searchResult) drop() {
	r.of.Close()
	r.closeKept()
}

// searches are the searches for functions that run, or wait for their turn or for another attempt. The loop uses them. A search reads
// only unchanging fields in its goroutine.
type searches struct {
	*uprobe.Searches[searchResult]
	opts      *Options
	processes *processes
	kept      *keptFiles
	// find finds the functions of a process: locate.Locator.Find.
	find func(p *locate.Process, qp, context uint64) (locate.Found, error)

	waiting   []*watched             // processes with events in their queue and no search
	retries   []attempt              // wait for another attempt
	retriesOf map[model.CgroupID]int // of these, by owner
	retryAt   time.Time              // of the first of them
}

// await lists a process with events in its queue for the next search.
func (q *searches) await(w *watched) {
	if !w.waiting && !w.searching && len(w.queue) > 0 {
		w.waiting = true
		q.waiting = append(q.waiting, w)
	}
}

// start starts the first search in the queue of each process, in the order of their events, while there is room. perProcess: each process
// has probes of its own.
func (q *searches) start(perProcess bool) {
	later := q.waiting[:0]
	for _, w := range q.waiting {
		if w.ended {
			w.waiting = false
			continue
		}
		if !q.HasRoom(q.processes.ownerOf(w)) {
			later = append(later, w)
			continue
		}
		w.waiting = false
		a := w.queue[0]
		w.queue = w.queue[1:]
		q.search(w, a, perProcess)
	}
	clear(q.waiting[len(later):])
	q.waiting = later
}

func (q *searches) ended(w *watched) {
	w.searching = false
	q.Ended(w.owner)
}

func (q *searches) search(w *watched, a attempt, perProcess bool) {
	w.searching, w.owner = true, q.processes.ownerOf(w)
	q.Begin(w.owner, &searchResult{attempt: a, of: w, err: safely.ErrPanicked}, func(r *searchResult) {
		if perProcess { // again each time, as the process may have executed another program
			r.refused = w.CheckShadowStack()
		}
		r.Found, r.err = q.find(w.Process, a.qp, a.key.Context)
		if r.err == nil && !q.kept.haveAll(r.Paths) {
			r.home, _ = w.Home() // without a home, only files of images are kept
			r.lower = lowerFiles(q.opts.Procfs, w.Process, r.Paths)
		}
	})
}

// lowerFiles opens the files of an image behind files of a process. Runtimes mount the overlays of containers in the mount
// namespace of the machine's first process.
func lowerFiles(procfs string, p *locate.Process, files map[locate.FileID]string) map[locate.FileID]*locate.Kept {
	lower := map[locate.FileID]*locate.Kept{}
	for id, path := range files {
		if k, err := p.KeepLower(filepath.Join(procfs, "1/root"), path); err == nil {
			lower[id] = k
		}
	}
	return lower
}

// noRoom reports whether no further attempt can wait, of any owner or of this owner.
func (q *searches) noRoom(a *attempt) bool {
	return len(q.retries) == maxWaiting || q.retriesOf[q.processes.ownerOfAttempt(a)] >= maxWaitingOfOwner
}

// retryAfter schedules an attempt after a pause that doubles with the number of tries.
func (q *searches) retryAfter(a attempt, tries int) {
	a.at = time.Now().Add(min(firstRetry<<min(tries, 16), lastRetry))
	a.tries++
	a.owner = q.processes.ownerOfAttempt(&a)
	q.retriesOf[a.owner]++
	q.retries = append(q.retries, a)
	if a.at.Before(q.retryAt) {
		q.retryAt = a.at
	}
}

// takeDue removes and returns the attempts that are due.
func (q *searches) takeDue(now time.Time) (due []attempt) {
	if now.Before(q.retryAt) {
		return nil
	}
	q.retryAt = now.Add(lastRetry)
	later := q.retries[:0]
	for _, a := range q.retries {
		if !now.Before(a.at) {
			due = append(due, a)
			if q.retriesOf[a.owner]--; q.retriesOf[a.owner] == 0 {
				delete(q.retriesOf, a.owner)
			}
			continue
		}
		later = append(later, a)
		if a.at.Before(q.retryAt) {
			q.retryAt = a.at
		}
	}
	q.retries = later
	return due
}

func (q *searches) clear() {
	q.waiting, q.retries = nil, nil
	clear(q.retriesOf)
}
