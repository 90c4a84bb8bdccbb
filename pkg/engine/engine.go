// SPDX-License-Identifier: Apache-2.0

// Package engine reads all sources, joins their facts, attributes them to owners, and has them judged.
//
// A refresh reads every source once. Concurrent callers, and callers within one second, share it. A source that hangs
// or panics loses only its own facts.
package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/attribution/traffic"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/verdict"
)

const (
	defaultReuse    = time.Second
	defaultDeadline = 2 * time.Second
)

// Options of an Engine.
type Options struct {
	// Reuse is how long further callers get the same refresh; default 1 s.
	Reuse time.Duration
	// Inventory, if not nil, compares each refresh with the devices that the node had.
	Inventory Inventory
	// StallAfter is the time without a launch after which a job counts as standing; default 30 s.
	StallAfter time.Duration
	// IdleToNobody: see attribution.Counters.
	IdleToNobody bool
	Logger       *zap.Logger
}

// An Inventory knows which devices the node had. Compare adds missing and degraded devices to the facts of a refresh.
type Inventory interface {
	Compare(now time.Time, facts *model.Snapshot, states []model.SourceState)
}

// An Engine reads its sources, and closes them.
type Engine struct {
	readers   []*sourceReader
	waiting   []chan struct{} // the first reading of each background source
	reuse     time.Duration
	inventory Inventory // may be nil
	log       *zap.Logger
	base      context.Context // until the engine is closed
	stop      context.CancelFunc

	// mu guards the next three fields. It is not held during a refresh.
	mu      sync.Mutex
	latest  *Refresh
	started bool
	closed  bool

	finished atomic.Pointer[Refresh]
	panics   atomic.Uint64 // in calls of sources and in refreshes

	// The following belong to the refresh in progress.
	owners   identity.Table
	counters attribution.Counters
	ledger   traffic.Ledger
	linger   verdict.Linger
	judge    verdict.Judge
	states   stateLogger
	dropped  map[Dropped]uint64
	// expired are the ended cgroups that are not yet forgotten; true: only sources that name cgroups still have to
	// forget them.
	expired map[model.CgroupID]bool
}

// Refresh is the facts of one moment and their shares. It does not change after it is returned.
type Refresh struct {
	At time.Time
	// Err is the panic that ended the refresh. The rest is then empty.
	Err error
	// Facts are what the sources read. Shares has the series.
	Facts  model.Snapshot
	Shares attribution.Attribution
	// States has the state of each source, in the order of registration.
	States []model.SourceState
	// Placement is where GPUs and HCAs are and who uses them; nil without GPUs and HCAs.
	Placement *placement.Refresh
	// Verdicts are the conditions that hold; empty if judging failed.
	Verdicts verdict.Result
	// Dropped counts the impossible values that were left out since the start.
	Dropped map[Dropped]uint64
	// Panics is the number of panics since the start, in sources and refreshes.
	Panics uint64

	done chan struct{}
}

// New returns an engine without sources.
func New(o Options) *Engine {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Reuse == 0 {
		o.Reuse = defaultReuse
	}
	base, stop := context.WithCancel(context.Background())
	return &Engine{
		reuse: o.Reuse, inventory: o.Inventory, log: o.Logger, base: base, stop: stop,
		states: stateLogger{log: o.Logger}, expired: map[model.CgroupID]bool{},
		dropped: map[Dropped]uint64{}, judge: verdict.Judge{StallAfter: o.StallAfter},
		counters: attribution.Counters{IdleToNobody: o.IdleToNobody},
	}
}

// Add registers a source, before Start. Facts are merged in the order of registration: if two sources report the same
// fact, the later source wins.
func (e *Engine) Add(reg Registration) {
	if reg.Deadline == 0 {
		reg.Deadline = defaultDeadline
	}
	e.readers = append(e.readers, &sourceReader{
		Registration: reg,
		read:         method{"Read", reg.Source.Read},
		base:         e.base,
		panics:       &e.panics,
		log:          e.log.With(zap.String("source", reg.Source.Name())),
	})
}

// Start starts to read the sources with an interval. Before Start a refresh is empty.
func (e *Engine) Start() {
	for _, r := range e.readers {
		if r.Err == nil && r.Interval > 0 {
			ready := make(chan struct{})
			e.waiting = append(e.waiting, ready)
			go safely.Do(r.Source.Name(), func() { r.background(ready) })
		}
	}
	e.mu.Lock()
	e.started = true
	e.mu.Unlock()
}

// Refresh returns the refresh in progress, the last refresh if it is recent, or a new refresh. It is empty before
// Start, and after Close if there was no refresh before.
func (e *Engine) Refresh() *Refresh { return e.Recent(e.reuse) }

// Recent returns the last refresh if it is at most age old, otherwise a new refresh.
func (e *Engine) Recent(age time.Duration) *Refresh {
	e.mu.Lock()
	r := e.latest
	switch {
	case !e.started || e.closed && r == nil:
		e.mu.Unlock()
		return &Refresh{}
	case r == nil || !e.closed && r.stale(max(age, e.reuse)):
		r = &Refresh{done: make(chan struct{})}
		e.latest = r
		e.mu.Unlock()
		e.fill(r)
		return r
	}
	e.mu.Unlock()
	<-r.done
	return r
}

// Last returns the last complete refresh; empty before the first. It never waits or reads.
func (e *Engine) Last() *Refresh {
	if r := e.finished.Load(); r != nil {
		return r
	}
	return &Refresh{}
}

// Owners returns the owners of cgroups. Callers may use only Workload and OwnerOf.
func (e *Engine) Owners() *identity.Table { return &e.owners }

// Close stops reading and closes all sources at the same time, each within its deadline, because some restore kernel
// state. A source that hangs is abandoned. The last refresh stays available.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	last := e.latest
	e.mu.Unlock()

	e.stop()
	if last != nil {
		<-last.done
	}
	errs := make([]error, len(e.readers))
	var wg safely.Group
	for i, r := range e.readers {
		if r.Err == nil {
			wg.Go(func() { errs[i] = r.close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *Refresh) stale(age time.Duration) bool {
	select {
	case <-r.done:
		return time.Since(r.At) >= age
	default:
		return false
	}
}
