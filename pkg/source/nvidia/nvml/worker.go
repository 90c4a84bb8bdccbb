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

// hungAfter is the minimum time after which a step counts as hung; a longer interval replaces
// it. A driver may be busy for some seconds, during which the last reading is used.
const hungAfter = 4 * wire.ReadTimeout

// errLate reports that the worker is still busy.
var errLate = errors.New("the device is busy with an earlier request")

// worker makes all calls for one device in one goroutine: the reads of scrapes, and the steps
// of its rounds between them.
//
// It does not use package hang, which makes each call in its own goroutine: the calls for a
// device share what was read before, a scrape waits for one step at most and not for a round,
// and NVML may be closed only when no call for any device is in progress.
type worker struct {
	hung time.Duration
	// offset is the time by which the rounds of this worker are later than those of the first one. Its steps would otherwise
	// begin together with those of all others, and a hang of the driver would not show which call was the first.
	offset time.Duration
	jobs   chan func()
	soon   chan struct{} // begins the next round at once
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once // closes stop

	mu      sync.Mutex
	began   time.Time // start of the step in progress, or of its current call if that is known; zero if there is none
	overdue bool      // a caller gave up waiting for the step in progress
}

func newWorker(interval, offset time.Duration) *worker {
	return &worker{
		hung: max(hungAfter, interval), offset: offset,
		jobs: make(chan func()), soon: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// run runs a round of steps immediately and then every interval, until stop. A caller of ask
// waits for the end of a step, not of a round.
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

// returned records that a call of the step in progress has returned, and that the next one begins.
func (w *worker) returned() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() {
		w.began = time.Now()
	}
}

// inStep returns when the step in progress began, and whether there is one.
func (w *worker) inStep() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.began, !w.began.IsZero()
}

// late returns the state of a step in progress that was given up.
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

// ask calls fn in the worker. The error is errLate or wire.ErrStuck if ctx ends first; it is
// immediate while a step that was given up is in progress.
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
