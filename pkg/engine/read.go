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

// sourceReader isolates a source: at most one goroutine calls it, no caller waits longer than the deadline, and a panic
// becomes an error.
type sourceReader struct {
	Registration
	base   context.Context // until the engine is closed
	log    *zap.Logger
	panics *atomic.Uint64 // the engine's

	answered time.Time // time of the last answer, for the refresh only
	logged   bool      // a goroutine's panic is in the log, for the refresh only

	// A reading is large: a pointer keeps the stack of the calling goroutine small.
	call hang.Call[*reading]

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

func (r *sourceReader) read() reading {
	return r.do("Read", r.Source.Read)
}

func (r *sourceReader) resolve(ids []model.CgroupID) reading {
	return r.do("Resolve", func(ctx context.Context) (model.Snapshot, error) {
		return r.Source.(Resolver).Resolve(ctx, ids)
	})
}

// do calls f, or joins the running call of the same method. After the call's deadline, do returns ErrStuck at once
// until the call returns.
func (r *sourceReader) do(method string, f func(context.Context) (model.Snapshot, error)) reading {
	begin := time.Now()
	got, err := r.call.Join(context.Background(), method, r.Deadline, func() (*reading, error) {
		// A source that obeys its context returns just before the deadline.
		ctx, cancel := context.WithTimeout(r.base, r.Deadline*9/10)
		defer cancel()
		start, got := time.Now(), new(reading)
		got.facts, got.err = f(ctx)
		got.at = time.Now()
		got.took = got.at.Sub(start)
		return got, nil
	})
	var stuck *hang.StuckError
	var panicked *safely.PanicError
	switch {
	case errors.As(err, &stuck):
		return reading{err: fmt.Errorf("%w: %s has not returned within %s", ErrStuck, stuck.Method, r.Deadline)}
	case errors.As(err, &panicked):
		err = fmt.Errorf("panic in %s: %v", method, panicked.Value)
		r.panics.Add(1)
		r.log.Error(err.Error(), zap.ByteString("stack", panicked.Stack))
		return reading{err: err, took: time.Since(begin), at: time.Now()}
	}
	return *got
}

// background reads the source at its interval until the engine is closed. It closes ready after the first reading.
func (r *sourceReader) background(ready chan<- struct{}) {
	timer := time.NewTimer(r.pause())
	defer timer.Stop()
	for first := true; ; first = false {
		got := r.read()
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
	} else if !errors.As(r.Err, &first) {
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
	got := r.do("Close", func(context.Context) (model.Snapshot, error) {
		return model.Snapshot{}, r.Source.Close()
	})
	if got.err != nil {
		return fmt.Errorf("close %s: %w", r.Source.Name(), got.err)
	}
	return nil
}
