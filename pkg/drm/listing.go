// SPDX-License-Identifier: Apache-2.0

package drm

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

// ErrBounded reports that a limit was exceeded and some results are missing.
var ErrBounded = errors.New("left out")

// MaxClients bounds the memory that containers can make a listing use.
const MaxClients = 1 << 14

// Limits of the time of a listing: of all processes together, and of one process.
const (
	ListTimeout  = 2 * time.Second
	ProcessLimit = 250 * time.Millisecond
)

// Timeout is the error of a listing that ran out of time.
func Timeout(read, of int, limit time.Duration) error {
	return fmt.Errorf("%d of %d processes in %v: the rest is %w", read, of, limit, ErrBounded)
}

// TooMany is the error of a listing with more than MaxClients clients.
func TooMany() error {
	return fmt.Errorf("more than %d opens of GPUs: some are %w", MaxClients, ErrBounded)
}

// A Listing is the list of GPU processes, with what T has of the GPUs at the same moment.
type Listing[T any] struct {
	At        time.Time
	Processes []model.GPUProcess
	Err       error
	GPUs      T
}

// Old reports whether the next listing, which is made every interval, is overdue. It is false of no listing.
func (l *Listing[T]) Old(interval time.Duration) bool {
	return l != nil && time.Since(l.At) > 3*interval+ScrapeTimeout
}

// Add adds the processes to a snapshot with its GPUs, and the state of listing them if it is not OK.
func (l *Listing[T]) Add(snap *model.Snapshot, source string, old bool) {
	if l != nil && !old {
		snap.GPUProcesses = l.Processes
	}
	snap.BoundGPUs()
	state := model.DeviceState{Source: source, Device: "processes", State: model.StateFailed}
	switch {
	case l == nil:
		return
	case old:
		state.State, state.Reason = model.StateStuck, "listing processes has not returned"
	case l.Err == nil:
		return
	default:
		state.Reason = l.Err.Error()
	}
	snap.DeviceStates = append(snap.DeviceStates, state)
}

// Lister lists processes in the background.
type Lister[T any] struct {
	Interval time.Duration
	Logger   *zap.Logger

	mu     sync.Mutex
	last   *Listing[T]
	logged string // last error
}

// Last returns the last listing, nil before the first.
func (l *Lister[T]) Last() *Listing[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Forget forgets the listing. Without GPUs nothing is listed, and the listing is not stuck.
func (l *Lister[T]) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = nil
}

// Run lists processes every Interval until ctx is done. prepare, which is called every time, returns what makes a listing, nil
// without GPUs. While a listing hangs, no other is begun. done is called after each round.
func (l *Lister[T]) Run(ctx context.Context, prepare func(context.Context) func() *Listing[T], done func()) {
	ticker := time.NewTicker(l.Interval)
	defer ticker.Stop()
	var calls hang.Call[*Listing[T]]
	var pending *hang.Pending[*Listing[T]] // the listing in progress
	for {
		if list := prepare(ctx); pending == nil && list != nil {
			pending = calls.Start(ScrapeTimeout, func() (*Listing[T], error) { return list(), nil })
		}
		_, _ = pending.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if pending.Returned() { // a late listing is used, too
			made, err := pending.Wait(ctx)
			if err != nil {
				made = &Listing[T]{At: time.Now(), Err: err}
			}
			l.publish(made)
			pending = nil
		}
		done()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// publish publishes a listing and logs a new error once.
func (l *Lister[T]) publish(made *Listing[T]) {
	l.mu.Lock()
	l.last = made
	l.mu.Unlock()
	if made.Err == nil {
		l.logged = ""
	} else if made.Err.Error() != l.logged {
		l.logged = made.Err.Error()
		l.Logger.Warn("listing the users of GPUs", zap.Error(made.Err))
	}
}
