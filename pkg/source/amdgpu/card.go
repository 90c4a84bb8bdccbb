// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// A card is one GPU that amdgpu drives. One goroutine makes all calls into its driver,
// so that a driver that hangs blocks no other card.
//
// It does not use package hang, which makes each call in a goroutine of its own: the
// calls for a card share buffers and what was read before, and a scrape is answered
// between two steps of the slow round.
type card struct {
	wake chan struct{}
	stop context.CancelFunc

	mu      sync.Mutex
	waiting [2]waiters // for what is quick, for all of it
	since   time.Time  // when the driver was asked what it has not answered; zero while nothing is asked
	late    bool       // it has not answered somebody in time, and not yet
	told    state      // what was read last

	reader // of the goroutine
}

// state is what is known of a card.
type state struct {
	read       bool // it has been read, or left asleep
	gpu        model.GPU
	partitions []partitionActivity
	sleeper    bool  // it is asleep, or goes there by itself
	err        error // of its gpu_metrics
}

// patience is how long a scrape waits for a driver. What takes longer is what it
// told last, and stuck when one attribute takes longer than hungAfter.
const (
	patience  = 800 * time.Millisecond
	hungAfter = 2 * time.Second
)

// newCard starts the goroutine of a card; path is its device directory.
func newCard(o *Options, path, address string) *card {
	ctx, stop := context.WithCancel(context.Background())
	c := &card{wake: make(chan struct{}, 1), stop: stop, reader: newReader(o, path)}
	c.told.gpu = model.GPU{Vendor: model.AMD, PCIAddress: address, UUID: address}
	go c.run(ctx, address)
	return c
}

// waiters are told by closing their channels.
type waiters []chan struct{}

// What can be asked for.
const (
	quickly = iota
	wholly
)

// ask has the card read what is quick, or all of it; the channel is closed when
// it is known.
func (c *card) ask(what int) <-chan struct{} {
	done := make(chan struct{})
	c.mu.Lock()
	if len(c.waiting[what]) < maxWaiting {
		c.waiting[what] = append(c.waiting[what], done)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // it will look
	}
	return done
}

// maxWaiting is more than who ever waits: a scrape and the background.
const maxWaiting = 16

// overdue says that the driver has not answered for longer than anybody waits.
func (c *card) overdue(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late || !c.since.IsZero() && now.Sub(c.since) >= patience
}

// stuck says that the driver has not answered for so long that it must hang.
func (c *card) stuck(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.since.IsZero() && now.Sub(c.since) >= hungAfter
}

// giveUp has nobody wait for it until it has answered.
func (c *card) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = !c.since.IsZero()
}

func (c *card) last() state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

func (c *card) run(ctx context.Context, address string) {
	c.begin()
	c.identify(address)
	c.mu.Lock()
	c.told.gpu = c.identity // whatever becomes of the rest
	c.mu.Unlock()
	for {
		c.end()
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		all := c.take(wholly)
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
			c.answer(false) // a scrape comes in between
		}
		c.publish(all)
	}
}

// answer reads what is quick, if it has to be or somebody waits for it.
func (c *card) answer(must bool) {
	asked := c.take(quickly)
	if !must && len(asked) == 0 {
		return
	}
	c.begin()
	c.readQuick(time.Now())
	c.publish(asked)
}

func (c *card) take(what int) waiters {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.waiting[what]
	c.waiting[what] = nil
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

// publish makes what was read known, and tells those who asked.
func (c *card) publish(asked waiters) {
	s := c.state()
	c.mu.Lock()
	before := c.told.err
	c.told, c.late = s, false
	c.mu.Unlock()
	if s.err != nil && before == nil {
		c.o.Logger.Warn("a part of what the GPU tells is not known here: a newer version may know it",
			zap.String("gpu", s.gpu.PCIAddress), zap.Error(s.err))
	}
	for _, done := range asked {
		close(done)
	}
}
