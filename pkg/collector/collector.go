// SPDX-License-Identifier: Apache-2.0

// Package collector turns what the sources read into metrics. Its engine reads
// all sources, has the owners named, attributes, and builds the metric
// families once; concurrent scrapes share them, and so do those within one
// second. A source that hangs or panics costs its own series and nothing else.
//
// Every metric is declared in one table (metrics.go); what is described,
// collected and documented comes from it.
package collector

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	defaultReuse    = time.Second
	defaultDeadline = 2 * time.Second
)

// Options say what to collect.
type Options struct {
	// Sources in the order in which their facts are merged: of two that tell
	// the same, the later one is believed. The collector closes them.
	Sources []Registration
	// Compat are the sets to export beside what is always there: of CompatSets,
	// and Process.
	Compat []string
	// Reuse is how long a refresh is good for further scrapes; 1 s when zero.
	Reuse  time.Duration
	Logger *zap.Logger

	// Node is the name of the node, Labels the labels and annotations of pods
	// and containers that accelscope_workload_info shows as label_NAME.
	Node   string
	Labels []string

	Version  string
	Revision string
}

// Collector reads the sources. Encode is the way to serve it; it is a
// prometheus.Gatherer and a prometheus.Collector too.
type Collector struct {
	readers []*reader
	waiting []chan struct{} // for the first reading of each background source
	reuse   time.Duration
	stop    context.CancelFunc

	// mu guards latest only; it is not held during a refresh.
	mu     sync.Mutex
	latest *refresh
	closed bool

	finished atomic.Pointer[refresh]

	// What follows belongs to the refresh in progress.
	names   map[uint64]model.Entity // those told of each cgroup that is not forgotten
	retired retired
	ledger  attribution.Ledger
	teller  teller
	build   *builder

	encoder encoder
}

var (
	_ prometheus.Gatherer  = (*Collector)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// refresh is all that is known of one moment. Nobody changes it when done is
// closed.
type refresh struct {
	done     chan struct{}
	at       time.Time
	facts    model.Snapshot
	shares   attribution.Attribution
	states   []SourceState
	families []family
	// proto is made when somebody asks for it, bodies are what was asked for.
	proto  func() []*dto.MetricFamily
	bodies bodies
}

// New makes a collector and starts to read the sources that are read in the
// background.
func New(o Options) *Collector {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Collector{
		reuse:  o.Reuse,
		stop:   cancel,
		teller: teller{log: o.Logger},
		build:  newBuilder(o),
	}
	if c.reuse == 0 {
		c.reuse = defaultReuse
	}
	for _, reg := range o.Sources {
		if reg.Deadline == 0 {
			reg.Deadline = defaultDeadline
		}
		r := &reader{
			Registration: reg,
			base:         ctx,
			log:          o.Logger.With(zap.String("source", reg.Source.Name())),
		}
		c.readers = append(c.readers, r)
		if reg.Err == nil && reg.Interval > 0 {
			ready := make(chan struct{})
			c.waiting = append(c.waiting, ready)
			go r.background(ready)
		}
	}
	return c
}

// Gather returns the metric families of now. They are shared: the caller must
// not change them.
func (c *Collector) Gather() ([]*dto.MetricFamily, error) {
	return c.now().proto(), nil
}

// States returns how each source does, in the order of the registrations. Like
// Gather it reads them first, unless that was done just now.
func (c *Collector) States() []SourceState {
	return slices.Clone(c.now().states)
}

// Snapshot returns the facts behind the metrics. The caller must not change
// what its slices and maps hold.
func (c *Collector) Snapshot() model.Snapshot {
	return c.now().facts
}

// All returns the facts behind the metrics, the shares of them and how each source
// does, all of one moment. The caller must not change what facts and shares hold.
func (c *Collector) All() (model.Snapshot, attribution.Attribution, []SourceState) {
	r := c.now()
	return r.facts, r.shares, slices.Clone(r.states)
}

// Recent returns the shares behind the metrics, for whoever does not mind that they
// are up to age old. It costs nothing while somebody scrapes.
func (c *Collector) Recent(age time.Duration) attribution.Attribution {
	c.mu.Lock()
	r := c.latest
	c.mu.Unlock()
	if r == nil || r.stale(age) {
		return c.now().shares
	}
	<-r.done
	return r.shares
}

// Last is the facts of the last refresh that is done, however old, and none
// before the first. It never waits and never reads.
func (c *Collector) Last() model.Snapshot {
	if r := c.finished.Load(); r != nil {
		return r.facts
	}
	return model.Snapshot{}
}

// Close stops reading and closes the sources side by side, each within its
// deadline: some have to put things back. One that hangs is left behind. What was
// collected last can still be gathered.
func (c *Collector) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	last := c.latest
	c.mu.Unlock()

	c.stop()
	if last != nil {
		<-last.done
	}
	errs := make([]error, len(c.readers))
	var wg sync.WaitGroup
	for i, r := range c.readers {
		if r.Err == nil {
			wg.Go(func() { errs[i] = r.close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// now returns the refresh in progress, the last one while it is fresh, or a
// new one.
func (c *Collector) now() *refresh {
	c.mu.Lock()
	r := c.latest
	if c.closed && r == nil {
		c.mu.Unlock()
		return newRefresh()
	}
	if r == nil || !c.closed && r.stale(c.reuse) {
		r = newRefresh()
		c.latest = r
		c.mu.Unlock()
		c.fill(r)
		return r
	}
	c.mu.Unlock()
	<-r.done
	return r
}

func newRefresh() *refresh {
	r := &refresh{done: make(chan struct{})}
	r.proto = sync.OnceValue(func() []*dto.MetricFamily { return protoFamilies(r.families) })
	return r
}

func (r *refresh) stale(reuse time.Duration) bool {
	select {
	case <-r.done:
		return time.Since(r.at) >= reuse
	default:
		return false
	}
}
