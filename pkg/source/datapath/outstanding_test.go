// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/accelscope/accelscope/gen"
)

// outstandingOf returns the state of the fake's queue pair, nil if the kernel lists none.
func (k *kernel) outstandingOf(t testing.TB, f *fake) (found *gen.DatapathOutstanding) {
	t.Helper()
	k.needs(t, gen.DatapathProgListOutstanding)
	if err := k.outstanding(func(o *gen.DatapathOutstanding) {
		if o.Key.Tgid == f.key.Tgid && o.Key.Context == f.key.Context && o.Key.Qpn == 17 {
			copied := *o
			found = &copied
		}
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestOutstanding compares the oldest outstanding work request with the times at which a process posted. FAKE provider: the test
// decides when a work request completes.
func TestOutstanding(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, posts, polls)
	get := func(what string) *gen.DatapathOutstanding {
		t.Helper()
		o := k.outstandingOf(t, f)
		if o == nil {
			t.Fatalf("%s: no queue pair", what)
		}
		return o
	}
	none := func(what string) {
		t.Helper()
		if o := get(what); o.OldestNs != 0 || o.InStep == 0 {
			t.Errorf("%s: %+v, want nothing outstanding", what, o)
		}
	}
	// post posts n work requests and returns the time before and after.
	post := func(n int) [2]uint64 {
		before := monotonic()
		f.do("silent", n)
		return [2]uint64{before, monotonic()}
	}
	oldest := func(what string, at [2]uint64) {
		t.Helper()
		if o := get(what); o.OldestNs < at[0] || o.OldestNs > at[1] || o.InStep == 0 {
			t.Errorf("%s: %+v, want the oldest of %v", what, o, at)
		}
	}

	f.do("same", 3)
	if o := get("unknown"); o.InStep != 0 {
		t.Errorf("equal wr_ids, older than the probes: %+v", o)
	}
	k.gap(f.key)
	f.do("distinct", 20)
	none("all completed")
	if o := get("times"); o.SinceNs == 0 || o.CompletedNs < o.SinceNs {
		t.Errorf("%+v", o)
	}
	f.do("recv", 10)
	f.do("chain", 3)
	none("receives and work requests that are not signaled")
	f.do("refused", 0)
	none("refused")

	first := post(1)
	completed := get("first").CompletedNs
	second := post(1)
	oldest("two", first)
	if o := get("no completion"); o.CompletedNs != completed {
		t.Errorf("completed at %d, want %d", o.CompletedNs, completed)
	}
	f.do("answer", 0)
	oldest("the first completed", second)
	f.do("answer", 0)
	none("both completed")

	// The ring holds 128.
	first = post(128)
	last := post(72)
	oldest("200", first)
	for i := range 128 {
		f.do("answer", i)
	}
	oldest("72 that are not in the ring", last)
	for i := range 72 {
		f.do("answer", i)
	}
	none("all 200 completed")

	post(2)
	k.gap(f.key)
	if o := get("gap"); o.InStep != 0 {
		t.Errorf("after a gap: %+v", o)
	}
	f.do("fail", 0)
	if o := k.outstandingOf(t, f); o != nil {
		t.Errorf("after an error: %+v", o)
	}
	if err := k.removeProcesses([]uint32{f.key.Tgid}, f.key); err != nil {
		t.Fatal(err)
	}
	if err := k.outstanding(func(o *gen.DatapathOutstanding) { t.Errorf("left: %+v", o) }); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkOutstanding lists as many queue pairs as have a ring by default.
func BenchmarkOutstanding(b *testing.B) {
	k := startKernel(b)
	key := k.add(b, event{key: gen.DatapathContextKey{Context: 4096, Tgid: 1}}, true)
	queues := k.object.Coll.Maps[gen.DatapathMapQueues]
	ring := make([]byte, queues.ValueSize())
	for qpn := range queues.MaxEntries() {
		if err := queues.Put(gen.DatapathQueueKey{Context: key.Context, Tgid: key.Tgid, Qpn: qpn}, ring); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		n := uint32(0)
		if err := k.outstanding(func(*gen.DatapathOutstanding) { n++ }); err != nil || n != queues.MaxEntries() {
			b.Fatalf("%d queue pairs, %v", n, err)
		}
	}
}
