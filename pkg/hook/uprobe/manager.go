// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/safely"
)

// Manager has the Gate change the probes of a source's files, with one operation for a file at a time. One goroutine of the
// source uses the Manager. It takes each Result from Results, and gives it to Take.
type Manager[P comparable] struct {
	Results chan Result[P]

	gate    *Gate
	source  string
	log     *zap.Logger
	done    <-chan struct{}
	running int
}

// NewManager returns the Manager of a source. done is closed when nothing takes results anymore.
func NewManager[P comparable](gate *Gate, source string, log *zap.Logger, done <-chan struct{}) *Manager[P] {
	return &Manager[P]{Results: make(chan Result[P]), gate: gate, source: source, log: log, done: done}
}

// Change is what an operation attaches to a file, or detaches from it.
type Change[P comparable] struct {
	File          *File[P]
	Paths         []string // as in Operation
	Owners        []uint64 // as in Operation
	Halves        []Half[P]
	Offset        func(P) uint64
	Attach        func(Half[P]) func(path string) (io.Closer, error) // nil: detach
	RetryInterval time.Duration                                      // until the next operation after a failure
	// EntryDetached is called in a goroutine of the Gate when the entry of a function has been detached, before its return is. It
	// may be nil.
	EntryDetached func()
	// Ended is called by Take, when Links has the probes that are attached. It may be nil.
	Ended func(*Operation)
}

// Result is an operation that has ended.
type Result[P comparable] struct {
	*Operation
	change *Change[P]
}

// Begin begins an operation, if the file has none and its turn has come.
func (m *Manager[P]) Begin(c *Change[P], now time.Time) {
	if !c.File.turn.take(now) {
		return
	}
	m.running++
	o := c.operation(m.source)
	o.Done = func(o *Operation) {
		go safely.Do(m.source, func() {
			select {
			case m.Results <- Result[P]{o, c}:
			case <-m.done:
			}
		})
	}
	if c.Attach == nil {
		m.gate.detach(o)
	} else {
		m.gate.attach(o)
	}
}

func (c *Change[P]) operation(source string) *Operation {
	o := &Operation{Source: source, Paths: c.Paths, Owners: c.Owners}
	for i, h := range c.Halves {
		p := Probe{Offset: c.Offset(h.Place), Link: c.File.Links[h]}
		if c.Attach == nil && !h.Return {
			p.Detached = c.EntryDetached
		}
		if c.Attach != nil {
			p.Attach = c.Attach(h)
			if i > 0 && c.Halves[i-1] == (Half[P]{h.Target, true}) {
				p.Attach = afterReturn(&o.Probes, i-1, p.Attach)
			}
		}
		o.Probes = append(o.Probes, p)
	}
	return o
}

var errNoReturn = errors.New("the return of the function is not probed")

// afterReturn attaches the entry of a function only if its return is probed.
func afterReturn(probes *[]Probe, ret int, attach func(string) (io.Closer, error)) func(string) (io.Closer, error) {
	return func(path string) (io.Closer, error) {
		if (*probes)[ret].Link == nil {
			return nil, errNoReturn
		}
		return attach(path)
	}
}

// Running returns the number of operations in progress.
func (m *Manager[P]) Running() int { return m.running }

// Take records which probes are attached.
func (m *Manager[P]) Take(r Result[P], now time.Time) {
	m.record(r, now)
	if err := r.Err(); err != nil {
		m.log.Warn("the probes of a file are not changed", zap.Bool("detach", r.change.Attach == nil), zap.Error(err))
	}
	if r.change.Ended != nil {
		r.change.Ended(r.Operation)
	}
}

func (m *Manager[P]) record(r Result[P], now time.Time) {
	c := r.change
	m.running--
	c.File.turn.ended(r.Err(), now, c.RetryInterval)
	for i, h := range c.Halves {
		if link := r.Probes[i].Link; link != nil {
			c.File.Links[h] = link
		} else {
			delete(c.File.Links, h)
		}
	}
}

// Shutdown detaches all probes at the end of the sensor. Each file has File, Paths, Owners and Offset, and has no Links
// afterwards: they are closed, or left to the next sensor.
func (m *Manager[P]) Shutdown(files []Change[P]) {
	if len(files)+m.running == 0 {
		return
	}
	m.gate.end() // no other operation begins
	deadline := time.After(EndLimit / 3)
	for hangs := false; m.running > 0 && !hangs; {
		select {
		case r := <-m.Results:
			m.record(r, time.Now())
		case <-deadline:
			hangs = true
		}
	}
	var operations []*Operation
	for i := range files {
		c := &files[i]
		c.Halves = c.File.Unwanted(func(P) bool { return false })
		operations = append(operations, c.operation(m.source))
	}
	m.gate.shutdown(operations)
	for i := range files {
		clear(files[i].File.Links)
	}
}
