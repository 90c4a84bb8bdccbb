// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"cmp"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Gate.
type Options struct {
	// Limit is how long forks may wait for one call; zero selects the default.
	Limit time.Duration
	// MaxMappings is the number of mappings that the probed pages of a file may have; zero selects the default.
	MaxMappings int
	// BPFFS are directories of bpffs for links that Shutdown cannot detach. The first existing directory is used.
	BPFFS  []string
	Logger *zap.Logger
}

// DefaultLimit applies to one probe. If no process is in the way, a call for 1,000 processes takes a fraction of it
// (docs/internals/performance.md).
const (
	DefaultLimit       = 100 * time.Millisecond
	DefaultMaxMappings = 5_000
)

const (
	// looks at a file with a process that holds its mmap_lock, and the time between them: a short lock is no reason to
	// defer.
	looksWhileHeld = 10
	lookPause      = 5 * time.Millisecond
	// openLimit is how long opening a file or reading a page may take. maxOpening bounds the calls that hang.
	openLimit  = 2 * time.Second
	maxOpening = 4
	// maxClosing is the number of probes that wait for their grace periods at once.
	maxClosing = 8
)

// Gate attaches and detaches uprobes. All sources share it. It is safe for concurrent use.
type Gate struct {
	opts    Options
	eyes    *eyes
	opening hang.Group[string, *os.File]
	// released is eyes.released: it waits for a call, and returns how long forks may have waited.
	released func(c *change, mappings int, early bool) (time.Duration, error)
	closing  chan struct{} // has a place for each probe that is being closed

	mu        sync.Mutex
	breaker   breaker
	durations map[durationKey]*durations
	queue     queue
	running   bool           // a goroutine works on the queue
	endBy     time.Time      // deadline of Shutdown; zero before
	left      map[uint64]int // links that an earlier sensor pinned, by address space
	ending    sync.WaitGroup // Shutdown
	closed    sync.Once
}

// New loads the programs of a Gate.
func New(opts Options) (*Gate, error) {
	opts.Limit = cmp.Or(opts.Limit, DefaultLimit)
	opts.MaxMappings = cmp.Or(opts.MaxMappings, DefaultMaxMappings)
	opts.Logger = cmp.Or(opts.Logger, zap.NewNop())
	if err := hook.Usable(); err != nil {
		return nil, err
	}
	eyes, err := newEyes(hook.Spec{Load: gen.LoadMappings})
	if err != nil {
		return nil, err
	}
	if err := eyes.unmeasured; err != nil {
		opts.Logger.Info("what forks wait for uprobes is not measured, only how long attaching takes", zap.Error(err))
	}
	g := &Gate{
		opts: opts, breaker: newBreaker(), durations: map[durationKey]*durations{}, closing: make(chan struct{}, maxClosing),
		eyes: eyes, released: eyes.released,
	}
	g.opening.Limit = maxOpening
	g.findLeft()
	return g, nil
}

// withdraw takes an operation out of the queue. It reports false if the operation has left the queue.
func (g *Gate) withdraw(o *Operation) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queue.remove(o)
}

func (g *Gate) enqueue(o *Operation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue.waiting = append(g.queue.waiting, o)
	if !g.running {
		g.running = true
		go safely.Do(o.Source, g.work)
	}
}

// work does the operations in the queue, one at a time: all of them wait for the same lock of the kernel.
func (g *Gate) work() {
	for {
		g.mu.Lock()
		o := g.queue.next()
		g.running = o != nil
		g.mu.Unlock()
		if o == nil {
			return
		}
		safely.Do(o.Source, func() {
			defer g.finish(o)
			g.do(o)
		})
	}
}

// Close waits for Shutdown of all sources, and closes the programs.
func (g *Gate) Close() error {
	g.ending.Wait()
	g.closed.Do(g.eyes.close)
	return nil
}
