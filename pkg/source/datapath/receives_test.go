// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// A receiver is a fake whose queue pair is created, probed and ready to send, and how long it has waited at least and at most.
type receiver struct {
	*fake
	t           testing.TB
	k           *kernel
	o           *kernelObjects
	last        gen.DatapathContextStat
	least, most uint64
}

// quickAhead is the constant ahead_ns in the tests.
const quickAhead = 2 * time.Second

func startReceiver(t testing.TB) *receiver {
	t.Helper()
	path, sites := buildFake(t)
	spec, err := gen.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables[gen.DatapathVarAheadNs].Set(uint64(quickAhead)); err != nil {
		t.Fatal(err)
	}
	k := loadKernel(t, Options{}, spec)
	f := startFake(t, path)
	r := &receiver{fake: f, t: t, k: k, o: traceLifecycle(t, k, path)}
	r.o.use(f, 0, 3)
	k.probeAll(t, path, sites, posts, polls)
	r.create()
	if err := k.maps.contexts(func(key gen.DatapathContextKey, _ *gen.DatapathContextStat) { f.key = key }); err != nil || f.key.Number == 0 {
		t.Fatal("the context is not known: ", err)
	}
	if err := k.mark(f.key, true, 1); err != nil {
		t.Fatal(err)
	}
	return r
}

// create creates the queue pair, or creates it again.
func (r *receiver) create() {
	r.o.modify(r.fake, 0, qpReset)
	for state := range uint64(qpReadyToSend) {
		r.o.modify(r.fake, 0, state+1)
	}
}

// await waits for receives, and adds what the fake measured.
func (r *receiver) await(how string, times int) {
	r.t.Helper()
	for range times {
		var least, most uint64
		if _, err := fmt.Sscan(r.do(how, 30_000), &least, &most); err != nil {
			r.t.Fatal(err)
		}
		r.least, r.most = r.least+least, r.most+most
	}
}

// post posts receives and returns the time before and after.
func (r *receiver) post(what string, n int) (before, after uint64) {
	before = monotonic()
	r.do(what, n)
	return before, monotonic()
}

// waited checks how long the fake has waited since the last call.
func (r *receiver) waited(what string) {
	r.t.Helper()
	before := r.last.WaitedNs
	r.k.counted(r.t, r.key, &r.last)
	if got := r.last.WaitedNs - before; got < r.least || got > r.most {
		r.t.Errorf("%s: it waited %v, want %v to %v", what, time.Duration(got), time.Duration(r.least), time.Duration(r.most))
	}
	r.least, r.most = 0, 0
}

// TestReceiveWaits compares the waits for receives with what a process measures itself. FAKE provider: the test decides when a receive
// completes.
func TestReceiveWaits(t *testing.T) {
	r := startReceiver(t)
	r.await("await", 3)
	r.waited("one receive after the other")
	r.await("await-write", 1)
	r.waited("a write with immediate data")
	r.await("await-ex", 2)
	r.waited("polled with ibv_start_poll")

	before, after := r.post("post-receives", 2)
	time.Sleep(20 * time.Millisecond)
	r.do("receive", 1)
	r.post("post-receives", 1)
	time.Sleep(20 * time.Millisecond)
	r.waited("receives are outstanding")
	r.least = monotonic() - after
	r.do("receive", 2)
	r.most = monotonic() - before
	r.waited("several receives")

	r.do("recv-refused", 5) // posts 2 of 3 five times
	time.Sleep(10 * time.Millisecond)
	r.do("receive", 9)
	r.waited("refused receives, and a receive is outstanding")
	r.most = uint64(r.longest) * 20
	r.do("receive", 1)
	if r.waited("refused receives"); r.last.Posted[opRecv] != 3+1+2+3+10 {
		t.Errorf("%d receives posted", r.last.Posted[opRecv])
	}
	r.await("await", 1)
	r.waited("after refused receives")
}

// TestReceiveBehindSend: while a send that is older than all receives is incomplete, its queue pair does not wait for a receive. FAKE
// provider.
func TestReceiveBehindSend(t *testing.T) {
	r := startReceiver(t)
	r.do("silent", 1)
	before, _ := r.post("post-receives", 1)
	time.Sleep(50 * time.Millisecond)
	answered, _ := r.post("answer", 0)
	after := monotonic()
	time.Sleep(20 * time.Millisecond)
	r.least = monotonic() - after
	r.do("receive", 1)
	r.most = monotonic() - answered
	if r.most >= monotonic()-before {
		t.Fatal("the send took no time")
	}
	r.waited("behind a send")

	r.do("silent", 1)
	r.post("post-receives", 1)
	time.Sleep(20 * time.Millisecond)
	r.do("receive", 1)
	r.waited("the send is still incomplete")
	r.do("answer", 0)

	before, after = r.post("post-receives", 1)
	r.do("silent", 1)
	time.Sleep(20 * time.Millisecond)
	r.do("answer", 0)
	r.least = monotonic() - after
	r.do("receive", 1)
	r.most = monotonic() - before
	r.waited("before a send")
}

// TestReceivesAhead: a receive queue that is never empty while completions come has no waits, but pauses do not count. FAKE provider.
func TestReceivesAhead(t *testing.T) {
	r := startReceiver(t)
	before, after := r.post("post-receives", 4)
	for range 6 {
		time.Sleep(quickAhead/6 + time.Millisecond)
		r.do("receive", 1)
		r.post("post-receives", 1)
	}
	r.least = monotonic() - after
	r.do("receive", 4)
	r.most = monotonic() - before
	r.waited("with pauses")

	r.post("post-receives", 4)
	for end := time.Now().Add(2 * quickAhead); time.Now().Before(end); time.Sleep(quickAhead / 50) {
		r.do("receive", 1)
		r.post("post-receives", 1)
	}
	r.do("receive", 4)
	r.waited("ahead")
	r.await("await", 1)
	r.waited("not ahead any more")
}

// TestUnknownReceives: without knowledge of all receives there are no waits, unless completions have emptied the queue before. FAKE
// provider.
func TestUnknownReceives(t *testing.T) {
	r := startReceiver(t)
	known := func(what string) {
		t.Helper()
		r.least, r.most = 0, 0
		r.await("await", 1)
		r.waited(what)
	}
	unknown := func(what string) {
		t.Helper()
		r.await("await", 2)
		r.least, r.most = 0, 0
		r.waited(what)
	}
	r.k.gap(r.key)
	unknown("after a gap, before the queue was empty")
	r.create()
	r.do("receive", 1) // it was posted unseen
	unknown("after a receive that was not seen")
	r.create()
	known("created again")
	r.post("post-receives", 3)
	r.k.gap(r.key)
	r.do("receive", 3)
	known("after a gap, when the queue has been empty")
	r.post("post-receives", 2)
	r.do("fail", 0)
	unknown("after an error")

	// librdmacm sets the state INIT twice.
	r.o.modify(r.fake, 0, qpReset)
	r.o.modify(r.fake, 0, qpInit)
	before, after := r.post("post-receives", 2)
	for state := range uint64(qpReadyToSend) {
		r.o.modify(r.fake, 0, state+1)
	}
	r.do("receive", 1)
	r.waited("a receive from before the connection is outstanding")
	r.least = monotonic() - after
	r.do("receive", 1)
	r.most = monotonic() - before
	r.waited("receives from before the connection")

	if err := r.k.mark(r.key, false, 0); err != nil {
		t.Fatal(err)
	}
	unknown("not chosen")
	if err := r.k.mark(r.key, true, 1); err != nil {
		t.Fatal(err)
	}
	unknown("chosen later, without a gap")
	r.create()
	known("created after it was chosen")
}

// TestReadyLater: waits from before the sensor knew that the functions of a context are probed are added later, unless the queue pair is
// older than the probes. FAKE provider.
func TestReadyLater(t *testing.T) {
	r := startReceiver(t)
	if err := r.k.mark(r.key, true, 0); err != nil {
		t.Fatal(err)
	}
	r.await("await", 1)
	least, most := r.least, r.most
	r.least, r.most = 0, 0
	r.waited("not ready")
	if err := r.k.mark(r.key, true, 1); err != nil {
		t.Fatal(err)
	}
	r.least, r.most = least, most
	r.await("await", 1)
	r.waited("ready later")
	if err := r.k.mark(r.key, true, monotonic()); err != nil {
		t.Fatal(err)
	}
	r.await("await", 1)
	r.least, r.most = 0, 0
	r.waited("probed later")
}

// TestListedReceives: the iterator lists the present wait of a queue pair. FAKE provider.
func TestListedReceives(t *testing.T) {
	r := startReceiver(t)
	get := func(what string) *gen.DatapathOutstanding {
		t.Helper()
		o := r.k.outstandingOf(t, r.fake)
		if o == nil {
			t.Fatalf("%s: no queue pair", what)
		}
		return o
	}
	if o := get("new"); o.ReceivesNs == 0 || o.WaitingNs != 0 || o.Ahead != 0 {
		t.Errorf("new: %+v", o)
	}
	r.post("post-receives", 2)
	if o := get("first"); o.Ahead == 0 {
		t.Errorf("a queue that was never empty: %+v", o)
	}
	r.do("receive", 2)
	before, after := r.post("post-receives", 2)
	if o := get("waiting"); o.Ahead != 0 || o.WaitingNs < before || o.WaitingNs > after || o.WaitedNs == 0 {
		t.Errorf("%+v, want that it waits since %d to %d", o, before, after)
	}
	before, after = r.post("receive", 1)
	if o := get("second"); o.WaitingNs < before || o.WaitingNs > after {
		t.Errorf("%+v, want that it waits since %d to %d", o, before, after)
	}
	r.do("receive", 1)
	r.k.counted(t, r.key, &r.last)
	if o := get("none"); o.WaitingNs != 0 || o.WaitedNs != r.last.WaitedNs {
		t.Errorf("%+v, want a total of %d", o, r.last.WaitedNs)
	}
	r.do("silent", 1)
	r.post("post-receives", 1)
	if o := get("behind a send"); o.WaitingNs != 0 || o.OldestNs == 0 {
		t.Errorf("behind a send: %+v", o)
	}
	r.do("answer", 0)
	r.post("post-receives", 3)
	for end := time.Now().Add(time.Minute); get("ahead").Ahead == 0; time.Sleep(quickAhead / 50) {
		if time.Now().After(end) {
			t.Fatal("never ahead")
		}
		r.do("receive", 1)
		r.post("post-receives", 1)
	}
	r.o.put(kernelQP, "ib_qp.srq", 1)
	r.create()
	r.do("receive", 1)
	if o := get("shared"); o.Ahead == 0 || o.ReceivesNs == 0 {
		t.Errorf("with a shared receive queue: %+v", o)
	}
	r.k.gap(r.key)
	if o := get("gap"); o.ReceivesNs != 0 || o.Ahead == 0 {
		t.Errorf("after a gap: %+v", o)
	}
}

// TestWaitsOfSeries: the waits of contexts of a cgroup on a device add up, while all calls are counted.
func TestWaitsOfSeries(t *testing.T) {
	f := newFold(0.01, time.Minute)
	limited := place{file: locate.FileID{Inode: 1}, limited: [groups]bool{polls: true}}
	add := func(context, waited uint64, at place) {
		f.add(gen.DatapathContextKey{Context: context, Tgid: 1}, &gen.DatapathContextStat{Cgroup: 7, WaitedNs: waited}, at)
	}
	check := func(want model.WaitTime, resting bool) {
		t.Helper()
		row := model.Series[model.DeviceKey, model.WaitTime]{Cgroup: 7, Key: model.DeviceKey{Device: "mlx5_0"}, Value: want, Resting: resting}
		if got := filled(f).ReceiveWaits; !slices.Equal(got, []model.Series[model.DeviceKey, model.WaitTime]{row}) {
			t.Errorf("%+v, want %+v", got, row)
		}
	}
	add(1, 5, full)
	add(2, 30, full)
	add(2, 40, full)
	check(45, false)
	add(2, 140, limited)
	add(1, 6, full)
	check(45, true)
	add(2, 141, full)
	check(46, false)
}

// TestWaitsInSurveys: waits of contexts whose calls are counted in surveys only grow in surveys, and do not rest then.
func TestWaitsInSurveys(t *testing.T) {
	f := newFold(0.01, time.Minute)
	limited := place{file: locate.FileID{Inode: 1}, limited: [groups]bool{true, true}}
	surveyed := limited
	surveyed.surveyed = true
	add := func(context, waited uint64, at place) {
		f.add(gen.DatapathContextKey{Context: context, Tgid: 1}, &gen.DatapathContextStat{Cgroup: 7, WaitedNs: waited}, at)
	}
	check := func(want model.WaitTime, resting bool) {
		t.Helper()
		if rows := filled(f).ReceiveWaits; len(rows) != 1 || rows[0].Value != want || rows[0].Resting != resting {
			t.Errorf("%+v, want %d, resting: %v", rows, want, resting)
		}
	}
	add(1, 100, limited)
	add(2, 10, limited)
	check(0, true)
	add(1, 103, surveyed)
	add(2, 14, surveyed)
	check(7, false)
	add(1, 200, limited)
	add(2, 200, limited)
	check(7, true)
	add(1, 205, surveyed)
	f.forget(map[model.CgroupID]bool{7: true})
	add(1, 206, surveyed)
	check(1, false)
}

// TestReceiveGaps: whose receives are known, and the reasons for the others.
func TestReceiveGaps(t *testing.T) {
	for name, c := range map[string]struct {
		context openContext
		queue   gen.DatapathOutstanding
		want    model.Gap
	}{
		"known":               {openContext{since: 100}, gen.DatapathOutstanding{ReceivesNs: 100}, ""},
		"existed, known":      {openContext{since: 100, gap: model.GapLate}, gen.DatapathOutstanding{ReceivesNs: 100}, ""},
		"created before":      {openContext{since: 100}, gen.DatapathOutstanding{ReceivesNs: 99}, model.GapLate},
		"unknown":             {openContext{since: 100}, gen.DatapathOutstanding{}, model.GapLate},
		"not probed":          {openContext{gap: model.GapSurvey}, gen.DatapathOutstanding{ReceivesNs: 100}, model.GapSurvey},
		"ahead":               {openContext{since: 100}, gen.DatapathOutstanding{ReceivesNs: 100, Ahead: 1}, model.GapPreposted},
		"ahead, but not all":  {openContext{since: 100}, gen.DatapathOutstanding{Ahead: 1}, model.GapLate},
		"sends are not known": {openContext{since: 100}, gen.DatapathOutstanding{ReceivesNs: 100, SinceNs: 1}, ""},
	} {
		if got := c.context.receiveGapOf(&c.queue); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestPresentWait: the facts have the longest present wait of a context's queue pairs, and each queue pair that waits or waited.
func TestPresentWait(t *testing.T) {
	var snap model.Snapshot
	row := model.Outstanding{Cgroup: 7, Device: "mlx5_0"}
	c := openContext{since: 100}
	for _, o := range []gen.DatapathOutstanding{
		{Key: gen.DatapathQueueKey{Qpn: 1}, ReceivesNs: 100, WaitedNs: 40, WaitingNs: 990},
		{Key: gen.DatapathQueueKey{Qpn: 2}, ReceivesNs: 100, WaitingNs: 400},
		{Key: gen.DatapathQueueKey{Qpn: 3}, ReceivesNs: 100},
		{Key: gen.DatapathQueueKey{Qpn: 4}, ReceivesNs: 99, WaitingNs: 300},
		{Key: gen.DatapathQueueKey{Qpn: 5}, ReceivesNs: 100, WaitedNs: 4, WaitingNs: 200, Ahead: 1},
	} {
		addReceives(&snap, &row, &c, &o, 1000)
	}
	want := []model.QueuePairWait{
		{Cgroup: 7, Device: "mlx5_0", QPN: 1, Waited: 40, Waiting: 10}, {Cgroup: 7, Device: "mlx5_0", QPN: 2, Waiting: 600},
	}
	if !slices.Equal(snap.QueuePairWaits, want) || row.OldestReceive != 600 ||
		!slices.Equal(row.ReceiveGaps, []model.Gap{model.GapLate, model.GapPreposted}) {
		t.Errorf("%+v, %+v, want %+v", row, snap.QueuePairWaits, want)
	}
}

// BenchmarkReceives measures a receive that is posted and completes: two calls.
func BenchmarkReceives(b *testing.B) {
	r := startReceiver(b)
	var ns float64
	if _, err := fmt.Sscan(r.do("receives", 100000), &ns); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(ns, "counted-ns")
	if r.k.counted(b, r.key, &r.last); r.last.WaitedNs == 0 {
		b.Error("no waits")
	}
}
