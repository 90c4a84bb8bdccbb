// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// The sizes of the types, by number.
var typeSizes = []uint64{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}

// TestLaunches compares what four ranks launch on a communicator with the counts, operation by operation and type by type. The ranks make
// the communicator in each way that takes an id.
func TestLaunches(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	var ranks []*fakes.Rank
	for range 4 {
		r := start(t, c, b.Rank)
		r.OK("load %s", b.NCCL)
		h.Add(r)
		ranks = append(ranks, r)
	}
	before := time.Now()
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, all...)
	calls := []string{
		"all_reduce", "all_gather", "reduce_scatter", "broadcast", "bcast", "reduce", "all_to_all", "gather", "scatter", "send", "recv",
	}
	var want [4]map[string]model.Launches
	for i, r := range ranks {
		want[i] = map[string]model.Launches{}
		r.OK("init %s 5 77 4 %d", []string{"rank", "config", "scalable", "rank"}[i], i)
		for k, call := range calls {
			typ, times, count := (k+i)%len(typeSizes), uint64(10*i+k+1), uint64(1000+k)
			r.OK("call %s 5 %d %d %d", call, times, count, typ)
			if call == "bcast" { // which calls the other function
				call = "broadcast"
			}
			n := want[i][call]
			n.Add(&model.Launches{Count: times, Bytes: times * count * typeSizes[typ]})
			want[i][call] = n
		}
		r.OK("threads all_reduce 5 1000 3 7")
		n := want[i]["all_reduce"]
		n.Add(&model.Launches{Count: 4000, Bytes: 4000 * 3 * 4})
		want[i]["all_reduce"] = n
	}
	got, others, gaps := read(t, s, c)
	// A rank launches after the one before has launched thousands of times.
	if len(got) != 4 || len(others) != 0 || !slices.Equal(gaps, []model.CollectiveGap{"", model.CollectiveBehind}) {
		t.Fatalf("%+v\n%v, %q", got, others, gaps)
	}
	for i, r := range got {
		if r.Key != got[0].Key || len(r.Key) != 16 || r.Rank != string(rune('0'+i)) || r.Ranks != 4 || r.Parent != "" ||
			r.Library != "nccl" || r.Version != "2.28.9" {
			t.Errorf("%+v", r)
		}
		if !maps.Equal(operationsOf(&r), want[i]) {
			t.Errorf("rank %d: %v\nlaunched: %v", i, operationsOf(&r), want[i])
		}
		if r.LastLaunch.Before(r.Since) || r.Since.Before(before) || r.LastLaunch.After(time.Now()) {
			t.Errorf("rank %d: since %v, last %v, test since %v", i, r.Since, r.LastLaunch, before)
		}
	}
	libraries.Lossless(t, s)
}

// TestCommunicators: communicators of one process, made in all ways. Two of them have the same address one after the other.
func TestCommunicators(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	r := start(t, c, b.Rank)
	r.OK("load %s", b.RCCL)
	h.Add(r)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, append(all, "ncclAllToAllv")...)

	launch := func(slot int) { t.Helper(); r.OK("call all_reduce %d %d 1 0", slot, slot) }
	r.OK("init rank 1 11 8 3")
	launch(1)
	r.OK("split 1 2 0 1")
	r.OK("split 1 3 1 1") // another color
	r.OK("split 1 4 -1 1")
	r.OK("split 1 5 0 1") // the same color again is another communicator
	r.OK("split 2 6 0 1")
	r.OK("shrink 1 7 2")
	r.OK("grow 1 8 -1 10 -1")
	r.OK("grow -1 9 12 16 15")
	r.OK("all 20 3")
	for _, slot := range []int{2, 3, 5, 6, 7, 8, 9, 20, 21, 22} {
		launch(slot)
	}
	r.OK("call all_to_all_v 1 9 100 7")
	r.OK("end destroy 9") // the next one has its address
	r.OK("init rank 10 13 2 0")
	launch(10)
	r.OK("end finalize 10")
	r.OK("end destroy 10")
	r.OK("init config 11 14 2 1")
	launch(11)
	r.OK("end abort 11")

	got, others, gaps := read(t, s, c)
	by := map[uint64]model.Communicator{}
	for _, f := range got {
		by[operationsOf(&f)["all_reduce"].Count] = f
	}
	if len(got) != 13 || len(by) != 13 || len(others) > 0 || !slices.Equal(gaps, []model.CollectiveGap{""}) {
		t.Fatalf("%d: %+v\n%v, %q", len(got), got, others, gaps)
	}
	world := by[1].Key
	for slot, want := range map[uint64]struct {
		rank, parent string
		ranks        uint32
	}{
		1: {"3", "", 8},
		2: {"parent-3", world, 0}, 3: {"parent-3", world, 0}, 5: {"parent-3", world, 0}, 6: {"parent-3", by[2].Key, 0},
		7: {"parent-3", world, 6}, 8: {"parent-3", world, 10}, 9: {"15", "", 16},
		10: {"0", "", 2}, 11: {"1", "", 2}, 20: {"0", "", 3}, 21: {"1", "", 3}, 22: {"2", "", 3},
	} {
		f := by[slot]
		if f.Rank != want.rank || f.Parent != want.parent || f.Ranks != want.ranks || f.Library != "rccl" || f.Version != "2.27.7" {
			t.Errorf("%d: %+v, want %+v", slot, f, want)
		}
	}
	keys := map[string]bool{}
	for _, f := range got {
		keys[f.Key] = true
	}
	if len(keys) != 11 || by[20].Key != by[22].Key {
		t.Errorf("%d keys", len(keys))
	}
	if n := operationsOf(new(by[1]))["all_to_all_v"]; n != (model.Launches{Count: 9}) {
		t.Errorf("all_to_all_v: %+v", n)
	}
	libraries.Lossless(t, s)

	// Ended communicators stay for a while.
	for _, m := range s.members.of {
		if m.ended != 0 {
			m.ended -= uint64(endedGrace)
		}
	}
	if got, _, _ = read(t, s, c); len(got) != 10 {
		t.Errorf("%d communicators without the ended ones", len(got))
	}
	r.End()
	_, _, _ = read(t, s, c)
	for _, m := range s.members.of {
		m.ended -= uint64(endedGrace)
	}
	if got, _, _ = read(t, s, c); len(got) != 0 {
		t.Errorf("%d communicators after the end of the process", len(got))
	}
	entriesLeft(t, s)
}

// entriesLeft requires that all maps are empty, and that the kernel knows it.
func entriesLeft(t testing.TB, s *Source) {
	t.Helper()
	if _, err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{communicatorsMap, pendingMap, handlesMap, launchesMap, ranksMap, firstsMap} {
		var key, value []byte
		n := 0
		for entries := s.kernel.object.Coll.Maps[name].Iterate(); entries.Next(&key, &value); {
			n++
		}
		if n > 0 {
			t.Errorf("%s: %d entries left", name, n)
		}
	}
}

// TestSplitOfRanks: two ranks that split in the same order get the same key for the same color.
func TestSplitOfRanks(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	s := startSource(t, &h)
	var got [2][]model.Communicator
	var groups [2]libraries.Cgroup
	for i := range 2 {
		groups[i] = libraries.NewCgroup(t)
		r := start(t, groups[i], b.Rank)
		r.OK("load %s", b.NCCL)
		h.Add(r)
		libraries.Probed(t, s, model.StateOK, all...)
		libraries.Eventually(t, func() error { _, err := s.Read(t.Context()); return err })
		r.OK("init rank 1 11 2 %d", i)
		r.OK("split 1 2 5 0")
		r.OK("split 1 3 %d 0", i)
		for slot := range 3 {
			r.OK("call all_reduce %d 1 1 0", slot+1)
		}
		got[i], _, _ = read(t, s, groups[i])
		if len(got[i]) != 3 {
			t.Fatalf("%+v", got[i])
		}
	}
	same := 0
	for _, a := range got[0] {
		for _, b := range got[1] {
			if a.Key == b.Key {
				same++
				if a.Parent != b.Parent || a.Rank == b.Rank {
					t.Errorf("%+v\n%+v", a, b)
				}
			}
		}
	}
	if same != 2 {
		t.Errorf("%d common keys, want the communicator and the first split\n%+v\n%+v", same, got[0], got[1])
	}
}

// TestKeyFile: nodes with one key file have the same keys, other nodes have others. No key contains the id.
func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var c communicator
	copy(c.Id[:], "the secret id")
	key := func(file, boot string) string {
		k, err := newKeyer(file, boot)
		if err != nil {
			t.Fatal(err)
		}
		return k.of(&c, 0)
	}
	if a, b := key(file, "1"), key(file, "2"); a != b {
		t.Errorf("two nodes: %s, %s", a, b)
	}
	if a, b := key(file, "1"), key("", "1"); a == b {
		t.Errorf("two keys: %s", a)
	}
	for _, wrong := range []string{empty, filepath.Join(dir, "absent")} {
		if _, err := newKeyer(wrong, ""); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
