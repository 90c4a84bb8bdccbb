// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// covered waits until the gaps of a cgroup are the wanted ones, besides "".
func covered(t testing.TB, s *Source, c libraries.Cgroup, want ...model.CollectiveGap) {
	t.Helper()
	want = append([]model.CollectiveGap{""}, want...)
	libraries.Eventually(t, func() error {
		if _, _, gaps := read(t, s, c); !slices.Equal(gaps, want) {
			return fmt.Errorf("gaps %q, want %q", gaps, want)
		}
		return nil
	})
}

// TestLate: communicators that were made before the probes, or whose handle is elsewhere at the first launch, are counted without an id.
// A communicator that is split from one of them has no id either.
func TestLate(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	r := start(t, c, b.Rank)
	r.OK("load %s", b.NCCL)
	r.OK("init rank 1 11 2 0")
	r.OK("init rank 2 12 2 0")
	h.Add(r)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, all...)
	covered(t, s, c)
	r.OK("init rank 3 13 2 0")
	r.OK("move 3")
	for slot := 1; slot <= 3; slot++ {
		r.OK("call all_reduce %d %d 10 7", slot, slot)
	}
	r.OK("split 1 4 0 0")
	r.OK("call all_reduce 4 4 10 7")
	r.OK("init rank 5 15 2 1") // a known communicator beside them
	r.OK("call all_reduce 5 5 10 7")
	ranks, others, _ := read(t, s, c)
	want := map[model.CollectiveKey]model.Launches{
		{Library: "nccl", Communicator: model.LateCommunicators, Operation: "all_reduce"}: {Count: 1 + 2 + 3 + 4, Bytes: 400},
	}
	if len(ranks) != 1 || operationsOf(&ranks[0])["all_reduce"].Count != 5 || !maps.Equal(others, want) {
		t.Errorf("%+v\n%v", ranks, others)
	}
	covered(t, s, c, model.CollectiveLate)
	r.OK("end destroy 1")
	r.OK("end destroy 2")
	r.OK("end destroy 3")
	r.OK("end destroy 4")
	covered(t, s, c)
	if _, others, _ := read(t, s, c); !maps.Equal(others, want) { // the sum stays
		t.Errorf("after their end: %v", others)
	}
	s.Forget([]model.CgroupID{c.ID})
	if ranks, others, _ := read(t, s, c); len(ranks)+len(others) > 0 {
		t.Errorf("after Forget: %+v, %v", ranks, others)
	}
	libraries.Lossless(t, s)
}

// TestStatic: programs and a library that contain the library. Without symbols nothing is counted, and the coverage says so.
func TestStatic(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c, torch, stripped := libraries.NewCgroup(t), libraries.NewCgroup(t), libraries.NewCgroup(t)
	r := start(t, c, b.Static)
	h.Add(r)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, all...)
	covered(t, s, c, model.CollectiveStatic)
	r.OK("init rank 1 11 2 1")
	r.OK("call reduce 1 7 10 7") // the communicator is an argument on the stack
	ranks, _, _ := read(t, s, c)
	if len(ranks) != 1 || ranks[0].Version != "2.28.9" || operationsOf(&ranks[0])["reduce"] != (model.Launches{Count: 7, Bytes: 280}) {
		t.Errorf("%+v", ranks)
	}

	r = start(t, torch, b.Rank)
	r.OK("load %s", b.Torch)
	h.Add(r)
	covered(t, s, torch, model.CollectiveStatic)
	r.OK("torch 9")
	ranks, _, _ = read(t, s, torch)
	if len(ranks) != 1 || ranks[0].Rank != "1" || operationsOf(&ranks[0])["all_reduce"] != (model.Launches{Count: 9, Bytes: 360}) {
		t.Errorf("%+v", ranks)
	}

	r = start(t, stripped, b.Stripped)
	h.Add(r)
	covered(t, s, stripped, model.CollectiveNoSymbols)
	r.OK("init rank 1 11 2 1")
	r.OK("call reduce 1 7 10 7")
	if ranks, others, _ := read(t, s, stripped); len(ranks)+len(others) > 0 {
		t.Errorf("%+v, %v", ranks, others)
	}
	libraries.Lossless(t, s)
}

// TestGraphs: launches of graphs are noticed in a process with collectives. Another process is not slowed.
func TestGraphs(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	alone := start(t, libraries.NewCgroup(t), b.Rank)
	alone.OK("load %s", b.CUDA)
	h.Add(alone)
	s := startSource(t, &h)
	alone.OK("graph 3")
	r := start(t, c, b.Rank)
	r.OK("load %s", b.NCCL)
	h.Add(r)
	covered(t, s, c)
	libraries.Probed(t, s, model.StateAbsent, "cuGraphLaunch")
	r.OK("load %s", b.CUDA)
	libraries.Probed(t, s, model.StateOK, "cuGraphLaunch")
	covered(t, s, c)
	r.OK("graph 3")
	covered(t, s, c, model.CollectiveGraphs)
	r.End()
	libraries.Probed(t, s, model.StateAbsent, "cuGraphLaunch")
	libraries.Lossless(t, s)
}

// TestRefusedConsent: a container that refuses probes has none, and its coverage says so.
func TestRefusedConsent(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	r := start(t, c, b.Rank)
	r.OK("load %s", b.NCCL)
	h.Add(r)
	s := startSource(t, &h, func(o *Options) {
		o.Consent = func(model.CgroupID) uprobe.Consent { return uprobe.Refused }
	})
	covered(t, s, c, model.CollectiveRefused)
	r.OK("init rank 1 11 2 1")
	r.OK("call all_reduce 1 7 10 7")
	if ranks, others, _ := read(t, s, c); len(ranks)+len(others) > 0 {
		t.Errorf("%+v, %v", ranks, others)
	}
}

// TestBudget: a function that a process calls all the time is no longer probed for a while. The others are.
func TestBudget(t *testing.T) {
	c, r, s := probedRank(t)
	r.OK("init rank 1 11 2 1")
	r.OK("call send 1 %d 1 0", uint64(2*time.Second/callCost)) // twenty times the credit
	libraries.Probed(t, s, model.StateFailed, "ncclSend")
	covered(t, s, c, model.CollectiveBudget, model.CollectiveLost)
	before, _, _ := read(t, s, c)
	r.OK("call send 1 5 1 0")
	r.OK("call recv 1 5 1 0")
	after, _, _ := read(t, s, c)
	if operationsOf(&after[0])["send"] != operationsOf(&before[0])["send"] || operationsOf(&after[0])["recv"].Count != 5 {
		t.Errorf("%+v, then %+v", before, after)
	}
}

// TestShare: a workload that makes more communicators than its share loses the rest, which is counted. Another workload has room.
func TestShare(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	greedy, other := libraries.NewCgroup(t), libraries.NewCgroup(t)
	const entries, made = 64, 40
	s := startSource(t, &h, func(o *Options) { o.MaxEntries = entries })
	start := func(c libraries.Cgroup) *fakes.Rank {
		r := start(t, c, b.Rank)
		r.OK("load %s", b.NCCL)
		h.Add(r)
		covered(t, s, c)
		return r
	}
	r := start(greedy)
	libraries.Probed(t, s, model.StateOK, all...)
	for slot := range made {
		r.OK("init rank %d %d 2 1", slot, slot)
		r.OK("call all_reduce %d 1 1 0", slot)
	}
	r = start(other)
	r.OK("init rank 1 11 2 1")
	r.OK("call all_reduce 1 3 1 0")
	covered(t, s, greedy, model.CollectiveLost)
	covered(t, s, other)
	ranks, others, _ := read(t, s, greedy)
	folded := others[model.CollectiveKey{Library: "nccl", Communicator: model.OtherCommunicators, Operation: "all_reduce"}].Count
	if len(ranks) != maxOfWorkload || folded != 0 {
		t.Errorf("%d communicators, %d launches in others; the share is %d", len(ranks), folded, entries/share)
	}
	if ranks, _, _ := read(t, s, other); len(ranks) != 1 || operationsOf(&ranks[0])["all_reduce"].Count != 3 {
		t.Errorf("the other workload: %+v", ranks)
	}
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Each communicator beyond the share is lost when it is made, and again at its launch.
	want := model.Count(2 * (made - entries/share))
	if i := slices.IndexFunc(snap.Losses, func(l model.Loss) bool { return l.Reason == "communicators_share" }); i < 0 ||
		model.Count(snap.Losses[i].Count) != want {
		t.Errorf("%+v, want %d", snap.Losses, want)
	}
	if len(snap.OwnerLosses) != 1 || snap.OwnerLosses[0].Cgroup != greedy.ID || snap.OwnerLosses[0].Value != want {
		t.Errorf("%+v, want %d", snap.OwnerLosses, want)
	}
	if m := snap.Maps[0]; m.Name != communicatorsMap || m.Entries != entries/share+1 || m.Capacity != entries {
		t.Errorf("%+v", m)
	}
}

// TestFull: the maps are full. Of the workloads, the coverage names the one that lost something.
func TestFull(t *testing.T) {
	b := build(t)
	const entries = 2 * share // two communicators of each workload fill the map, or launchesOfMember operations of each
	operations := []string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter"}
	for reason, fill := range map[string]struct{ communicators, operations int }{
		"communicators_full":        {entries / share, 1},
		"collective_launches_full":  {1, launchesOfMember * entries / share},
		"collective_launches_share": {entries / share, launchesOfMember*entries/share/2 + 1},
	} {
		t.Run(reason, func(t *testing.T) {
			var h libraries.Holders
			s := startSource(t, &h, func(o *Options) { o.MaxEntries = entries })
			use := func(c libraries.Cgroup, communicators int) {
				t.Helper()
				r := start(t, c, b.Rank)
				r.OK("load %s", b.NCCL)
				h.Add(r)
				covered(t, s, c)
				libraries.Probed(t, s, model.StateOK, all...)
				for slot := range communicators {
					r.OK("init rank %d %d 2 1", slot, slot)
					for _, operation := range operations[:fill.operations] {
						r.OK("call %s %d 3 1 0", operation, slot)
					}
				}
			}
			var full []libraries.Cgroup
			for range share {
				c := libraries.NewCgroup(t)
				full = append(full, c)
				if use(c, fill.communicators); reason == "collective_launches_share" {
					break
				}
				covered(t, s, c)
			}
			last := full[0]
			if reason != "collective_launches_share" {
				last = libraries.NewCgroup(t)
				use(last, 1)
			}
			covered(t, s, last, model.CollectiveLost)
			for _, c := range full {
				if c != last {
					covered(t, s, c)
				}
			}
			snap, err := s.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range snap.Losses {
				if (l.Count > 0) != (l.Reason == reason) {
					t.Errorf("%+v, want a loss for the reason %s", l, reason)
				}
			}
		})
	}
}

// TestLeftCgroup: a process launches on a communicator that it made in a cgroup that it has left, and that was removed.
func TestLeftCgroup(t *testing.T) {
	before, r, s := probedRank(t)
	after := libraries.NewCgroup(t)
	r.OK("init rank 1 11 2 1")
	r.OK("call all_reduce 1 3 10 7")
	if err := os.WriteFile(filepath.Join(after.Dir, "cgroup.procs"), fmt.Append(nil, r.Process.Pid), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Forget([]model.CgroupID{before.ID})
	if ranks, others, _ := read(t, s, before); len(ranks)+len(others) > 0 {
		t.Errorf("after Forget: %+v, %v", ranks, others)
	}
	r.OK("call all_reduce 1 5 10 7")
	late := model.CollectiveKey{Library: "nccl", Communicator: model.LateCommunicators, Operation: "all_reduce"}
	if _, others, _ := read(t, s, after); others[late].Count != 5 {
		t.Errorf("%v, want 5 launches", others)
	}
	libraries.Lossless(t, s)
	r.End() // before its cgroup
}

// TestPending: of the communicators that a process makes without using them, the last ones are known.
func TestPending(t *testing.T) {
	c, r, s := probedRank(t)
	const pending, more = 64, 3
	for slot := range pending + more {
		r.OK("init rank %d %d 2 1", slot, slot)
	}
	for slot := range pending + more {
		r.OK("call all_reduce %d 1 1 0", slot)
	}
	ranks, others, _ := read(t, s, c)
	late := others[model.CollectiveKey{Library: "nccl", Communicator: model.LateCommunicators, Operation: "all_reduce"}].Count
	other := others[model.CollectiveKey{Library: "nccl", Communicator: model.OtherCommunicators, Operation: "all_reduce"}].Count
	if len(ranks) != maxOfWorkload || late != more || other != pending-maxOfWorkload {
		t.Errorf("%d communicators, %d launches in late ones, %d in others", len(ranks), late, other)
	}
	snap, _ := s.Read(t.Context())
	if !slices.Contains(snap.Losses, model.Loss{Reason: "communicators_pending", Count: more}) {
		t.Errorf("%+v", snap.Losses)
	}
	covered(t, s, c, model.CollectiveLate, model.CollectiveOther)
}

// TestBadPointers: a process passes pointers to nothing. It runs on, and others are counted.
func TestBadPointers(t *testing.T) {
	c, r, s := probedRank(t)
	r.OK("bad")
	r.OK("init rank 1 11 2 1")
	r.OK("call all_reduce 1 3 10 7")
	r.OK("call all_reduce 1 1 %d 8", uint64(1<<63)) // more than any memory
	r.OK("call all_reduce 1 1 10 99")               // a type of a later version
	ranks, _, _ := read(t, s, c)
	for _, f := range ranks {
		if f.Rank == "1" && operationsOf(&f)["all_reduce"] == (model.Launches{Count: 5, Bytes: 120}) {
			return
		}
	}
	t.Errorf("%+v", ranks)
}

// TestRefusedParts: the source must not start without a used part.
func TestRefusedParts(t *testing.T) {
	libraries.RefusedParts(t, (&Options{}).spec(), func(spec hook.Spec) error {
		k, err := newKernel(spec)
		if err != nil {
			return err
		}
		defer k.close()
		var refused error
		err = k.object.Load(spec, func() { refused = k.load(0) })
		return hook.Unsupported(cmp.Or(err, refused))
	})
}
