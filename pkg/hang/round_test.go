// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// devices are the devices of a Round. Each answers after its delay, or hangs until its channel is closed.
type devices struct {
	calls []Call[int]
	delay []time.Duration
	hang  []chan struct{}

	running, most atomic.Int64
}

func newDevices(n int) *devices {
	return &devices{calls: make([]Call[int], n), delay: make([]time.Duration, n), hang: make([]chan struct{}, n)}
}

func (d *devices) call(i int) func() (int, error) {
	delay, hang := d.delay[i], d.hang[i]
	return func() (int, error) {
		d.most.Store(max(d.most.Load(), d.running.Add(1)))
		defer d.running.Add(-1)
		time.Sleep(delay)
		if hang != nil {
			<-hang
		}
		return i, nil
	}
}

// scrape makes a Round, and returns the devices without an answer and how long it took.
func (d *devices) scrape(ctx context.Context, limit int) (stuck string, took time.Duration) {
	d.most.Store(0)
	begin := time.Now()
	r := Round{Limit: limit}
	pending := make([]*Pending[int], len(d.calls))
	for i := range d.calls {
		if pending[i] = d.calls[i].Queue("Read", 5*time.Second, d.call(i)); pending[i] != nil {
			r.Add(pending[i], nil)
		}
	}
	r.Wait(ctx)
	var list []string
	for i := range d.calls {
		if got, err := d.calls[i].Answer(pending[i]); err != nil || got != i {
			list = append(list, fmt.Sprint(i))
		}
	}
	return strings.Join(list, " "), time.Since(begin)
}

// want makes a Round and checks which devices have no answer, how long it takes, and how many calls ran at once; 0: any
// number.
func (d *devices) want(t *testing.T, what, stuck string, took time.Duration, most int64) {
	t.Helper()
	if got, in := d.scrape(t.Context(), 0); got != stuck || in != took || most > 0 && d.most.Load() != most {
		t.Errorf("%s: no answer of %q after %v, %d at once; want %q, %v, %d", what, got, in, d.most.Load(), stuck, took, most)
	}
}

// A device that answered at once hangs in the next Round: only it has no answer. It delays one Round, until its deadline, and
// later ones not at all. When it returns, its answers count again.
func TestRoundHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevices(5)
		d.want(t, "all are fast", "", 0, 1)
		hang := make(chan struct{})
		d.hang[1] = hang
		d.want(t, "one hangs", "1", 5*time.Second, 0)
		d.want(t, "it still hangs", "1", 0, 2)
		other := make(chan struct{})
		d.hang[3] = other
		d.want(t, "a second one hangs", "1 3", 5*time.Second, 0)
		d.want(t, "both hang", "1 3", 0, 3)
		d.hang[1], d.hang[3] = nil, nil
		close(hang)
		synctest.Wait()
		d.want(t, "the first one returned", "3", 0, 2)
		close(other)
		synctest.Wait()
		d.want(t, "both returned", "", 0, 1)
	})
}

// Devices that hang one after the other in one Round delay the devices behind them by a moment.
func TestRoundManyHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevices(3*MaxHanging + 1)
		var names []string
		for i := range 3 * MaxHanging {
			d.hang[i] = make(chan struct{})
			names = append(names, fmt.Sprint(i))
		}
		d.want(t, "more hang than goroutines may run", strings.Join(names, " "), 5*time.Second, 0)
		d.want(t, "later", strings.Join(names, " "), 0, 3*MaxHanging+1)
		for i := range d.hang {
			if d.hang[i] != nil {
				close(d.hang[i])
			}
		}
	})
}

// Devices that become slow are called at the same time in this Round and in the next, and in turn once they are fast again.
func TestRoundSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevices(4)
		for i := range d.delay {
			d.delay[i] = 20 * time.Millisecond
		}
		d.want(t, "they become slow", "", soon+20*time.Millisecond, 4)
		d.want(t, "slow", "", 20*time.Millisecond, 4)
		clear(d.delay)
		d.delay[2] = fast + 1
		d.want(t, "all but one are fast again", "", fast+1, 0)
		d.want(t, "one in a goroutine", "", fast+1, 2)
		d.delay[2] = 0
		d.want(t, "all are fast again", "", 0, 0)
		d.want(t, "in turn", "", 0, 1)
	})
}

// At most Limit calls that are not late run at once.
func TestRoundLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevices(6)
		for i := range d.delay {
			d.delay[i] = 50 * time.Millisecond
		}
		for range 2 {
			d.scrape(t.Context(), 2)
			if n := d.most.Load(); n != 2 {
				t.Errorf("%d calls at once, want 2", n)
			}
		}
	})
}

// When the caller's time ends, calls that did not begin are not made, and can be made in the next Round.
func TestRoundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevices(3)
		d.hang[0], d.hang[1] = make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if got, took := d.scrape(ctx, 2); got != "0 1 2" || took != 50*time.Millisecond {
			t.Errorf("no answer of %q after %v", got, took)
		}
		if d.calls[2].Running() {
			t.Error("the call that was not made is in progress")
		}
		d.want(t, "the next Round", "0 1", 0, 3)
		close(d.hang[0])
		close(d.hang[1])
	})
}

// The second call of a device follows the first. If it hangs, the first has its answer.
func TestRoundSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second, other Call[int64]
		b := newBlocked()
		queries := int64(0)
		var r Round
		p := first.Queue("Read", limit, func() (int64, error) { queries++; return 1, nil })
		q := second.Queue("Query", limit, func() (int64, error) { return b.call() })
		o := other.Queue("Read", limit, func() (int64, error) { return 2, nil })
		r.Add(p, q)
		r.Add(o, nil)
		took(t, "the Round", func() (int64, error) { r.Wait(t.Context()); return 0, nil }, 0, nil, limit)
		took(t, "first", func() (int64, error) { return first.Answer(p) }, 1, nil, 0)
		took(t, "second", func() (int64, error) { return second.Answer(q) }, 0, ErrStuck, 0)
		took(t, "another device", func() (int64, error) { return other.Answer(o) }, 2, nil, 0)
		if second.Queue("Query", limit, b.call) != nil || !second.Running() {
			t.Error("two calls at a time")
		}
		released := false
		second.Close(func() { released = true })
		close(b.release)
		synctest.Wait()
		if !released {
			t.Error("not released when the call returned")
		}
	})
}

// A Round ends with the deadline of the last call that hangs.
func TestRoundDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second, third Call[int64]
		b := newBlocked()
		var r Round
		r.Add(first.Queue("Read", 2*time.Second, b.call), nil)
		r.Add(second.Queue("Read", time.Second, b.call), nil)
		r.Add(third.Queue("Read", limit, func() (int64, error) { return 1, nil }), nil)
		took(t, "the Round", func() (int64, error) { r.Wait(t.Context()); return 0, nil }, 0, nil, 2*time.Second)
		close(b.release)
	})
}

// A panic is the answer of its device only.
func TestRoundPanic(t *testing.T) {
	var bad, good Call[int64]
	var r Round
	p := bad.Queue("Read", limit, func() (int64, error) { panic("driver") })
	q := good.Queue("Read", limit, func() (int64, error) { return 4, nil })
	r.Add(p, nil)
	r.Add(q, nil)
	r.Wait(t.Context())
	if _, err := bad.Answer(p); err == nil || err.Error() != "panic: driver" {
		t.Errorf("%v", err)
	}
	if got, err := good.Answer(q); got != 4 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}
