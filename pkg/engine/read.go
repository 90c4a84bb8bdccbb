// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// ErrStuck means that a source did not answer within its deadline.
var ErrStuck = errors.New("stuck")

// sourceReader isolates a source: at most one goroutine calls it at a time, no caller waits longer than the deadline, and a panic
// becomes an error.
type sourceReader struct {
	Registration
	read   method          // of Source
	base   context.Context // until the engine is closed
	log    *zap.Logger
	panics *atomic.Uint64 // the engine's

	answered time.Time // time of the last answer, for the refresh only
	logged   bool      // a goroutine's panic is in the log, for the refresh only

	// A reading is large: a pointer keeps the stack of the calling goroutine small.
	call    hang.Call[*reading]
	pending *hang.Pending[*reading] // in a Round, for the refresh only
	asked   time.Time               // when it was queued

	// forgetting calls Forget with the cgroups in owes. Only the refresh uses both.
	forgetting hang.Call[struct{}]
	owes       map[model.CgroupID]bool
	holdings   bool // the source reports objects or memory of cgroups

	mu     sync.Mutex
	latest reading // of a background source
}

type reading struct {
	facts model.Snapshot
	err   error
	took  time.Duration
	at    time.Time
}

// A method is a call of a source.
type method struct {
	name string
	call func(context.Context) (model.Snapshot, error)
}

func (r *sourceReader) resolving(ids []model.CgroupID) method {
	return method{"Resolve", func(ctx context.Context) (model.Snapshot, error) { return r.Source.(Resolver).Resolve(ctx, ids) }}
}

// queue adds the call to round, or returns false if a call is in progress. ctx is for a source with the default deadline.
// answer returns the result.
func (r *sourceReader) queue(ctx context.Context, round *hang.Round, m method) bool {
	r.asked = time.Now()
	r.pending = r.call.Queue(m.name, r.Deadline, func() (*reading, error) {
		if r.Deadline == defaultDeadline {
			return m.made(ctx), nil
		}
		return r.made(m), nil
	})
	if r.pending == nil {
		return false
	}
	round.Add(r.pending, nil)
	return true
}

func (r *sourceReader) answer(m method) reading {
	got, err := r.call.Answer(r.pending)
	if errors.Is(err, hang.ErrStuck) {
		err = &hang.StuckError{Method: m.name}
	}
	return r.result(m, r.asked, got, err)
}

// do makes the call, or joins the running call of the same method. After the call's deadline, do returns ErrStuck at
// once until the call returns.
func (r *sourceReader) do(m method) reading {
	begin := time.Now()
	got, err := r.call.Join(context.Background(), m.name, r.Deadline, func() (*reading, error) { return r.made(m), nil })
	return r.result(m, begin, got, err)
}

// made makes the call. A source that obeys its context returns just before the deadline.
func (r *sourceReader) made(m method) *reading {
	ctx, cancel := limited(r.base, r.Deadline)
	defer cancel()
	return m.made(ctx)
}

func limited(base context.Context, deadline time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(base, deadline*9/10)
}

func (m method) made(ctx context.Context) *reading {
	start, got := time.Now(), new(reading)
	got.facts, got.err = m.call(ctx)
	got.at = time.Now()
	got.took = got.at.Sub(start)
	return got
}

// result is the reading of a call that began at begin.
func (r *sourceReader) result(m method, begin time.Time, got *reading, err error) reading {
	if err == nil {
		return *got
	}
	if stuck, ok := errors.AsType[*hang.StuckError](err); ok {
		return reading{err: fmt.Errorf("%w: %s has not returned within %s", ErrStuck, stuck.Method, r.Deadline)}
	}
	if panicked, ok := errors.AsType[*safely.PanicError](err); ok {
		err = fmt.Errorf("panic in %s: %v", m.name, panicked.Value)
		r.panics.Add(1)
		r.log.Error(err.Error(), zap.ByteString("stack", panicked.Stack))
	}
	return reading{err: err, took: time.Since(begin), at: time.Now()}
}

// background reads the source at its interval until the engine is closed. It closes ready after the first reading.
func (r *sourceReader) background(ready chan<- struct{}) {
	timer := time.NewTimer(r.pause())
	defer timer.Stop()
	for first := true; ; first = false {
		got := r.do(r.read)
		r.mu.Lock()
		r.latest = got
		r.mu.Unlock()
		if first {
			close(ready)
		}
		select {
		case <-r.base.Done():
			return
		case <-timer.C:
		}
		timer.Reset(r.pause())
		if r.base.Err() != nil { // both were ready
			return
		}
	}
}

// pause returns the time until the next reading, within 5 % of the interval: sensors that start together must not
// always ask the same server together, such as the API server that checks tokens for all kubelets.
func (r *sourceReader) pause() time.Duration {
	return r.Interval - r.Interval/20 + rand.N(r.Interval/10+1)
}

// last returns the last reading, or ErrStuck before the first answer.
func (r *sourceReader) last() reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.latest.at.IsZero() && r.latest.err == nil {
		return reading{err: fmt.Errorf("%w: no answer yet", ErrStuck)}
	}
	return r.latest
}

// broken returns an error if a goroutine of the source panicked: its work has ended for good, so the source has failed,
// even if it still answers. broken logs the first panic, or the constructor's panic in Err.
func (r *sourceReader) broken() (err error) {
	first, _ := safely.Panicked(r.Source.Name())
	if first != nil {
		err = fmt.Errorf("a goroutine of the source ended: %w", first)
	} else if first, _ = errors.AsType[*safely.PanicError](r.Err); first == nil {
		return nil
	}
	if !r.logged {
		r.logged = true
		r.log.Error("panic in a source", zap.Any("panic", first.Value), zap.ByteString("stack", first.Stack))
	}
	return err
}

// close closes the source, unless a call hangs in it.
func (r *sourceReader) close() error {
	got := r.do(method{"Close", func(context.Context) (model.Snapshot, error) { return model.Snapshot{}, r.Source.Close() }})
	if got.err != nil {
		return fmt.Errorf("close %s: %w", r.Source.Name(), got.err)
	}
	return nil
}
