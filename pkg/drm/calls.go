// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// Calls makes the calls into the driver of one GPU. A call that hangs keeps the GPU from further calls, and blocks no other GPU.
type Calls struct {
	call hang.Call[model.GPU]

	mu     sync.Mutex
	since  time.Time // start of the call in progress; zero between calls
	latest model.GPU // result of the last call that returned
	silent error     // why it could read no attribute
}

// NewCalls returns the Calls of a GPU, with what is known before the first call.
func NewCalls(g model.GPU) *Calls { return &Calls{latest: g} }

// Start starts a read, which returns the GPU, or why no attribute could be read. It returns nil if the last one has not returned.
func (c *Calls) Start(read func(now time.Time) (g model.GPU, silent error)) *hang.Pending[model.GPU] {
	return c.call.Start(ScrapeTimeout, func() (model.GPU, error) {
		c.set(func() { c.since = time.Now() })
		defer c.set(func() { c.since = time.Time{} })
		g, silent := read(time.Now())
		c.set(func() { c.latest, c.silent = g, silent })
		return g, nil
	})
}

func (c *Calls) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Last returns the result of the last call that returned, its constant properties if the call in progress hangs, and the state.
func (c *Calls) Last(source, device string, now time.Time) (model.GPU, model.DeviceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, stuck := c.latest, !c.since.IsZero() && now.Sub(c.since) >= HungAfter
	if stuck {
		g = StuckGPU(g)
	}
	return g, State(source, device, g, stuck, c.silent)
}
