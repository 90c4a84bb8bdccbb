// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// hungAfter is the minimum time after which a step counts as hung; a longer interval replaces it. A driver may be busy
// for some seconds, during which the last reading is used.
const hungAfter = 4 * wire.ReadTimeout

var errLate = errors.New("the device is busy with an earlier request")

// worker makes all calls for one device in one goroutine: the reads of scrapes, and between them the steps of its
// rounds.
//
// It does not use package hang, which makes each call in its own goroutine. The calls for a device share earlier
// results, a scrape waits for at most one step and not for a round, and NVML may be closed only when no call for any
// device is in progress.
type worker struct {
	hung time.Duration
	// offset delays the rounds of this worker after the rounds of the first worker. If all steps began together, a hang
	// of the driver would not show which call was first.
	offset time.Duration
	jobs   chan func()
	soon   chan struct{} // begins the next round at once
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once // closes stop

	mu      sync.Mutex
	began   time.Time // start of the step in progress, or of its current call if known; zero between steps
	overdue bool      // a caller stopped waiting for the step in progress
}

func newWorker(interval, offset time.Duration) *worker {
	return &worker{
		hung: max(hungAfter, interval), offset: offset,
		jobs: make(chan func()), soon: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// run runs a round of steps immediately and then every interval, until stop. A caller of ask waits for the end of a
// step, not of a round.
func (w *worker) run(interval time.Duration, round []func()) {
	defer close(w.done)
	tick := time.NewTimer(interval + w.offset)
	defer tick.Stop()
	left := round
	for {
		select {
		case <-w.stop:
			return
		case job := <-w.jobs:
			w.step(job)
			continue
		default:
		}
		if len(left) > 0 {
			w.step(left[0])
			left = left[1:]
			continue
		}
		select {
		case <-w.stop:
			return
		case job := <-w.jobs:
			w.step(job)
		case <-w.soon:
			left = round
		case <-tick.C:
			tick.Reset(interval)
			left = round
		}
	}
}

// again begins a round as soon as no other is in progress.
func (w *worker) again() {
	select {
	case w.soon <- struct{}{}:
	default:
	}
}

func (w *worker) step(job func()) {
	w.mu.Lock()
	w.began = time.Now()
	w.mu.Unlock()
	job()
	w.mu.Lock()
	w.began, w.overdue = time.Time{}, false
	w.mu.Unlock()
}

// returned records that a call of the step in progress has returned, and the next call begins.
func (w *worker) returned() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() {
		w.began = time.Now()
	}
}

// inStep returns when the step in progress began, and whether a step is in progress.
func (w *worker) inStep() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.began, !w.began.IsZero()
}

// late returns an error if a caller gave up the step in progress.
func (w *worker) late() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.overdue:
		return nil
	case time.Since(w.began) < w.hung:
		return errLate
	}
	return wire.ErrStuck
}

// giveUp returns the error for a caller that stops waiting.
func (w *worker) giveUp() error {
	w.mu.Lock()
	w.overdue = !w.began.IsZero()
	w.mu.Unlock()
	if err := w.late(); err != nil {
		return err
	}
	return errLate
}

// end stops the goroutine after its current step and then closes done.
func (w *worker) end() { w.once.Do(func() { close(w.stop) }) }

// ask calls fn in the worker. If ctx ends first, the error is errLate or wire.ErrStuck. While a step that was given up
// is in progress, ask returns the error at once.
func ask[T any](ctx context.Context, w *worker, fn func() T) (T, error) {
	var none T
	if err := w.late(); err != nil {
		return none, err
	}
	answer := make(chan T, 1)
	select {
	case w.jobs <- func() { answer <- fn() }:
	case <-w.done:
		return none, context.Canceled
	case <-ctx.Done():
		return none, w.giveUp()
	}
	select {
	case v := <-answer:
		return v, nil
	case <-ctx.Done():
		return none, w.giveUp()
	}
}
