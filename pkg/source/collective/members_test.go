// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// node has communicators in the form of the maps.
type node struct {
	members members
	made    map[uint64]*communicator
	total   map[uint64]uint64 // launches, by number
	last    map[string]uint64 // what was listed, by series
	now     moment
	numbers uint64
}

func newNode() *node {
	return &node{
		members: newMembers(keyer{defaultKey, "boot"}), made: map[uint64]*communicator{}, total: map[uint64]uint64{}, last: map[string]uint64{},
		now: moment{time.Unix(1e9, 0), 1e15},
	}
}

func (n *node) add(cgroup uint64, id, rank int) uint64 {
	n.numbers++
	number := n.numbers
	c := &communicator{
		Cgroup: cgroup, Tgid: 1, Rank: uint32(rank),
		Flags: uint32(gen.CollectiveCollectiveFlagIDENTIFIED | gen.CollectiveCollectiveFlagRANKED | gen.CollectiveCollectiveFlagSIZED),
	}
	copy(c.Id[:], fmt.Sprint(id))
	n.made[number] = c
	return number
}

// read reads as Source.update does, and checks that no series falls and that no launch counts twice.
func (n *node) read(t *testing.T) (listed []model.Communicator) {
	t.Helper()
	n.now.wall, n.now.monotonic = n.now.wall.Add(time.Second), n.now.monotonic+uint64(time.Second)
	for number, c := range n.made {
		if n.members.see(number, c, false, n.now) {
			delete(n.made, number)
			delete(n.total, number)
		}
	}
	for number, launches := range n.total {
		n.members.count(launchKey{Communicator: number}, &launchCounts{Count: launches, Last: n.now.monotonic})
	}
	n.members.settle(n.now)
	listed = n.members.listedMembers()
	sums := map[string]uint64{}
	for i := range listed {
		c := &listed[i]
		sums[fmt.Sprint(c.Cgroup, c.Key, c.Rank)] += operationsOf(c)[operations[0]].Count
	}
	for _, f := range n.members.foldedSeries() {
		sums[fmt.Sprint(f.Cgroup, f.Key)] = f.Value.Count
	}
	for series, before := range n.last {
		if now, still := sums[series]; still && now < before {
			t.Fatalf("%s fell from %d to %d", series, before, now)
		}
	}
	n.last = sums
	return listed
}

// TestBounds: the busiest 16 communicators of a workload are listed, and 512 ranks of the node. All launches are in a series.
func TestBounds(t *testing.T) {
	n := newNode()
	for id := range 100 {
		n.total[n.add(1, id, 0)] = uint64(id)
	}
	for cgroup := range 5 {
		for id := range 10 {
			for rank := range 16 {
				n.total[n.add(uint64(cgroup+10), id, rank)] = 1000
			}
		}
	}
	listed := n.read(t)
	of := map[model.CgroupID]map[string]bool{}
	for i := range listed {
		c := &listed[i]
		if of[c.Cgroup] == nil {
			of[c.Cgroup] = map[string]bool{}
		}
		of[c.Cgroup][c.Key] = true
		if launches := operationsOf(c)[operations[0]].Count; c.Cgroup == 1 && launches < 100-maxOfWorkload {
			t.Errorf("a communicator with %d launches is listed", launches)
		}
	}
	if len(of[1]) != 0 || len(listed) != maxListed {
		t.Errorf("%d ranks, %d communicators of the workload with few launches", len(listed), len(of[1]))
	}
	sum, want := uint64(0), uint64(0)
	for _, v := range n.last {
		sum += v
	}
	for _, v := range n.total {
		want += v
	}
	if sum != want {
		t.Errorf("%d launches in all series, %d made", sum, want)
	}
	alone := newNode()
	for id := range 100 {
		alone.total[alone.add(1, id, 0)] = uint64(id)
	}
	if listed := alone.read(t); len(listed) != maxOfWorkload {
		t.Errorf("%d communicators", len(listed))
	}
}

// TestPromotion: a communicator that becomes busy takes the place of another one. It counts from then on.
func TestPromotion(t *testing.T) {
	n := newNode()
	for id := range maxOfWorkload {
		n.total[n.add(1, id, 0)] = 100
	}
	n.read(t)
	late := n.add(1, 99, 0)
	n.total[late] = 150
	listed := n.read(t)
	key := n.members.of[late].Key
	find := func() *model.Communicator {
		for i := range listed {
			if listed[i].Key == key {
				return &listed[i]
			}
		}
		return nil
	}
	if find() != nil {
		t.Fatal("less than twice as many launches are enough")
	}
	n.total[late] = 300
	listed = n.read(t)
	c := find()
	if c == nil || operationsOf(c)[operations[0]].Count != 150 || !c.Since.IsZero() || len(listed) != maxOfWorkload {
		t.Fatalf("%+v of %d", c, len(listed))
	}
	n.made[late].Ended = n.now.monotonic
	n.read(t)
	n.now.monotonic += uint64(endedGrace)
	if listed = n.read(t); find() != nil || n.made[late] != nil || len(listed) != maxOfWorkload {
		t.Errorf("after the end: %+v of %d", find(), len(listed))
	}
}

// TestRandomLaunches: whatever communicators do, no series falls.
func TestRandomLaunches(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	n := newNode()
	for id := range 300 {
		switch r.IntN(3) {
		case 0:
			n.add(uint64(1+r.IntN(2)), id, 0)
		case 1:
			for _, c := range n.made {
				c.Ended = n.now.monotonic
				break
			}
		}
		for number, c := range n.made {
			if c.Ended == 0 {
				n.total[number] += r.Uint64N(100)
			}
		}
		if len(n.read(t)) > 2*maxOfWorkload {
			t.Fatal("too many")
		}
	}
}

// TestLostWhileCounted: what a cgroup lost is a gap until its last count has ended.
func TestLostWhileCounted(t *testing.T) {
	m := newMembers(keyer{})
	m.lost[1], m.lost[2] = true, true
	m.folded[foldedKey{cgroup: 1}] = &model.Launches{}
	lost := model.CollectiveCoverage{Cgroup: 1, Gap: model.CollectiveLost}
	if got := m.coverage(nil); !slices.Equal(got, []model.CollectiveCoverage{lost}) {
		t.Errorf("%+v, want %+v", got, lost)
	}
	m.forget(map[model.CgroupID]bool{1: true})
	if got := m.coverage(nil); len(got) > 0 || len(m.lost) > 0 {
		t.Errorf("after Forget: %+v, %v", got, m.lost)
	}
}
