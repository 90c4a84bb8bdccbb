// SPDX-License-Identifier: Apache-2.0

// Package event presents the lives of containers as OTLP logs over gRPC, so
// that any OpenTelemetry Collector is the central server.
//
// What a receiver may rely on: a snapshot of all containers comes first and after
// everything that may have cost an event (a full queue, a refusal, a connection
// that was lost), then the stream. Records are numbered in their session, which is
// one life of this process, and arrive in that order; a number that is missing is
// an event that was lost, which the next snapshot says as well. A batch whose fate
// is unknown is sent again with the same numbers and marked.
//
// Events go into a bounded queue (queue.go), of which one goroutine (send.go)
// makes batches of records (record.go), one in flight at a time, on one connection
// (wire.go) that is made anew, and greeted, after each loss. What an answer means
// is in verdict.go. The SDK makes the records and writes them; its own queue and
// retry would neither count, nor mark, nor keep what matters.
package event

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options of an Exporter.
type Options struct {
	Endpoint string // HOST:PORT of the collector's OTLP receiver for gRPC
	Insecure bool   // without TLS
	// CAFile holds who signs the collector's certificate, PEM; empty for the
	// system's authorities. CertFile and KeyFile are what we show to it.
	CAFile, CertFile, KeyFile string
	HeadersFile               string // lines "NAME: VALUE", sent with each call and never logged
	QueueSize                 int    // most events to keep

	NodeName, NodeIP, Version string

	// Watch has a function called with each event, in order; it does not block.
	// Snapshot calls one with what exists at one moment, between two events.
	Watch    func(func(model.Event))
	Snapshot func(func([]model.Container))
	// Ready is closed when Snapshot knows what exists; nil if it always does.
	// Nothing is told before: a run would begin by saying that the node is empty.
	Ready <-chan struct{}
	// Shares tells who uses which HCA; nil leaves device_open events out.
	Shares func() attribution.Attribution

	Logger *zap.Logger
}

// timing is how long things may take. Tests have less of it.
type timing struct {
	backoff, maxBackoff time.Duration // between two tries
	export              time.Duration // of one call
	snapshots           time.Duration // between two snapshots, at least
	poll                time.Duration // of Shares
	flush               time.Duration // for the rest, at the end
	grace               time.Duration // after that, for who still asks somebody
}

var defaults = timing{
	backoff: 100 * time.Millisecond, maxBackoff: 5 * time.Second, export: 10 * time.Second,
	snapshots: 2 * time.Second, poll: 5 * time.Second, flush: 1500 * time.Millisecond, grace: 500 * time.Millisecond,
}

// An Exporter sends events. It is a source of the collector as well, which
// tells what became of them.
type Exporter struct {
	o        Options
	t        timing
	log      *zap.Logger
	queue    *queue
	devices  devices
	renderer *renderer

	ctx     context.Context // ends when nothing may be waited for any more
	cancel  context.CancelFunc
	closing chan struct{}
	closed  sync.Once
	done    sync.WaitGroup

	mu        sync.Mutex
	connected bool
	err       error // why events do not get through

	// The following belong to the sender.
	batch    []entry
	failures int       // since the last success
	torn     bool      // a part of the last snapshot did not arrive
	strikes  int       // snapshots in a row that did not arrive whole
	taken    time.Time // when the last snapshot was
	told     string    // the last refusal that was logged
	lost     uint64    // events that were logged as lost
	final    bool      // the flush at the end
}

// New starts sending. The collector may be away; a file that cannot be read or
// an endpoint that is none is an error.
func New(o Options) (*Exporter, error) { return start(o, defaults) }

// Check says whether New would take what the options say of the receiver. It
// reads the files and connects to nobody.
func (o Options) Check() error { return o.check(defaults) }

func (o Options) check(t timing) error {
	_, port, err := net.SplitHostPort(o.Endpoint)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("endpoint %q is not HOST:PORT: %w", o.Endpoint, err)
	}
	if o.QueueSize < 1 {
		return fmt.Errorf("a queue of %d events holds none", o.QueueSize)
	}
	w, err := dial(o, t.export) // reads the files
	if err != nil {
		return err
	}
	w.close(false)
	return nil
}

func start(o Options, t timing) (*Exporter, error) {
	if err := o.check(t); err != nil {
		return nil, err
	}
	if o.Watch == nil || o.Snapshot == nil {
		return nil, errors.New("nobody tells of containers: the runtime source is needed")
	}
	log := o.Logger
	if log == nil {
		log = zap.NewNop()
	}
	if o.Insecure && o.HeadersFile != "" {
		log.Warn("the headers, credentials maybe, are sent without TLS")
	}
	e := &Exporter{
		o: o, t: t, log: log, queue: newQueue(o.QueueSize), renderer: newRenderer(o, newSession()),
		closing: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	o.Watch(func(ev model.Event) { e.queue.offer(ev, time.Now()) })
	e.done.Go(e.send)
	if o.Shares != nil {
		e.done.Go(e.poll)
	}
	return e, nil
}

// newSession is a random UUID.
func newSession() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Name is "events".
func (e *Exporter) Name() string { return "events" }

// Read tells what became of the events so far; the error is why they do not
// get through, with the cure.
func (e *Exporter) Read(context.Context) (model.Snapshot, error) {
	s := model.Snapshot{Events: e.Stats()}
	e.mu.Lock()
	defer e.mu.Unlock()
	return s, e.err
}

// Stats is what became of the events so far.
func (e *Exporter) Stats() *model.EventStats {
	s := e.queue.stats()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Connected = e.connected
	return s
}

// Close sends what is queued, within a bound, and counts the rest as dropped.
func (e *Exporter) Close() error {
	e.closed.Do(func() {
		e.queue.stop()
		close(e.closing)
		timer := time.AfterFunc(e.t.flush, e.cancel)
		defer timer.Stop()
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			e.done.Wait()
		}()
		select {
		case <-finished:
		case <-time.After(e.t.flush + e.t.grace):
			e.log.Warn("somebody who was asked for containers or shares does not answer")
		}
		e.cancel()
		if lost := e.queue.stats().Queued; lost > 0 {
			e.log.Warn("events were not sent before the end", zap.Uint64("events", lost))
		}
		e.queue.abandon()
	})
	return nil
}

// poll tells who opens which device for the first time.
func (e *Exporter) poll() {
	tick := time.NewTicker(e.t.poll)
	defer tick.Stop()
	for {
		select {
		case <-e.closing:
			return
		case <-tick.C:
			for _, ev := range e.devices.update(e.o.Shares(), time.Now()) {
				e.queue.offer(ev, ev.Time)
			}
		}
	}
}
