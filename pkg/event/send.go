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
	maxStrikes   = 2       // limit for doubling the time between two snapshots: the contract is 10 s, and 40 s after an outage
)

// errLost is the error of a connection that ended while idle.
var errLost = errors.New("the connection was lost")

// send waits until the containers are known, then connects and sends until Close.
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
			if !first { // a new receiver may lack the earlier records
				e.queue.ask(reasonReconnect)
				e.wait()
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

// connect makes a connection and waits until the collector accepts an empty request.
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

// stream sends until the connection is lost or unusable, and returns the reason.
func (e *Exporter) stream(w *wire) error {
	for e.ctx.Err() == nil {
		if w.lost() {
			return errLost
		}
		if time.Now().After(e.next()) && e.queue.due() && !e.final {
			e.logLoss()
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
			return a.err // treated as a lost connection
		}
	case refused, shut:
		err := explain(e.o.Endpoint, a.err)
		if err.Error() != e.logged {
			e.logged = err.Error()
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

func (e *Exporter) settle(a answer) {
	if a.rejected > 0 && a.message != e.logged {
		e.logged = a.message
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

// judgeSnapshot increases the time between snapshots while the collector does not accept a complete snapshot.
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

// wait delays the snapshot of a further connection at random: all nodes lose the collector at the same moment and
// reconnect within seconds. A lost connection during this time does not restart the delay.
func (e *Exporter) wait() {
	if !e.taken.Before(e.earliest) {
		e.earliest = time.Now().Add(rand.N(e.t.spread + 1))
	}
}

// next returns the earliest time of the next snapshot, counted from the start of the last snapshot: its refusal takes a
// pause for each batch.
func (e *Exporter) next() time.Time {
	next := e.taken.Add(e.t.snapshots << e.strikes)
	if next.Before(e.earliest) {
		return e.earliest
	}
	return next
}

func (e *Exporter) snapshot() {
	e.taken = time.Now()
	e.o.Snapshot(func(containers []model.Container) {
		e.queue.snapshot(containers, e.devices.opened, time.Now())
	})
}

// logLoss logs the events lost since the last call.
func (e *Exporter) logLoss() {
	lost := e.queue.losses()
	if lost > e.lost {
		e.log.Warn("events were lost; a snapshot follows", zap.Uint64("events", lost-e.lost))
	}
	e.lost = lost
}

// idle waits until something is to be sent.
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

// pause waits after a failure: longer each time, at least as long as the collector requests, and at random, because all
// nodes lose the collector at the same moment.
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
		closing = nil // already handled
	}
	select {
	case <-timer.C:
	case <-e.ctx.Done():
	case <-closing: // one more attempt, at once
		e.final, e.failures = true, 0
	}
}

// finished reports whether everything was sent after Close.
func (e *Exporter) finished() bool {
	select {
	case <-e.closing:
		e.final = true
		return len(e.batch) == 0 && e.queue.empty()
	default:
		return false
	}
}

// fail stores why events are not delivered.
func (e *Exporter) fail(err error, connected bool) {
	if errors.Is(err, errLost) {
		err = nil // the next attempt has a better reason
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

// succeed notes that events are delivered.
func (e *Exporter) succeed() {
	e.failures = 0
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = nil
}
