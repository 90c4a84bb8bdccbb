// SPDX-License-Identifier: Apache-2.0

package event

import (
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	batchRecords = 512
	batchBytes   = 1 << 20 // receivers take 4 MiB by default
	maxStrikes   = 2       // doublings of the time between two snapshots: within 10 s, it was promised
)

// errLost says that a connection ended while nothing was being sent.
var errLost = errors.New("the connection was lost")

// send waits until it is known what there is, then connects and sends, until
// Close.
func (e *Exporter) send() {
	if e.o.Ready != nil {
		select {
		case <-e.o.Ready:
		case <-e.closing:
			return
		}
	}
	e.snapshot()
	for first := true; e.ctx.Err() == nil; {
		w, err := e.connect()
		if err == nil {
			if !first { // who took the records so far may have lost them
				e.queue.ask(reasonReconnect)
			}
			first = false
			err = e.stream(w)
			w.close(true)
		}
		if e.finished() {
			return
		}
		e.fail(err, false)
		e.pause(err)
	}
}

// connect makes a connection on which the collector takes something.
func (e *Exporter) connect() (*wire, error) {
	w, err := dial(e.o, e.t.export)
	if err != nil {
		return nil, err
	}
	if err := w.greet(e.ctx); err != nil {
		w.close(false)
		return nil, err
	}
	e.mu.Lock()
	e.connected, e.err = true, nil
	e.mu.Unlock()
	return w, nil
}

// stream sends until there is nothing more to expect of the connection, and
// tells why.
func (e *Exporter) stream(w *wire) error {
	for e.ctx.Err() == nil {
		if w.lost() {
			return errLost
		}
		if time.Now().After(e.next()) && e.queue.due() && !e.final {
			e.tellLoss()
			e.snapshot()
		}
		if len(e.batch) == 0 {
			e.batch = e.queue.take(batchRecords, batchBytes)
		}
		if len(e.batch) == 0 {
			if e.final {
				return nil
			}
			e.idle(w)
			continue
		}
		if err := e.deliver(w); err != nil {
			return err
		}
	}
	return e.ctx.Err()
}

// deliver sends the batch once. An error ends the connection.
func (e *Exporter) deliver(w *wire) error {
	a := w.export(e.ctx, e.renderer.render(e.batch))
	v := judge(a)
	switch v {
	case taken:
		e.settle(a)
		return nil
	case again:
		for i := range e.batch {
			e.batch[i].resent = e.batch[i].resent || a.sent
		}
		if !a.answered {
			return a.err // a connection that does not answer is as good as lost
		}
	case refused, shut:
		err := explain(e.o.Endpoint, a.err)
		if err.Error() != e.told {
			e.told = err.Error()
			e.log.Warn("events were refused", zap.Int("records", len(e.batch)), zap.Error(err))
		}
		e.drop()
		if v == shut {
			return a.err
		}
	}
	e.fail(a.err, true)
	e.pause(a.err)
	return nil
}

// settle books the batch that the collector took.
func (e *Exporter) settle(a answer) {
	if a.rejected > 0 && a.message != e.told {
		e.told = a.message
		e.log.Warn("the collector rejected a part of a batch",
			zap.Int("records", a.rejected), zap.String("reason", shorten(valid(a.message), maxMessage)))
	}
	e.judgeSnapshot(a.rejected == 0)
	e.queue.delivered(e.batch, a.rejected)
	e.batch = nil
	e.succeed()
}

func (e *Exporter) drop() {
	e.judgeSnapshot(false)
	e.queue.refused(e.batch)
	e.batch = nil
}

// judgeSnapshot has a collector that never takes a whole snapshot asked less
// often.
func (e *Exporter) judgeSnapshot(whole bool) {
	ended := false
	for i := range e.batch {
		switch e.batch[i].kind {
		case begin:
			e.torn = false
		case end:
			ended = true
		}
		e.torn = e.torn || !whole && e.batch[i].kind != happened
	}
	switch {
	case ended && e.torn:
		e.strikes = min(e.strikes+1, maxStrikes)
	case ended:
		e.strikes = 0
	}
}

// next is when the next snapshot may be taken. It counts from when the last one
// was taken, not refused: that takes a pause for each of its batches.
func (e *Exporter) next() time.Time { return e.taken.Add(e.t.snapshots << e.strikes) }

// snapshot queues what exists now.
func (e *Exporter) snapshot() {
	e.taken = time.Now()
	e.o.Snapshot(func(containers []model.Container) {
		e.queue.snapshot(containers, e.devices.opened, time.Now())
	})
}

// tellLoss logs what was lost since it was logged last.
func (e *Exporter) tellLoss() {
	lost := e.queue.losses()
	if lost > e.lost {
		e.log.Warn("events were lost; a snapshot that says so follows", zap.Uint64("events", lost-e.lost))
	}
	e.lost = lost
}

// idle waits for something to do.
func (e *Exporter) idle(w *wire) {
	var due <-chan time.Time
	if e.queue.due() {
		timer := time.NewTimer(time.Until(e.next()) + time.Millisecond)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-e.queue.wake:
	case <-due:
	case <-w.gone:
	case <-e.closing:
		e.final = true
	case <-e.ctx.Done():
	}
}

// pause waits after a failure: longer each time, at least as long as the
// collector asks for, and at random, for all nodes lose it at the same moment.
func (e *Exporter) pause(err error) {
	wait := min(e.t.backoff<<min(e.failures, 16), e.t.maxBackoff)
	wait = wait/2 + rand.N(wait/2+1)
	e.failures++
	if asked, ok := throttle(err); ok {
		wait = max(wait, asked)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	closing := e.closing
	if e.final {
		closing = nil // seen already
	}
	select {
	case <-timer.C:
	case <-e.ctx.Done():
	case <-closing: // one more try, at once
		e.final, e.failures = true, 0
	}
}

// finished says whether nothing is left to do after Close.
func (e *Exporter) finished() bool {
	select {
	case <-e.closing:
		e.final = true
		return len(e.batch) == 0 && e.queue.empty()
	default:
		return false
	}
}

// fail notes why events do not get through.
func (e *Exporter) fail(err error, connected bool) {
	if errors.Is(err, errLost) {
		err = nil // the next try will tell more
	} else {
		err = explain(e.o.Endpoint, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.connected = connected
	if err != nil {
		e.err = err
	}
}

// succeed notes that events get through.
func (e *Exporter) succeed() {
	e.failures = 0
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = nil
}
