// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// A card is one GPU with the amdgpu driver. One goroutine makes all calls into the driver for
// it, so that a hung driver blocks no other card.
//
// It does not use package hang, which makes each call in its own goroutine: the calls for a
// card share buffers and earlier values, and a scrape is answered between two steps of a slow
// round.
type card struct {
	wake chan struct{}
	stop context.CancelFunc

	mu      sync.Mutex
	waiting [2][]chan struct{} // closed after a quick read, and after a full read
	since   time.Time          // start of the unanswered call; zero without a call
	late    bool               // a caller gave up waiting for the call in progress
	latest  state              // result of the last read

	reader // used by the goroutine only
}

// state is the result of reading a card.
type state struct {
	read       bool // read at least once, or found suspended
	gpu        model.GPU
	partitions []partitionActivity
	sleeper    bool  // suspended, or suspends itself when idle
	err        error // error of its gpu_metrics
	silent     error // why none of its attributes can be read
}

// newCard starts the goroutine of a card; path is its device directory.
func newCard(o *Options, path, address string) *card {
	ctx, stop := context.WithCancel(context.Background())
	c := &card{wake: make(chan struct{}, 1), stop: stop, reader: newReader(o, path)}
	c.latest.gpu = model.GPU{Vendor: model.AMD, PCIAddress: address, UUID: address}
	go safely.Do("amdgpu", func() { c.run(ctx, address) })
	return c
}

// Kinds of reads.
const (
	quick = iota
	full
)

// ask requests a quick or a full read; the channel is closed after it.
func (c *card) ask(kind int) <-chan struct{} {
	done := make(chan struct{})
	c.mu.Lock()
	if len(c.waiting[kind]) < maxWaiting {
		c.waiting[kind] = append(c.waiting[kind], done)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // already woken
	}
	return done
}

// maxWaiting is more than the number of callers: a scrape and the background.
const maxWaiting = 16

// overdue reports whether the driver has not answered within drm.ScrapeTimeout.
func (c *card) overdue(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late || !c.since.IsZero() && now.Sub(c.since) >= drm.ScrapeTimeout
}

// stuck reports whether the driver has not answered within drm.HungAfter.
func (c *card) stuck(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.since.IsZero() && now.Sub(c.since) >= drm.HungAfter
}

// giveUp makes callers skip the card until it has answered.
func (c *card) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = !c.since.IsZero()
}

func (c *card) last() state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}

func (c *card) run(ctx context.Context, address string) {
	c.begin()
	c.identify(address)
	c.mu.Lock()
	c.latest.gpu = c.identity // valid even if later reads fail
	c.mu.Unlock()
	for {
		c.end()
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		all := c.take(full)
		c.answer(len(all) > 0)
		if len(all) == 0 {
			continue
		}
		for _, step := range c.steps() {
			if ctx.Err() != nil {
				return
			}
			c.begin()
			step()
			c.answer(false) // a scrape may be waiting
		}
		c.publish(all)
	}
}

// answer performs a quick read if must is set or a caller waits for one.
func (c *card) answer(must bool) {
	asked := c.take(quick)
	if !must && len(asked) == 0 {
		return
	}
	c.begin()
	c.readQuick(time.Now())
	c.publish(asked)
}

func (c *card) take(kind int) []chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.waiting[kind]
	c.waiting[kind] = nil
	return asked
}

func (c *card) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
}

func (c *card) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.late = time.Time{}, false
}

// publish publishes the result of a read and notifies the callers.
func (c *card) publish(asked []chan struct{}) {
	s := c.state()
	c.mu.Lock()
	before := c.latest.err
	c.latest, c.late = s, false
	c.mu.Unlock()
	if s.err != nil && before == nil {
		c.o.Logger.Warn("parsing gpu_metrics",
			zap.String("gpu", s.gpu.PCIAddress), zap.Error(s.err))
	}
	for _, done := range asked {
		close(done)
	}
}
