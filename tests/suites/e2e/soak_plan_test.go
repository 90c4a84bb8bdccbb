// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fault is something that happens to the sensor or around it.
type fault struct {
	name string
	uses []string     // its exclusive resources: faults with a common word do not overlap
	do   func() error // begins it
	heal func() error
}

// event is a fault of a round: it begins some time after the start of the round, and is healed after it has lasted.
type event struct {
	fault
	after, lasts time.Duration
}

// plan chooses faults. The sequence depends on the seed only, not on durations.
type plan struct {
	random *rand.Rand
	faults []fault
	deck   []fault // those chosen before all others are chosen again
}

func newPlan(seed uint64, faults []fault) *plan {
	return &plan{random: rand.New(rand.NewPCG(seed, 0)), faults: faults}
}

// next returns one to three faults that overlap.
func (p *plan) next() (round []event) {
	var used []string
	for range 1 + p.random.IntN(3) {
		if len(p.deck) == 0 {
			p.deck = slices.Clone(p.faults)
			p.random.Shuffle(len(p.deck), func(i, j int) { p.deck[i], p.deck[j] = p.deck[j], p.deck[i] })
		}
		free := slices.IndexFunc(p.deck, func(f fault) bool {
			return !slices.ContainsFunc(f.uses, func(word string) bool { return slices.Contains(used, word) })
		})
		if free < 0 {
			break
		}
		f := p.deck[free]
		p.deck = slices.Delete(p.deck, free, free+1)
		used = append(append(used, f.uses...), f.name)
		round = append(round, event{f, p.between(0, 5*time.Second), p.between(3*time.Second, 15*time.Second)})
	}
	return round
}

func (p *plan) between(low, high time.Duration) time.Duration {
	return low + time.Duration(p.random.Int64N(int64(high-low)))
}

// TestSoakPlan: a seed gives the same rounds again, each fault comes, and faults that exclude each other do not
// overlap.
func TestSoakPlan(t *testing.T) {
	faults := []fault{{name: "a", uses: []string{"x"}}, {name: "b", uses: []string{"x", "y"}}, {name: "c", uses: []string{"y"}}, {name: "d"}}
	type line struct {
		Name         string
		After, Lasts time.Duration
	}
	play := func(seed uint64) (lines []line) {
		p, count := newPlan(seed, faults), map[string]int{}
		for range 100 {
			round := map[string]bool{}
			for _, e := range p.next() {
				if e.name == "b" && (round["a"] || round["c"]) || round["b"] && (e.name == "a" || e.name == "c") {
					t.Errorf("%s overlaps with %v", e.name, round)
				}
				round[e.name] = true
				count[e.name]++
				lines = append(lines, line{e.name, e.after, e.lasts})
			}
		}
		for _, f := range faults {
			if count[f.name] < len(lines)/len(faults)-1 {
				t.Errorf("%s came %d times in %d", f.name, count[f.name], len(lines))
			}
		}
		return lines
	}
	if diff := cmp.Diff(play(7), play(7)); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(play(7), play(8)) {
		t.Error("another seed gives the same rounds")
	}
}

// TestSoakGrown: variation is not growth, and each resource that grows is reported.
func TestSoakGrown(t *testing.T) {
	before := map[string]float64{"resident MB": 40, "descriptors": 50, "map verbs": 1000}
	if err := grown(before, map[string]float64{"resident MB": 55, "descriptors": 70, "map verbs": 1200}); err != nil {
		t.Error(err)
	}
	for name, more := range map[string]float64{"resident MB": 61, "descriptors": 77, "map verbs": 1329, "threads": 17, "map new": 129} {
		if grown(before, map[string]float64{name: more}) == nil {
			t.Errorf("%s of %v is no growth", name, more)
		}
	}
}
