// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// ErrStuck means that a source has not answered within its deadline.
var ErrStuck = errors.New("stuck")

// sourceReader keeps one source from harming the others: at most one goroutine is inside it,
// no caller waits for it longer than its deadline, and it may panic.
type sourceReader struct {
	Registration
	base context.Context // ends when the engine is closed
	log  *zap.Logger

	answered time.Time // when it last did; belongs to the refresh

	call hang.Call[reading]

	mu     sync.Mutex
	latest reading // of a source that is read in the background
}

// reading is what a source answered.
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

// do calls f, or joins the call of the same method that is in progress.
func (r *sourceReader) do(method string, f func(context.Context) (model.Snapshot, error)) reading {
	begin := time.Now()
	got, err := r.call.Join(context.Background(), method, r.Deadline, func() (reading, error) {
		// A source that heeds its context returns just before the deadline.
		ctx, cancel := context.WithTimeout(r.base, r.Deadline*9/10)
		defer cancel()
		start := time.Now()
		facts, err := f(ctx)
		at := time.Now()
		return reading{facts, err, at.Sub(start), at}, nil
	})
	var stuck *hang.StuckError
	var panicked *hang.PanicError
	switch {
	case errors.As(err, &stuck):
		return reading{err: fmt.Errorf("%w: %s has not returned within %s", ErrStuck, stuck.Method, r.Deadline)}
	case errors.As(err, &panicked):
		err = fmt.Errorf("panic in %s: %v", method, panicked.Value)
		r.log.Error(err.Error(), zap.ByteString("stack", panicked.Stack))
		return reading{err: err, took: time.Since(begin), at: time.Now()}
	}
	return got
}

// background reads the source at its interval until the engine is closed.
// The first reading is there when ready is closed.
func (r *sourceReader) background(ready chan<- struct{}) {
	ticker := time.NewTicker(r.Interval)
	defer ticker.Stop()
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
		case <-ticker.C:
		}
		if r.base.Err() != nil { // both were ready
			return
		}
	}
}

// last returns the last reading, and an error while the source has not answered yet.
func (r *sourceReader) last() reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.latest.at.IsZero() && r.latest.err == nil {
		return reading{err: fmt.Errorf("%w: no answer yet", ErrStuck)}
	}
	return r.latest
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
