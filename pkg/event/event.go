// SPDX-License-Identifier: Apache-2.0

// Package event sends the lives of containers and the faults of GPUs and HCAs as OTLP logs over gRPC to any
// OpenTelemetry Collector.
//
// A receiver may rely on this: a snapshot of all containers comes first and after every possible loss of events (a full
// queue, a refusal, a lost connection), then the stream. Records are numbered per session, a run of this process, and
// arrive in that order. A missing number is a lost event, and the next snapshot has the number of lost events. A batch
// that may have arrived is sent again with the same numbers and marked.
//
// Events go into a bounded queue (queue.go). One goroutine (send.go) makes batches of records (record.go) and sends
// them one at a time on one connection (wire.go). After a loss it makes a new connection and sends an empty request
// first. action.go interprets the answers. The SDK makes and encodes the records, but its queue and retry neither count
// nor mark records and are not used.
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
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options of an Exporter.
type Options struct {
	Endpoint string // HOST:PORT of the collector's OTLP receiver for gRPC
	Insecure bool   // without TLS
	// CAFile holds the CA certificates (PEM) for the collector's certificate; default the system's. CertFile and
	// KeyFile hold the client certificate and its key.
	CAFile, CertFile, KeyFile string
	HeadersFile               string // lines "NAME: VALUE", sent with each call and never logged
	QueueSize                 int    // maximum number of queued events

	NodeName, NodeIP, Version string

	// Watch subscribes a function, which does not block, to all events, in order. Snapshot calls a function with the
	// existing containers, at one moment between two events.
	Watch    func(func(model.Event))
	Snapshot func(func([]model.Container))
	// Ready is closed when Snapshot is complete; nil: always. Nothing is sent before, because the session would begin
	// with an empty node.
	Ready <-chan struct{}
	// Shares returns the use of each HCA and the faults; nil disables all events except the lives of containers.
	Shares func() attribution.Attribution

	// LinkFlaps returns the last flaps of ports' links, oldest first; nil disables link_flap events.
	LinkFlaps func() []model.LinkFlap

	// HCAs returns the HCAs of the node; nil disables sm_change events.
	HCAs func() []model.HCA

	Logger *zap.Logger
}

type timing struct {
	backoff, maxBackoff time.Duration // between two attempts
	export              time.Duration // time limit of one call
	snapshots           time.Duration // minimum between two snapshots
	spread              time.Duration // in which the first snapshot of a further connection begins
	poll                time.Duration // interval of Shares
	flush               time.Duration // time limit for the queue at the end
	grace               time.Duration // further time limit for a call of Snapshot or Shares
}

var defaults = timing{
	backoff: 100 * time.Millisecond, maxBackoff: 5 * time.Second, export: 10 * time.Second,
	snapshots: 2 * time.Second, spread: 30 * time.Second, poll: 5 * time.Second,
	flush: 1500 * time.Millisecond, grace: 500 * time.Millisecond,
}

// An Exporter sends events. It is also a source, which reports counts of events.
type Exporter struct {
	o        Options
	t        timing
	log      *zap.Logger
	queue    *queue
	recent   recent
	devices  devices
	faults   faults
	flaps    flaps
	managers subnetManagers
	renderer *renderer

	ctx     context.Context // until nothing may block any more
	cancel  context.CancelFunc
	closing chan struct{}
	closed  sync.Once
	done    sync.WaitGroup

	mu        sync.Mutex
	connected bool
	err       error // why events are not delivered

	// The sender owns the following fields.
	batch    []entry
	failures int       // since the last success
	torn     bool      // a part of the last snapshot was lost
	strikes  int       // consecutive incomplete snapshots
	taken    time.Time // start of the last snapshot
	earliest time.Time // time of the next snapshot on a further connection
	logged   string    // last logged refusal
	lost     uint64    // lost events that were logged
	final    bool      // the flush at the end
}

// New starts an Exporter. The collector may be unreachable; an unreadable file or an invalid endpoint is an error.
func New(o Options) (*Exporter, error) { return start(o, defaults) }

// Check reports whether New would accept the receiver's options. It reads the files and does not connect.
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
		return nil, errors.New("no source of containers: the runtime source is needed")
	}
	log := o.Logger
	if log == nil {
		log = zap.NewNop()
	}
	if o.Insecure && o.HeadersFile != "" {
		log.Warn("the headers, which may contain credentials, are sent without TLS")
	}
	e := &Exporter{
		o: o, t: t, log: log, queue: newQueue(o.QueueSize), renderer: newRenderer(o, newSession()),
		closing: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	o.Watch(func(ev model.Event) { e.offer(ev, time.Now()) })
	safely.Go(&e.done, e.Name(), e.send)
	if o.Shares != nil {
		safely.Go(&e.done, e.Name(), e.poll)
	}
	return e, nil
}

// offer keeps an event for viewers and queues it. Before the first snapshot, events of the runtimes may be old.
func (e *Exporter) offer(ev model.Event, observed time.Time) {
	if e.queue.begun() {
		e.recent.add(&ev)
	}
	e.queue.offer(ev, observed)
}

// newSession returns a random UUID.
func newSession() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Name is "events".
func (e *Exporter) Name() string { return "events" }

// Read returns the counts of events. The error is why events are not delivered, with a remedy.
func (e *Exporter) Read(context.Context) (model.Snapshot, error) {
	s := model.Snapshot{Events: e.Stats()}
	e.mu.Lock()
	defer e.mu.Unlock()
	return s, e.err
}

// Stats returns the counts of events.
func (e *Exporter) Stats() *model.EventStats {
	s := e.queue.stats()
	s.Recent = e.recent.list()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Connected = e.connected
	return s
}

// Close sends the queued events, within a time limit, and counts the rest as dropped.
func (e *Exporter) Close() error {
	e.closed.Do(func() {
		e.queue.stop()
		close(e.closing)
		timer := time.AfterFunc(e.t.flush, e.cancel)
		defer timer.Stop()
		finished := make(chan struct{})
		go safely.Do(e.Name(), func() {
			defer close(finished)
			e.done.Wait()
		})
		select {
		case <-finished:
		case <-time.After(e.t.flush + e.t.grace):
			e.log.Warn("a call for containers or shares does not return")
		}
		e.cancel()
		if lost := e.queue.stats().Queued; lost > 0 {
			e.log.Warn("events were not sent before the end", zap.Uint64("events", lost))
		}
		e.queue.abandon()
	})
	return nil
}

// poll queues an event for each first open of a device by a container, each fault and each flap of a link.
func (e *Exporter) poll() {
	tick := time.NewTicker(e.t.poll)
	defer tick.Stop()
	for opened := e.queue.offer; ; opened = e.offer { // when the first containers opened their devices is unknown
		select {
		case <-e.closing:
			return
		case <-tick.C:
			shares := e.o.Shares()
			for _, ev := range e.devices.update(shares, time.Now()) {
				opened(ev, ev.Time)
			}
			if !e.queue.begun() { // a snapshot does not repeat faults
				continue
			}
			for _, ev := range e.faults.update(shares) {
				e.offer(ev, time.Now())
			}
			if e.o.LinkFlaps != nil {
				for _, ev := range e.flaps.update(e.o.LinkFlaps()) {
					e.offer(ev, time.Now())
				}
			}
			if e.o.HCAs != nil {
				for _, ev := range e.managers.update(e.o.HCAs(), time.Now()) {
					e.offer(ev, time.Now())
				}
			}
		}
	}
}
