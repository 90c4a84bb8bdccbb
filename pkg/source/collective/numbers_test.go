// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"math/bits"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// ranksOf starts ranks that have loaded NCCL, two in a cgroup, and a source that probes the library.
func ranksOf(t *testing.T, n int) (ranks []*fakes.Rank, groups []libraries.Cgroup, s *Source) {
	t.Helper()
	b := build(t)
	var h libraries.Holders
	for i := range n {
		if i%2 == 0 {
			groups = append(groups, libraries.NewCgroup(t))
		}
		r := start(t, groups[len(groups)-1], b.Rank)
		r.OK("load %s", b.NCCL)
		h.Add(r)
		ranks = append(ranks, r)
	}
	s = startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, all...)
	return ranks, groups, s
}

// allOf returns the ranks of communicators in cgroups, by rank.
func allOf(t *testing.T, s *Source, groups []libraries.Cgroup) map[string]model.Communicator {
	t.Helper()
	of := map[string]model.Communicator{}
	for _, c := range groups {
		ranks, _, _ := read(t, s, c)
		for _, r := range ranks {
			of[r.Rank] = r
		}
	}
	return of
}

// TestLateLaunches compares how late three ranks are with the times at which the test orders their launches. The ranks launch in turns, in
// another order each time. Sends have no number.
func TestLateLaunches(t *testing.T) {
	ranks, groups, s := ranksOf(t, 3)
	for i, r := range ranks {
		r.OK("init rank 1 77 3 %d", i)
		r.OK("init rank 2 %d 8 7", 80+i) // other ranks are on other nodes
	}
	for rank, r := range allOf(t, s, groups) {
		if !r.Numbered || r.Launched != 0 || r.Since.IsZero() {
			t.Errorf("rank %s before its first launch: %+v", rank, r)
		}
	}
	var least, most [3]time.Duration
	for step := range 30 {
		var first struct{ before, after time.Time }
		for turn := range ranks {
			i := (turn + step/10) % len(ranks)
			if i == 1 {
				ranks[i].OK("call send 1 %d 1 0", step)
			}
			before := time.Now()
			ranks[i].OK("call %s 1 1 1 0", []string{"all_reduce", "bcast"}[step%2])
			after := time.Now()
			if turn == 0 {
				first.before, first.after = before, after
			} else {
				least[i] += before.Sub(first.after)
				most[i] += after.Sub(first.before)
			}
			ranks[i].OK("call all_reduce 2 1 1 0")
			time.Sleep(time.Duration(turn+1) * time.Millisecond)
		}
	}
	of := allOf(t, s, groups)
	for i, rank := range []string{"0", "1", "2"} {
		late := time.Duration(of[rank].Late.Value * float64(time.Second))
		t.Logf("rank %s: %v late, ordered %v to %v late", rank, late, least[i], most[i])
		if !of[rank].Late.Known || late < least[i]-time.Millisecond || late > most[i]+time.Millisecond || of[rank].Launched != 30 {
			t.Errorf("rank %s: %+v", rank, of[rank])
		}
	}
	for _, c := range groups {
		covered(t, s, c)
	}
	listed, _, _ := read(t, s, groups[0])
	for _, r := range listed {
		if r.Rank == "7" && (r.Late.Known || !r.Numbered || r.Launched != 30) {
			t.Errorf("a single rank of a communicator: %+v", r)
		}
	}
	libraries.Lossless(t, s)
}

// TestFarBehind: a rank is more launches behind than the program keeps. What is added is too small, which the coverage says.
func TestFarBehind(t *testing.T) {
	ranks, groups, s := ranksOf(t, 2)
	for i, r := range ranks {
		r.OK("init rank 1 77 2 %d", i)
	}
	began := time.Now()
	ranks[0].OK("call all_reduce 1 1000 1 0")
	ahead := time.Now()
	time.Sleep(20 * time.Millisecond)
	before := time.Now()
	ranks[1].OK("call all_reduce 1 3 1 0")
	least, most := 3*before.Sub(ahead), 3*time.Since(began)
	covered(t, s, groups[0], model.CollectiveBehind)
	of := allOf(t, s, groups)
	if late := time.Duration(of["1"].Late.Value * float64(time.Second)); late < least || late > most || of["0"].Late != model.Some(0) {
		t.Errorf("%v late, ordered %v to %v late: %+v", late, least, most, of)
	}
	// It catches up, and is the first from then on.
	ranks[1].OK("call all_reduce 1 1097 1 0")
	caught := allOf(t, s, groups)["1"].Late
	time.Sleep(20 * time.Millisecond)
	ranks[0].OK("call all_reduce 1 2 1 0")
	if of = allOf(t, s, groups); of["0"].Late.Value < 0.04 || of["1"].Late != caught {
		t.Errorf("rank 1 is ahead, it was %v late: %+v", caught, of)
	}
	libraries.Lossless(t, s)
}

// TestKept: the program keeps the launches that the definition says, with their times, in each rank the same.
func TestKept(t *testing.T) {
	ranks, groups, s := ranksOf(t, 2)
	launches := []int{1000, 37}
	took := [2][]struct{ before, after time.Time }{}
	for i, r := range ranks {
		r.OK("init rank 1 77 2 %d", i)
		for range launches[i] {
			before := time.Now()
			r.OK("call all_reduce 1 1 1 0")
			took[i] = append(took[i], struct{ before, after time.Time }{before, time.Now()})
		}
	}
	of := allOf(t, s, groups)
	for i, rank := range []string{"0", "1"} {
		var numbers []uint64
		for _, k := range of[rank].Kept {
			numbers = append(numbers, k.Number)
			if at := took[i][k.Number-1]; k.Time.Before(at.before.Add(-time.Millisecond)) || k.Time.After(at.after.Add(time.Millisecond)) {
				t.Errorf("rank %s: launch %d at %v, ordered %v to %v", rank, k.Number, k.Time, at.before, at.after)
			}
		}
		if want := keptNumbers(launches[i]); !slices.Equal(numbers, want) {
			t.Errorf("rank %s: %d, want %d", rank, numbers, want)
		}
	}
}

// keptNumbers returns the numbers of kept launches, by the definition.
func keptNumbers(launched int) (numbers []uint64) {
	byZeros := map[int]int{}
	for n := uint64(launched); n > 0; n-- {
		zeros := bits.TrailingZeros64(n)
		if byZeros[zeros]++; zeros < 16 && byZeros[zeros] <= 4 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// TestKeptWhileLaunching: a rank is read between the steps of the program. A number has the right time or none.
func TestKeptWhileLaunching(t *testing.T) {
	r := rank{}
	now := moment{time.Unix(1e9, 0), 1e15}
	at := func(n uint64) uint64 { return n << 20 }
	for n := uint64(1); n < 600; n++ {
		check := func(launched uint64) {
			t.Helper()
			r.Launched = launched
			all := kept(&r, now)
			if len(all) < len(keptNumbers(int(launched)))-1 {
				t.Fatalf("%d launches: %v", launched, all)
			}
			for _, k := range all {
				if !k.Time.Equal(now.at(at(k.Number))) {
					t.Fatalf("%d launches: %v", launched, k)
				}
			}
		}
		check(n) // the time is not yet stored
		zeros := uint64(bits.TrailingZeros64(n))
		odd := n >> zeros / 2
		r.Times[zeros*keptTimes+odd%keptTimes] = at(n) | odd/keptTimes&stampTurns
		check(n - 1) // the number was read before
	}
}

// TestCompare: numbers of a rank compare if no launch was missed. How late ranks are is known if the numbers of all ranks of the node
// compare.
func TestCompare(t *testing.T) {
	const made = 100
	whole := map[int]uint64{1: made, 2: 50, 3: made + 1, 4: 0}
	for name, c := range map[string]struct {
		pids       []int
		change     func(m *members, first, last *member)
		comparable string // by rank
		paired     bool
	}{
		"two ranks":                     {[]int{1, 2}, nil, "yy", true},
		"one rank":                      {[]int{1}, nil, "y", false},
		"made before the last function": {[]int{1, 3}, nil, "yn", false},
		"a function is not probed":      {[]int{1, 4}, nil, "yn", false},
		"not searched yet":              {[]int{1, 5}, nil, "yn", false},
		"two processes have a rank":     {[]int{1, 2, 2}, func(_ *members, first, last *member) { last.Rank = first.Rank }, "nyn", false},
		"launches were lost":            {[]int{1, 2}, func(m *members, _, last *member) { m.lost[last.Cgroup] = true }, "yn", false},
		"no room for times":             {[]int{1, 2}, func(_ *members, first, _ *member) { first.known = false }, "ny", false},
		"probes were away":              {[]int{1, 2}, func(_ *members, first, _ *member) { first.checkProbes(0) }, "ny", false},
		"a process has ended":           {[]int{1, 5}, func(_ *members, _, last *member) { last.checkProbes(made) }, "yy", true},
		"two communicators":             {[]int{1, 2}, func(_ *members, _, last *member) { last.Key = "other" }, "yy", false},
		"one has no id":                 {[]int{1, 2}, func(_ *members, _, last *member) { last.late = true }, "yn", false},
	} {
		m := newMembers(keyer{})
		var of []*member
		for i, pid := range c.pids {
			r := &member{pid: pid, numbers: numbers{made: made, known: true}}
			r.Key, r.Rank, r.Cgroup = "key", string(rune('0'+i)), model.CgroupID(i+1)
			m.of[uint64(i)] = r
			of = append(of, r)
		}
		if c.change != nil {
			c.change(&m, of[0], of[len(of)-1])
		}
		m.compare(whole)
		for i, r := range of {
			if r.comparable != (c.comparable[i] == 'y') || r.paired != c.paired {
				t.Errorf("%s: rank %d: %+v", name, i, r.numbers)
			}
		}
	}
}

// TestClock: the clock of adjtimex(2) is synchronized if both its state and its status say so.
func TestClock(t *testing.T) {
	for name, c := range map[string]struct {
		state, status int
		want          bool
	}{
		"synchronized": {0, unix.STA_PLL, true}, "a leap second": {1, unix.STA_INS, true},
		"never set": {timeError, unix.STA_UNSYNC, false}, "no reference": {timeError, unix.STA_PPSFREQ, false},
		"unsynchronized": {0, unix.STA_UNSYNC, false},
	} {
		got := clockOf(c.state, &unix.Timex{Status: int32(c.status), Esterror: 250, Maxerror: 16e6})
		want := model.Clock{Synchronized: c.want, EstimatedError: 250 * time.Microsecond, MaximumError: 16 * time.Second}
		if *got != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if c := clock(); c == nil || c.MaximumError < c.EstimatedError {
		t.Errorf("%+v", c)
	}
}
