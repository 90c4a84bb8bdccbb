// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"errors"
	"sync"
	"time"
)

// hungAfter is how long a step may take before it is told that it hangs, or an
// interval where that is longer: a driver may be busy for some seconds, and what it
// told last bridges them.
const hungAfter = 4 * patience

// errLate says that the worker is still at what it does, errStuck that it has been
// for so long that a call into the driver must hang.
var (
	errLate  = errors.New("the device is busy with what was asked before")
	errStuck = errors.New("a call into the driver has not returned")
)

// worker makes all calls for one device in one goroutine: the questions of scrapes,
// and the steps of its rounds between them.
//
// It does not use package hang, which makes each call in a goroutine of its own: the
// calls for a device share what was read before, a question of a scrape has to wait
// for a step at most and not for a round, and NVML may be closed only when no call
// for any device is in progress.
type worker struct {
	hung time.Duration
	jobs chan func()
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	began   time.Time // the step under way; zero while there is none
	ended   bool
	overdue bool // somebody gave up waiting for what it does now
}

func newWorker(interval time.Duration) *worker {
	return &worker{hung: max(hungAfter, interval), jobs: make(chan func()), stop: make(chan struct{}), done: make(chan struct{})}
}

// run makes a round of steps at once and every interval, until stop. Whoever asks
// does not wait for the end of a round: that of a step is enough.
func (w *worker) run(interval time.Duration, round []func()) {
	defer close(w.done)
	tick := time.NewTicker(interval)
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
		case <-tick.C:
			left = round
		}
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

// late says how the step under way does, if it was given up.
func (w *worker) late() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.overdue:
		return nil
	case time.Since(w.began) < w.hung:
		return errLate
	}
	return errStuck
}

// giveUp is what is left to whoever has no more time to wait.
func (w *worker) giveUp() error {
	w.mu.Lock()
	w.overdue = !w.began.IsZero()
	w.mu.Unlock()
	if err := w.late(); err != nil {
		return err
	}
	return errLate
}

// end lets the goroutine go when its step is done; done tells when.
func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.ended = true
		close(w.stop)
	}
}

// ask has the worker call fn. The error is errLate or errStuck when ctx ends before
// that, and at once when a step that was given up is still under way.
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
