// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/model"
)

var begin = time.Unix(1_800_000_000, 0).UTC()

// launches returns a rank with launches 100 ms apart, each later than its time by so much.
func launches(name string, late time.Duration, numbers ...uint64) attribution.CommunicatorShare {
	c := attribution.CommunicatorShare{Owner: 1, Communicator: model.Communicator{Library: "nccl", Key: "world", Rank: name, Ranks: 4}}
	for _, n := range numbers {
		c.Kept = append(c.Kept, model.KeptLaunch{Number: n, Time: begin.Add(time.Duration(n)*100*time.Millisecond + late)})
	}
	return c
}

func within(errors time.Duration) *model.Clock {
	return &model.Clock{Synchronized: true, MaximumError: errors}
}

// TestLate: a rank is late if it launches after another node's rank by more than both clocks may differ.
func TestLate(t *testing.T) {
	const ms = time.Millisecond
	type node struct {
		clock *model.Clock
		ranks []attribution.CommunicatorShare
	}
	numbers := []uint64{8, 9, 10, 11, 12}
	half := launches("1", 0, 8, 9)
	half.Kept = append(half.Kept, launches("1", 35*ms, 10, 11).Kept...)
	punctual := node{within(2 * ms), []attribution.CommunicatorShare{launches("0", 0, numbers...)}}
	for name, c := range map[string]struct {
		nodes      []node
		late       string
		uncompared int
	}{
		"late":                          {nodes: []node{punctual, {within(3 * ms), []attribution.CommunicatorShare{launches("1", 35*ms, numbers...)}}}, late: "1 35ms 5ms 5"},
		"by the clocks":                 {nodes: []node{punctual, {within(33 * ms), []attribution.CommunicatorShare{launches("1", 35*ms, numbers...)}}}},
		"punctual":                      {nodes: []node{punctual, {within(ms / 10), []attribution.CommunicatorShare{launches("1", 0, numbers...)}}}},
		"less than a ms":                {nodes: []node{{within(1), punctual.ranks}, {within(1), []attribution.CommunicatorShare{launches("1", ms/2, numbers...)}}}},
		"no clock":                      {nodes: []node{punctual, {nil, []attribution.CommunicatorShare{launches("1", 35*ms, numbers...)}}}, uncompared: 1},
		"no error":                      {nodes: []node{punctual, {within(0), []attribution.CommunicatorShare{launches("1", 35*ms, numbers...)}}}, uncompared: 1},
		"not synchronized":              {nodes: []node{punctual, {&model.Clock{MaximumError: ms}, []attribution.CommunicatorShare{launches("1", 35*ms, numbers...)}}}, uncompared: 1},
		"also other launches":           {nodes: []node{punctual, {within(3 * ms), []attribution.CommunicatorShare{launches("1", 35*ms, append([]uint64{100, 101, 102, 103, 104, 105, 106}, numbers...)...)}}}, late: "1 35ms 5ms 5"},
		"beside a node without a clock": {nodes: []node{{nil, punctual.ranks}, {within(ms), []attribution.CommunicatorShare{launches("1", 0, numbers...), launches("2", 35*ms, numbers...)}}}, uncompared: 1},
		"half of the launches":          {nodes: []node{{within(1), []attribution.CommunicatorShare{launches("0", 0, 8, 9, 10, 11)}}, {within(1), []attribution.CommunicatorShare{half}}}},
		"few launches":                  {nodes: []node{punctual, {within(ms), []attribution.CommunicatorShare{launches("1", 35*ms, 8, 9, 10)}}}},
		"other launches":                {nodes: []node{punctual, {within(ms), []attribution.CommunicatorShare{launches("1", 35*ms, 4, 5, 6, 7)}}}},
		"no launches":                   {nodes: []node{punctual, {within(ms), []attribution.CommunicatorShare{launches("1", 0)}}}, uncompared: 1},
		"on one node":                   {nodes: []node{{within(ms), []attribution.CommunicatorShare{launches("0", 0, numbers...), launches("1", 35*ms, numbers...)}}}},
		"two on two nodes":              {nodes: []node{punctual, {within(3 * ms), []attribution.CommunicatorShare{launches("1", 35*ms, numbers...), launches("2", 70*ms, numbers...)}}}, late: "2 70ms 5ms 5, 1 35ms 5ms 5"},
		"first on its node":             {nodes: []node{{nil, []attribution.CommunicatorShare{launches("0", -time.Hour, numbers...)}}, punctual, {within(3 * ms), []attribution.CommunicatorShare{launches("1", 35*ms, numbers...)}}}, late: "1 35ms 5ms 5", uncompared: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var members []fleet.Member
			for _, n := range c.nodes {
				members = append(members, member("ml/a", serve(t, (&fakeSensor{ranks: n.ranks, clock: n.clock}).handler())))
			}
			s := reader(t, "").Job(job, members).Said
			var got []string
			for _, l := range s.Late {
				if l.Communicator != "world" || l.Workload != "ml/a" || l.Node == "" {
					t.Errorf("%+v", l)
				}
				seconds := func(v float64) time.Duration { return time.Duration(math.Round(v * 1e9)) }
				got = append(got, fmt.Sprint(l.Rank, " ", seconds(l.Seconds), " ", seconds(l.ErrorSeconds), " ", l.Launches))
			}
			if strings.Join(got, ", ") != c.late || s.Uncompared != c.uncompared {
				t.Errorf("%q and %d nodes that are not compared, want %q and %d", got, s.Uncompared, c.late, c.uncompared)
			}
		})
	}
}

// TestIncomplete: ranks of a communicator that no sensor knows are counted, ranks of other workloads are not known.
func TestIncomplete(t *testing.T) {
	other := launches("2", 0, 1)
	other.Owner = 0
	a := &fakeSensor{ranks: []attribution.CommunicatorShare{launches("0", 0, 1), launches("1", 0, 1), other}}
	b := &fakeSensor{ranks: []attribution.CommunicatorShare{launches("1", 0, 1), launches("3", 0, 1)}} // a second process with a rank
	pair := launches("0", 0, 1)
	pair.Key, pair.Ranks = "pair", 1
	unknown := launches("0", 0, 1)
	unknown.Key, unknown.Ranks = "unknown", 0
	b.ranks = append(b.ranks, pair, unknown)
	s := reader(t, "").Job(job, []fleet.Member{member("ml/a", serve(t, a.handler())), member("ml/a", serve(t, b.handler()))}).Said
	if d := gocmp.Diff([]fleet.Incomplete{{Communicator: "world", Known: 3, NRanks: 4}}, s.Incomplete); d != "" {
		t.Error(d)
	}
}

// TestManyRanks: what a sensor says about ranks is bounded.
func TestManyRanks(t *testing.T) {
	var numbers []uint64
	for n := range uint64(maxTimes + 5) {
		numbers = append(numbers, n)
	}
	a, b := &fakeSensor{clock: within(1)}, &fakeSensor{clock: within(1)}
	for i := range maxRanks + 5 {
		a.ranks = append(a.ranks, launches(fmt.Sprint(2*i), 0, numbers...))
		b.ranks = append(b.ranks, launches(fmt.Sprint(2*i+1), time.Second, numbers...))
	}
	r := reader(t, "")
	name := serve(t, a.handler())
	got := r.sensor(t.Context(), name, map[owner]bool{{"ml/a", "id-ml/a"}: true})
	if len(got.ranks) != maxRanks || len(got.ranks[0].times) != maxTimes || got.held < maxRanks*maxTimes {
		t.Errorf("%d ranks with %d times, %d held", len(got.ranks), len(got.ranks[0].times), got.held)
	}
	if s := r.Job(job, []fleet.Member{member("ml/a", name), member("ml/a", serve(t, b.handler()))}).Said; len(s.Late) != maxSaid || s.MoreLate != maxRanks-maxSaid {
		t.Errorf("%d late ranks and %d more, want %d of %d", len(s.Late), s.MoreLate, maxSaid, maxRanks)
	}
	a = &fakeSensor{}
	for i := range maxSaid + 3 {
		c := launches("0", 0, 1)
		c.Key = fmt.Sprint("part", i)
		a.ranks = append(a.ranks, c)
	}
	if s := r.Job(fleet.JobName{Name: "other"}, []fleet.Member{member("ml/a", serve(t, a.handler()))}).Said; len(s.Incomplete) != maxSaid || s.MoreIncomplete != 3 {
		t.Errorf("%d incomplete communicators and %d more, want %d and 3", len(s.Incomplete), s.MoreIncomplete, maxSaid)
	}
}

// TestFirsts compares the first launch on other nodes with a search through all launches.
func TestFirsts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	nodes := make([]answer, 4)
	for range 2000 {
		var all []stamp
		var f firsts
		for range 1 + r.IntN(8) {
			s := stamp{&nodes[r.IntN(len(nodes))], begin.Add(time.Duration(r.IntN(6)))}
			all, f = append(all, s), f.with(s)
		}
		for i := range nodes {
			var want time.Time
			for _, s := range all {
				if s.node != &nodes[i] && (want.IsZero() || s.at.Before(want)) {
					want = s.at
				}
			}
			if got := f.elsewhere(&nodes[i]); !got.at.Equal(want) || got.node == &nodes[i] || (got.node == nil) != want.IsZero() {
				t.Fatalf("%v: %v, want %v", all, got, want)
			}
		}
	}
}
