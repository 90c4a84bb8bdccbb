// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/safely"
)

// background reads all workloads in rounds, one at a time, in a goroutine, because the kernel may block.
type background[T any] struct {
	ctx    context.Context //nolint:containedctx // ends at stop
	cancel context.CancelFunc

	mu      sync.Mutex
	round   sync.WaitGroup
	running bool
	began   time.Time
	found   T
	err     error // why results may be missing
}

func (b *background[T]) start() {
	b.ctx, b.cancel = context.WithCancel(context.Background()) //nolint:gosec // stop calls it
}

func (b *background[T]) stop() {
	b.cancel()
	b.round.Wait()
}

// next returns the results of the last round, and starts a round if the interval has passed. prepare is called at once,
// with the lock, and returns the function that reads.
func (b *background[T]) next(interval time.Duration, now time.Time, prepare func() func() (T, error)) (T, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.running && now.Sub(b.began) >= interval {
		find := prepare()
		b.running, b.began = true, now
		safely.Go(&b.round, "cgroup", func() {
			found, err := find()
			b.mu.Lock()
			defer b.mu.Unlock()
			b.running, b.found, b.err = false, found, err
		})
	}
	return b.found, b.err
}
