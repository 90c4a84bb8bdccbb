// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/machines/otel"
)

// The tests in this file use a fake receiver made from the OTLP definitions: a real Collector cannot be made to fail
// like this.

var ok = &collogs.ExportLogsServiceResponse{}

// allTaken describes what the exporter still holds: the receiver may not have answered yet.
func allTaken(e *Exporter) func() string {
	return func() string {
		e.queue.mu.Lock()
		defer e.queue.mu.Unlock()
		if e.queue.want != "" || e.queue.events+e.queue.parts > 0 {
			return fmt.Sprintf("%d events and %d parts of a snapshot are queued", e.queue.events, e.queue.parts)
		}
		return ""
	}
}

// TestConnectionLostBeforeAnswer cuts the connection between the receipt of a batch and the answer: the batch arrives
// again with the same numbers, and marked.
func TestConnectionLostBeforeAnswer(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	g := newGate(t, r.endpoint)
	w := newWorld(3)
	cut := 0
	r.answer = func(int, []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
		if cut < 3 {
			cut++
			g.cut(true)
		}
		return true, ok, nil
	}
	e := open(t, w, quick, Options{Endpoint: g.endpoint, Insecure: true})
	w.churn(rand.New(rand.NewPCG(5, 6)), 20)
	within(t, waitLimit, func() string { return w.differs(r.view()) })
	within(t, waitLimit, allTaken(e))
	v := r.view()
	w.checkExits(t, v)
	if v.Duplicates == 0 || v.Missing != 0 || e.Stats().Resent == 0 {
		t.Errorf("%d duplicates, %d missing, %+v", v.Duplicates, v.Missing, e.Stats())
	}
}

// TestCollectorLosesRecords: a collector loses records that it accepted. After its restart it receives a snapshot
// without a new event.
func TestCollectorLosesRecords(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	w := newWorld(3)
	e := open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true})
	within(t, waitLimit, allTaken(e))
	r.down()
	within(t, waitLimit, func() string { return map[bool]string{true: "connected"}[e.Stats().Connected] })
	r.mu.Lock()
	r.got = nil
	r.mu.Unlock()
	r.up(t)
	within(t, waitLimit, func() string { return w.differs(r.view()) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.got[0].Attributes[attrReason] != reasonReconnect {
		t.Errorf("reason %q", r.got[0].Attributes[attrReason])
	}
}

// TestQueueKeepsExits checks that the last quarter of a queue is reserved for the ends of containers.
func TestQueueKeepsExits(t *testing.T) {
	q := newQueue(100)
	q.snapshot(nil, func(string) []string { return nil }, time.Now())
	q.take(10, 1<<20)
	for range 1000 {
		q.offer(model.Event{Type: model.EventHealth}, time.Now())
	}
	for range 25 {
		q.offer(model.Event{Type: model.EventExit}, time.Now())
	}
	q.offer(model.Event{Type: model.EventExit}, time.Now())
	batch := q.take(1000, 1<<20)
	if len(batch) != 100 || batch[74].event.Type != model.EventHealth || batch[75].event.Type != model.EventExit {
		t.Errorf("%d events", len(batch))
	}
	if batch[75].seq != 2+1001 { // lost events have numbers, too
		t.Errorf("number %d", batch[75].seq)
	}
	if s := q.stats(); s.Queued != 100 || dropped(s, lostOverflow) != 926 {
		t.Errorf("%+v", s)
	}
	q.delivered(batch, 0)
	if s := q.stats(); s.Queued != 0 || s.Sent != 100 {
		t.Errorf("%+v", s)
	}
}

// TestThrottle: a collector requests a wait. Nothing is lost, and no request comes earlier.
func TestThrottle(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	var first, second time.Time
	r.answer = func(n int, _ []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
		if n > 1 {
			second = time.Now()
			return true, ok, nil
		}
		first = time.Now()
		s, _ := status.New(codes.ResourceExhausted, "too much").WithDetails(
			&errdetails.RetryInfo{RetryDelay: durationpb.New(700 * time.Millisecond)})
		return false, nil, s.Err()
	}
	r.up(t)
	w := newWorld(3)
	e := open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true})
	within(t, waitLimit, allTaken(e))
	if wait := second.Sub(first); wait < 700*time.Millisecond {
		t.Errorf("next request after %v", wait)
	}
	if s := e.Stats(); s.Sent != 5 || s.Resent != 5 {
		t.Errorf("%+v", s)
	}
}

func TestPermanentError(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	bad := make(chan struct{})
	r.answer = func(_ int, batch []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
		select {
		case <-bad:
			return true, ok, nil
		default:
		}
		for _, record := range batch {
			if record.Event == "container.exit" {
				return false, nil, status.Error(codes.InvalidArgument, "no exits, please")
			}
		}
		return true, ok, nil
	}
	r.up(t)
	w := newWorld(3)
	e := open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true})
	within(t, waitLimit, func() string { return w.differs(r.view()) })
	w.exit(w.create(), 1)
	within(t, waitLimit, func() string { return w.differs(r.view()) }) // the snapshot contains it
	within(t, waitLimit, allTaken(e))
	close(bad)
	v := r.view()
	if lost := dropped(e.Stats(), lostRefused); lost == 0 || v.Lost != int64(lost) || v.Missing != v.Lost {
		t.Errorf("%d were refused, the snapshot reports %d, %d numbers are missing", lost, v.Lost, v.Missing)
	}
}

// TestUnauthenticated uses wrong credentials: the error has a remedy, and nothing is lost that fits in the queue.
func TestUnauthenticated(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.greeting = status.Error(codes.Unauthenticated, "unknown client")
	r.up(t)
	w := newWorld(3)
	e := open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true})
	within(t, waitLimit, func() string {
		if _, err := e.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "check the headers file") {
			return errText(err)
		}
		return ""
	})
	w.exit(w.create(), 1)
	r.mu.Lock()
	r.greeting = nil
	r.mu.Unlock()
	within(t, waitLimit, func() string { return w.differs(r.view()) })
	w.checkExits(t, r.view())
	if v := r.view(); v.Missing != 0 || v.Lost != 0 {
		t.Errorf("%d missing, %d lost", v.Missing, v.Lost)
	}
}

func TestPartialSuccess(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.answer = func(_ int, batch []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
		var kept []otel.Record
		for _, record := range batch {
			if record.Event != "container.exit" {
				kept = append(kept, record)
			}
		}
		r.got = append(r.got, kept...)
		return false, &collogs.ExportLogsServiceResponse{PartialSuccess: &collogs.ExportLogsPartialSuccess{
			RejectedLogRecords: int64(len(batch) - len(kept)), ErrorMessage: "no exits, please",
		}}, nil
	}
	r.up(t)
	w := newWorld(3)
	e := open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true})
	w.exit(w.create(), 1)
	within(t, waitLimit, func() string { return w.differs(r.view()) })
	within(t, waitLimit, allTaken(e))
	if got := dropped(e.Stats(), lostRejected); got != 1 {
		t.Errorf("%d rejected", got)
	}
	if v := r.view(); v.Lost != 1 || v.Missing != 1 {
		t.Errorf("%d lost, %d missing", v.Lost, v.Missing)
	}
}

// TestRejectedParts checks that a rejected part of a snapshot is not a lost event, and that another snapshot follows.
func TestRejectedParts(t *testing.T) {
	q := newQueue(10)
	q.snapshot(make([]model.Container, 1), func(string) []string { return nil }, time.Now())
	q.offer(model.Event{Type: model.EventExit}, time.Now())
	batch := q.take(10, 1<<20) // begin, member, end, event
	q.delivered(batch[:2], 1)
	if s := q.stats(); lostOf(s) != 0 || q.losses() != 0 || q.want != reasonGap {
		t.Errorf("%+v, %d lost, wants %q", s, q.losses(), q.want)
	}
	q.delivered(batch[2:], 2) // of the two, one may have been an event
	if s := q.stats(); dropped(s, lostRejected) != 1 || q.losses() != 1 || s.Queued != 0 || s.Sent != 1 {
		t.Errorf("%+v, %d lost", s, q.losses())
	}
}

// TestRefusedSnapshots checks that a collector that refuses snapshots does not receive snapshots all the time, and
// receives a snapshot soon after another record was refused.
func TestRefusedSnapshots(t *testing.T) {
	e := &Exporter{t: quick, queue: newQueue(10)}
	parts := []entry{{kind: begin}, {kind: member}, {kind: end}}
	for _, step := range []struct {
		batch   []entry
		whole   bool
		strikes int
	}{
		{parts, false, 1},
		{[]entry{{kind: happened}}, false, 1},
		{parts[:2], false, 1},
		{parts[2:], true, 2}, // the first half is missing
		{append(parts, entry{kind: happened}), true, 0},
	} {
		e.batch = step.batch
		e.judgeSnapshot(step.whole)
		if e.strikes != step.strikes {
			t.Errorf("%+v: %d strikes", step, e.strikes)
		}
	}
}

func TestSlow(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	timing := quick
	timing.export = 300 * time.Millisecond
	r.answer = func(n int, _ []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
		if n <= 2 {
			time.Sleep(600 * time.Millisecond)
		}
		return true, ok, nil
	}
	r.up(t)
	w := newWorld(3)
	e := open(t, w, timing, Options{Endpoint: r.endpoint, Insecure: true})
	w.churn(rand.New(rand.NewPCG(7, 8)), 20)
	within(t, waitLimit, func() string { return w.differs(r.view()) })
	within(t, waitLimit, allTaken(e)) // a short-lived container since then makes no difference
	w.checkExits(t, r.view())
}

// TestClose checks that an unreachable or hanging collector does not delay the end.
func TestClose(t *testing.T) {
	t.Parallel()
	const limit = 20 * time.Second // on a busy machine; a Close without a time limit takes longer
	t.Run("away", func(t *testing.T) {
		t.Parallel()
		w := newWorld(1)
		e := open(t, w, quick, Options{Endpoint: freePort(t), Insecure: true})
		w.create()
		began := time.Now()
		e.Close()
		if took := time.Since(began); took > limit {
			t.Errorf("took %v", took)
		}
		if got := dropped(e.Stats(), lostClosed); got != 2 {
			t.Errorf("%d counted", got)
		}
		w.create() // after the end
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t)
		asked, release := make(chan struct{}, 1), make(chan struct{})
		r.answer = func(int, []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
			asked <- struct{}{}
			<-release
			return true, ok, nil
		}
		r.up(t)
		timing := quick
		timing.export = waitLimit // the call must not time out
		e := open(t, newWorld(1), timing, Options{Endpoint: r.endpoint, Insecure: true})
		t.Cleanup(func() { close(release) })
		<-asked
		began := time.Now()
		e.Close()
		if took := time.Since(began); took > limit {
			t.Errorf("took %v", took)
		}
	})
	t.Run("not ready", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t)
		r.up(t)
		timing := quick
		timing.flush = waitLimit // must not be used
		e := begun(t, newWorld(1), timing, Options{Endpoint: r.endpoint, Insecure: true, Ready: make(chan struct{})})
		began := time.Now()
		e.Close()
		if took := time.Since(began); took > limit {
			t.Errorf("took %v", took)
		}
		if v := r.view(); v.Session != "" { // it would be incomplete
			t.Errorf("a snapshot of %d containers", len(v.Containers))
		}
	})
	t.Run("flushes", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t)
		r.up(t)
		w := newWorld(1)
		timing := prompt
		timing.flush = waitLimit // on a busy machine
		e := open(t, w, timing, Options{Endpoint: r.endpoint, Insecure: true})
		w.churn(rand.New(rand.NewPCG(9, 10)), 500)
		e.Close()
		if said := w.differs(r.view()); said != "" {
			t.Error(said)
		}
		w.checkExits(t, r.view())
	})
}

// TestRandom has random failures: in the end the receiver's state is right.
func TestRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			g := newGate(t, r.endpoint)
			random := rand.New(rand.NewPCG(seed, 1))
			trouble := rand.New(rand.NewPCG(seed, 2)) // failures of the receiver, guarded by its lock
			bad := true
			r.answer = func(_ int, batch []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
				if !bad {
					return true, ok, nil
				}
				switch trouble.IntN(10) {
				case 0:
					return false, nil, status.Error(codes.Unavailable, "not now")
				case 1: // one of its exporters received it
					return true, nil, status.Error(codes.Unavailable, "not all of it")
				case 2:
					return false, nil, status.Error(codes.InvalidArgument, "never")
				case 3:
					g.cut(true)
					return trouble.IntN(2) == 0, ok, nil
				case 4:
					n := trouble.IntN(len(batch))
					r.got = append(r.got, batch[:n]...)
					return false, &collogs.ExportLogsServiceResponse{PartialSuccess: &collogs.ExportLogsPartialSuccess{
						RejectedLogRecords: int64(len(batch) - n),
					}}, nil
				}
				return true, ok, nil
			}
			r.up(t)
			w := newWorld(5)
			e := open(t, w, quick, Options{Endpoint: g.endpoint, Insecure: true, QueueSize: 32})
			for range 40 {
				switch random.IntN(4) {
				case 0:
					g.cut(random.IntN(2) == 0)
				case 1:
					g.cut(true)
				default:
					w.churn(random, 1+random.IntN(20))
				}
				time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
			}
			g.cut(true)
			r.mu.Lock()
			bad = false
			r.mu.Unlock()
			within(t, waitLimit, func() string {
				v := r.view()
				if said := w.differs(v); said != "" {
					return said
				}
				if s := e.Stats(); s.Queued > 0 || uint64(v.Lost) != lostOf(s) {
					return fmt.Sprintf("the snapshots say that %d events were lost; %+v", v.Lost, s)
				}
				return ""
			})
			w.checkExits(t, r.view())
		})
	}
}

// TestVanished drops all packets of a collector, like a host without power. The loss is noticed on a quiet node, and
// with records in flight.
func TestVanished(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]bool{"quiet": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			r.up(t)
			g := newGate(t, r.endpoint)
			w := newWorld(3)
			timing := prompt
			timing.export = time.Hour // the call must not time out
			e := open(t, w, timing, Options{Endpoint: g.endpoint, Insecure: true})
			within(t, waitLimit, allTaken(e))
			time.Sleep(500 * time.Millisecond) // otherwise unacknowledged data would be sent again, and the loss noticed earlier
			g.vanish(t)
			began := time.Now()
			if happens {
				w.exit(w.create(), 1)
			}
			within(t, waitLimit, func() string {
				r.mu.Lock()
				defer r.mu.Unlock()
				for i := range r.got {
					if r.got[i].Attributes[attrReason] == reasonReconnect {
						return ""
					}
				}
				return "no snapshot on another connection"
			})
			t.Logf("noticed after %v", time.Since(began).Round(10*time.Millisecond))
			within(t, waitLimit, func() string { return w.differs(r.view()) })
			within(t, waitLimit, allTaken(e))
			w.checkExits(t, r.view())
		})
	}
}

// TestSnapshotDeadline checks that a snapshot follows within 10 s of the end of a gap (1 s of them for the machine),
// for any length of the gap and any number of refused snapshots, and within 30 s more after any number of lost
// connections. A vanished host is noticed within the 10 s, too.
func TestSnapshotDeadline(t *testing.T) {
	const promise = 9 * time.Second
	synctest.Test(t, func(t *testing.T) {
		e := &Exporter{t: defaults, queue: newQueue(1), ctx: t.Context(), closing: make(chan struct{})}
		for range 100 {
			began := time.Now()
			e.pause(errLost)
			if took := time.Since(began); took > promise {
				t.Errorf("a pause of %v after %d failures", took, e.failures)
			}
			e.taken, e.batch = time.Now(), []entry{{kind: begin}, {kind: end}}
			e.judgeSnapshot(false)
			if wait := time.Until(e.next()); wait > promise {
				t.Errorf("the next snapshot %v after one that was refused", wait)
			}
		}
		began := time.Now()
		for range 20 {
			e.wait()
			if after := e.next().Sub(began); after > promise+30*time.Second {
				t.Errorf("the next snapshot %v after the first of many connections", after)
			}
			time.Sleep(time.Second)
		}
	})
	if silence > promise {
		t.Errorf("silence is noticed after %v", silence)
	}
}

// TestRefusalsEnd checks that a collector that refused everything for long is right soon after it accepts records
// again, wherever in a snapshot the refusals end.
func TestRefusalsEnd(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]int{"between snapshots": 6, "within one": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			var since time.Time
			took := make(chan time.Duration, 1)
			r.answer = func(n int, batch []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
				if n <= last {
					since = time.Now()
					return false, nil, status.Error(codes.InvalidArgument, "never")
				}
				if batch[0].Event == "container.snapshot.begin" && len(took) == 0 {
					took <- batch[0].Time.Sub(since)
				}
				return true, ok, nil
			}
			r.up(t)
			w := newWorld(batchRecords + 88) // two batches
			e := open(t, w, prompt, Options{Endpoint: r.endpoint, Insecure: true})
			within(t, waitLimit, allTaken(e))
			if said := w.differs(r.view()); said != "" {
				t.Fatal(said)
			}
			after := <-took
			t.Logf("snapshot %v after the last refusal", after.Round(time.Millisecond))
			if after > 10*time.Second { // at most 8 s on an idle machine
				t.Errorf("snapshot %v after the last refusal, more than 10 s", after)
			}
			if s := e.Stats(); lostOf(s) != 0 {
				t.Errorf("%+v, and no event happened", s)
			}
		})
	}
}

func lostOf(s *model.EventStats) (n uint64) {
	for _, l := range s.Dropped {
		n += l.Count
	}
	return n
}

// TestDevices checks that the first open of a device is reported once, and is part of each snapshot.
func TestDevices(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	w := newWorld(1)
	id := fmt.Sprintf("%064x", 1)
	c := w.live[id]
	c.Health = "healthy"
	shares := func() attribution.Attribution {
		return attribution.Attribution{
			Owners: []identity.Owner{{}, {ContainerID: id}, {Workload: "slurm:7"}, {ContainerID: "gone", Namespace: "n", Pod: "p", Container: "c"}},
			Infos:  []attribution.Info{{}, {}, {Info: identity.Info{Runtime: "cri-o"}}},
			Objects: []attribution.ObjectShare{
				{Owner: 1, Device: "mlx5_0", Type: model.Context, Current: 1},
				{Owner: 1, Device: "mlx5_2", Type: model.Context},
				{Owner: 1, Device: "mlx5_3", Type: model.QP, Current: 1},
				{Owner: 2, Device: "mlx5_0", Type: model.Context, Current: 1},
				{Owner: 3, Device: "mlx5_0", Type: model.Context, Created: 1},
				{Device: "mlx5_9", Type: model.Context, Current: 1},
			},
			CounterShares: attribution.CounterShares{Verbs: []attribution.Share[model.VerbKey, model.Histogram]{
				{Owner: 1, Key: model.VerbKey{Device: "mlx5_1"}, Value: model.Histogram{Count: 1}},
			}},
			Containers: []attribution.ContainerShare{{Owner: 1, Container: &c}},
		}
	}
	open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true, Shares: shares})
	reported := func() (opened []string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, record := range r.got {
			if record.Event == "container.device_open" {
				for _, state := range []string{attrStatus, attrHealth} { // they may be outdated
					if value, is := record.Attributes[state]; is {
						t.Errorf("%s is %q", state, value)
					}
				}
				opened = append(opened, record.Attributes["accelscope.workload"]+" "+record.Attributes["accelscope.device"])
			}
		}
		return opened
	}
	within(t, waitLimit, func() string {
		return map[bool]string{false: fmt.Sprint(reported())}[len(reported()) >= 3]
	})
	time.Sleep(5 * quick.poll) // a duplicate would arrive
	if got := fmt.Sprint(reported()); got != "[train/job-1/worker mlx5_0 n/p/c mlx5_0 train/job-1/worker mlx5_1]" {
		t.Error(got)
	}
	r.down()
	r.up(t)
	within(t, waitLimit, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, record := range r.got {
			if record.Attributes["accelscope.container.opened_devices"] == `["mlx5_0","mlx5_1"]` {
				return ""
			}
		}
		return "no snapshot contains the devices"
	})
}

func TestDevicesAreForgotten(t *testing.T) {
	var d devices
	now := time.Now()
	a := attribution.Attribution{
		Owners:  []identity.Owner{{}, {ContainerID: "a"}},
		Objects: []attribution.ObjectShare{{Owner: 1, Device: "mlx5_0", Type: model.Context, Current: 1}},
	}
	none := attribution.Attribution{Owners: []identity.Owner{{}}}
	for i, step := range []struct {
		a     attribution.Attribution
		after time.Duration
		want  int
	}{{a, 0, 1}, {a, time.Minute, 0}, {none, time.Minute, 0}, {a, time.Minute, 0}, {none, 2 * time.Hour, 0}, {a, time.Minute, 1}} {
		now = now.Add(step.after)
		if got := d.update(step.a, now); len(got) != step.want {
			t.Errorf("step %d: %d events", i, len(got))
		}
	}
}

// TestHostile checks that data from a container does not fail a batch and is limited.
func TestHostile(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	w := newWorld(0)
	open(t, w, quick, Options{Endpoint: r.endpoint, Insecure: true})
	c := model.Container{
		ID: "a\xff", Name: strings.Repeat("x", 1<<20), Runtime: "docker", Image: "\xfe",
		Labels: map[string]string{"k\xff": strings.Repeat("y", 1<<20)}, Devices: make([]string, 5000),
	}
	for i := range 500 {
		c.Labels[fmt.Sprint(i)] = strings.Repeat("z", 1<<16)
	}
	w.mu.Lock()
	w.live[c.ID] = c
	for range 20 {
		w.emit(model.Event{Type: "odd\xff", Container: c, Device: "\xfd"})
	}
	w.mu.Unlock()
	within(t, waitLimit, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := 0
		for _, record := range r.got {
			if record.Event == "container.odd\uFFFD" {
				n++
				if len(record.Attributes) > 96 {
					return fmt.Sprintf("%d attributes", len(record.Attributes))
				}
				for k, v := range record.Attributes {
					if len(v) > maxValue {
						return fmt.Sprintf("%s has %d bytes", k, len(v))
					}
				}
			}
		}
		return map[bool]string{false: fmt.Sprintf("%d records", n)}[n == 20]
	})
}
