// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// What the fake reads of each completion.
const (
	readOpcode = 1 << iota
	readByteLen
	readQPNum
	readOpcodeLast
)

// TestExtendedCompletions: completions of ibv_start_poll are counted as far as the process reads them, once, and the
// others as unread. FAKE provider.
func TestExtendedCompletions(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, posts, polls)
	var last gen.DatapathContextStat
	check := func(reads int, received, bytes, unread uint64) {
		t.Helper()
		f.do("poll-ex", reads)
		d := k.counted(t, f.key, &last)
		if d.Received != received || d.ReceivedBytes != bytes || d.Unread != unread {
			t.Errorf("reads %#x: %d received, %d bytes, %d unread, want %d, %d, %d", reads, d.Received, d.ReceivedBytes, d.Unread, received, bytes, unread)
		}
		for status, n := range d.Errors {
			// An unknown status is counted as the last.
			if want := map[int]uint64{12: 1, 23: 1}[status]; n != want {
				t.Errorf("reads %#x: status %d: %d, want %d", reads, status, n, want)
			}
		}
	}
	check(readOpcode|readByteLen|readQPNum, 3, 1000+500+140, 0)
	check(readByteLen|readQPNum|readOpcodeLast, 3, 1000+500+140, 0)
	check(readOpcode|readByteLen|readOpcodeLast, 3, 1000+500+140, 0)
	check(readOpcode|readQPNum, 0, 0, 3)
	check(readByteLen|readQPNum, 0, 0, 5)
	check(0, 0, 0, 5)
	// With a queue pair for datagrams, the number of bytes depends on the queue pair.
	f.do("datagrams", 0)
	check(readOpcode|readByteLen|readQPNum, 3, 1000+500+140-40, 0)
	check(readByteLen|readQPNum|readOpcodeLast, 3, 1000+500+140-40, 0)
	check(readOpcode|readByteLen, 0, 0, 3)
	if lost := k.losses(); len(lost) != 0 {
		t.Error("lost:", lost)
	}
}

// TestExtendedGap: a completion that was found before a gap is not unread, as it may have been read in the gap. FAKE
// provider.
func TestExtendedGap(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, polls)
	var last gen.DatapathContextStat
	f.do("leave-ex", 0)
	k.gap(f.key)
	f.do("idle-ex", 1)
	if d := k.counted(t, f.key, &last); d.Unread != 0 {
		t.Errorf("%d unread across a gap", d.Unread)
	}
	f.do("leave-ex", 0)
	f.do("idle-ex", 1)
	if d := k.counted(t, f.key, &last); d.Unread != 1 || d.Received != 0 {
		t.Errorf("%d unread, %d received, want one unread", d.Unread, d.Received)
	}
}

// TestExtendedThreads: each thread has a completion of its own, and a thread that polls two queues in turn has one.
// FAKE provider.
func TestExtendedThreads(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, polls)
	var last gen.DatapathContextStat
	f.do("threads-ex", 0)
	if d := k.counted(t, f.key, &last); d.Received != 4*4000 || d.ReceivedBytes != 4*2000*310 || d.Unread != 0 {
		t.Errorf("threads: %d received, %d bytes, %d unread", d.Received, d.ReceivedBytes, d.Unread)
	}
	f.do("two-ex", 0)
	if d := k.counted(t, f.key, &last); d.Received != 1 || d.ReceivedBytes != 20 || d.Unread != 1 {
		t.Errorf("two queues: %d received, %d bytes, %d unread", d.Received, d.ReceivedBytes, d.Unread)
	}
}

// TestExtendedDurations: durations need the number of the queue pair. A completion that it was not read of leaves its
// work request in the ring, and the next completion is not taken for it. FAKE provider.
func TestExtendedDurations(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, posts, polls)
	check := func(what string, least, most uint64) {
		t.Helper()
		if all, right := k.took(t, f, gen.DatapathCompletedCOMPLETED_WRITE); all < least || all > most || right < all-all/10 {
			t.Errorf("%s: %d durations, %d of them about 2 ms, want %d to %d", what, all, right, least, most)
		}
	}
	const all = readOpcode | readByteLen | readQPNum
	f.do("distinct-ex", readOpcode)
	check("no queue pair", 0, 0)
	f.do("distinct-ex", all)
	check("distinct wr_ids", 12, 13)
	before, _ := k.took(t, f, gen.DatapathCompletedCOMPLETED_WRITE)
	f.do("same-ex", all)
	check("in step", before+1, before+1)
	for _, reads := range []int{readOpcode, readQPNum} {
		f.do("same-ex", reads)
		f.do("same-ex", all)
		check("the completion before was not read", before+1, before+1)
		f.do("distinct-ex", all)
		before, _ = k.took(t, f, gen.DatapathCompletedCOMPLETED_WRITE)
		before--
	}
}

// TestExtendedNamed: if another process names functions of a shared file as other operations, they count only as those
// that they are, in whatever order the programs run. FAKE provider.
func TestExtendedNamed(t *testing.T) {
	k, f, path, sites := observedFake(t)
	called := map[locate.Function]locate.Function{
		locate.WcReadQPNum: locate.StartPoll, locate.WcReadByteLen: locate.WcReadOpcode, locate.WcReadOpcode: locate.WcReadByteLen,
		locate.StartPoll: locate.NextPoll, locate.NextPoll: locate.PollCQ, locate.PollCQ: locate.StartPoll, locate.PostSend: locate.NextPoll,
	}
	var wrong []locate.Site
	for _, s := range sites {
		if other, ok := called[s.Function]; ok {
			s.Function = other
			wrong = append(wrong, s)
		}
	}
	for _, order := range [][]locate.Site{slices.Concat(sites, wrong), slices.Concat(wrong, sites)} {
		detach := k.probeAll(t, path, order, posts, polls)
		var last gen.DatapathContextStat
		k.counted(t, f.key, &last)
		f.do("poll-ex", readOpcode|readQPNum|readByteLen)
		if d := k.counted(t, f.key, &last); d.Received != 3 || d.ReceivedBytes != 1640 || d.Unread != 0 || d.Errors[12] != 1 {
			t.Errorf("start_poll: %d received, %d bytes, %d unread, errors %v", d.Received, d.ReceivedBytes, d.Unread, d.Errors)
		}
		f.do("chain", 3)
		f.do("recv-ordinary", 0)
		if d := k.counted(t, f.key, &last); d.Received != 1 || d.ReceivedBytes != 11 || d.Unread != 0 || d.Posted[opWrite] != 3 {
			t.Errorf("poll_cq: %d received, %d bytes, %d unread, %d posted", d.Received, d.ReceivedBytes, d.Unread, d.Posted[opWrite])
		}
		detach()
	}
}

// TestExtendedCost: the cost of each probed function is counted, also for contexts that are not known or not selected.
// FAKE provider.
func TestExtendedCost(t *testing.T) {
	path, sites := buildFake(t)
	k := startKernel(t)
	f := startFake(t, path)
	k.probeAll(t, path, sites, polls)
	f.do("idle-ex", 100)
	f.do("poll-ex", readOpcode|readByteLen|readQPNum)
	const (
		found  = 7
		called = 20 + 1 + found
		// It reads byte_len twice.
		calls = 100 + called + 4*found
		each  = entryNS + returnNS
	)
	var spent uint64
	if err := k.unknownCosts(func(tgid uint32, s *gen.DatapathUnknownCost) {
		if tgid == f.key.Tgid {
			spent = s.SpentNs[polls]
		}
	}); err != nil {
		t.Fatal(err)
	}
	if spent != calls*each {
		t.Errorf("unknown: spent %d, want %d", spent, calls*each)
	}
	f.key = k.add(t, event{key: f.key}, false)
	var last gen.DatapathContextStat
	f.do("idle-ex", 100)
	f.do("poll-ex", readOpcode|readByteLen|readQPNum)
	d := k.counted(t, f.key, &last)
	// The cost of empty polls and of reads is counted in groups of 32.
	if hits := d.Hits[polls]; hits > calls || hits+32 < calls || d.SpentNs[polls] < hits*each {
		t.Errorf("not selected: %d hits, %d ns, want %d hits", hits, d.SpentNs[polls], calls)
	}
	if d.Received != 0 || d.Unread != 0 || d.Errors[12] != 0 {
		t.Errorf("not selected: %+v", d)
	}
}

// TestLateFunctions: a process that uses further functions of a file that is probed already is late, if it was ready to send
// before these were probed. The next one is not. FAKE provider; the test does what the hook of modify_qp does.
func TestLateFunctions(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, path, nil)
	var found []locate.Site
	id := locate.FileID{Device: 1, Inode: 1}
	s.searches.find = func(_ *locate.Process, _, _ uint64) (locate.Found, error) {
		return locate.Found{Sites: found, Paths: map[locate.FileID]string{id: path}}, nil
	}
	contexts := s.prober.kernel.object.Coll.Maps[gen.DatapathMapContexts]
	for i, c := range []struct {
		polls bool
		late  uint64
	}{{false, 1}, {false, 1}, {true, 2}, {true, 2}, {false, 2}} {
		found = nil
		for _, site := range sites {
			if site.File = id; c.polls || site.Function < locate.StartPoll {
				found = append(found, site)
			}
		}
		f := startFake(t, path)
		s.prober.kernel.add(t, event{key: f.key, cgroup: 5, device: 3}, true)
		var stat gen.DatapathContextStat
		if err := contexts.Lookup(f.key, &stat); err != nil {
			t.Fatal(err)
		}
		stat.Late, stat.LateNs = 1, monotonic()
		if err := contexts.Put(f.key, stat); err != nil {
			t.Fatal(err)
		}
		find := s.searches.find
		s.searches.find = func(p *locate.Process, qp, context uint64) (locate.Found, error) {
			r, err := find(p, qp, context)
			r.Context = f.key.Context
			return r, err
		}
		s.observeFake(f)
		eventually(t, "never ready", func() bool { return contexts.Lookup(f.key, &stat) == nil && stat.Ready == 1 })
		eventually(t, fmt.Sprintf("process %d: not %d contexts were late", i, c.late), func() bool { return s.snapshot(t).DataPath.Late == c.late })
	}
	time.Sleep(2 * removeInterval)
	if late := s.snapshot(t).DataPath.Late; late != 2 {
		t.Errorf("%d contexts were late", late)
	}
}
