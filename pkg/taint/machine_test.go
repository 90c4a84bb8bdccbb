// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var limits = Limits{Set: time.Minute, Clear: 5 * time.Minute, Gap: time.Minute, MaxNodes: 2}

// world is a cluster whose nodes fail and recover at random, with the history of what a Prometheus said of it.
type world struct {
	r       *rand.Rand
	at      time.Time
	faulty  map[Subject]bool
	past    []*Observation // since the machine was started or knew nothing
	marks   map[Subject][]string
	refused int
}

func (w *world) subjects() (all []Subject) {
	for n := range 5 {
		for _, uuid := range []string{"", "GPU-1", "GPU-2"} {
			all = append(all, Subject{fmt.Sprint("n", n), GPU, uuid})
		}
	}
	return all
}

// observe returns what Prometheus says: nothing, or the faults, some pending, and some nodes not judged.
func (w *world) observe() *Observation {
	step := 15 * time.Second
	if w.r.IntN(60) == 0 {
		step = 3 * time.Minute // the program was stopped, or Prometheus answered late
	}
	w.at = w.at.Add(step)
	for _, s := range w.subjects() {
		if w.r.IntN(60) == 0 {
			w.faulty[s] = !w.faulty[s]
		}
	}
	if w.r.IntN(80) == 0 {
		return nil
	}
	o := &Observation{At: w.at, Faulty: map[Subject][]string{}, Pending: map[Subject]bool{}, Judged: map[Subject]bool{}}
	for _, s := range w.subjects() {
		switch {
		case w.faulty[s] && w.r.IntN(100) > 0:
			o.Faulty[s] = []string{"GPULost"}
		case w.faulty[s]:
			o.Pending[s] = true
		}
		if s.UUID == "" && w.r.IntN(100) > 0 {
			o.Judged[s] = true
		}
	}
	return o
}

// since returns for how long something was true of all observations until now, without a gap; negative if it is not true now.
func (w *world) since(holds func(*Observation) bool) time.Duration {
	long := time.Duration(-1)
	for i := len(w.past) - 1; i >= 0 && holds(w.past[i]); i-- {
		if i+1 < len(w.past) && w.past[i+1].At.Sub(w.past[i].At) > limits.Gap {
			break
		}
		long = w.at.Sub(w.past[i].At)
	}
	return long
}

func (w *world) check(t *testing.T, o *Observation, changes []Change, refused []Subject) {
	t.Helper()
	if o == nil {
		if len(changes)+len(refused) > 0 {
			t.Fatalf("nothing is known, and it changes %v", changes)
		}
		w.past = nil
		return
	}
	w.past = append(w.past, o)
	nodes := map[string]bool{}
	for s := range w.marks {
		nodes[s.Node] = true
	}
	changed := map[Subject]*Change{}
	for i := range changes {
		changed[changes[i].Subject] = &changes[i]
	}
	added := map[string]bool{}
	for _, s := range w.subjects() {
		sick := w.since(func(o *Observation) bool { return o.Faulty[s] != nil })
		well := w.since(func(o *Observation) bool {
			return o.Faulty[s] == nil && !o.Pending[s] && o.Judged[Subject{Node: s.Node, Kind: GPU}]
		})
		_, marked := w.marks[s]
		c := changed[s]
		set := c != nil && len(c.Verdicts) > 0
		switch wanted := sick >= limits.Set; {
		case !marked && set != (wanted && !slices.Contains(refused, s)):
			t.Fatalf("%v is faulty for %v, and set is %v", s, sick, set)
		case marked && (c != nil) != (well >= limits.Clear):
			t.Fatalf("%v is healthy for %v, and the change is %+v", s, well, c)
		case c != nil && set == marked:
			t.Fatalf("%v: marked %v, change %+v", s, marked, c)
		}
		if set && !nodes[s.Node] {
			added[s.Node] = true
		}
	}
	if n := len(nodes) + len(added); n > limits.MaxNodes || len(refused) > 0 && n < limits.MaxNodes {
		t.Fatalf("%d nodes, refused %v", n, refused)
	}
	w.refused += len(refused)
}

// TestMachine has nodes fail and recover at random, with outages of Prometheus and restarts. Marks change exactly when the history of the
// observations, which the test keeps, says so.
func TestMachine(t *testing.T) {
	sets, clears, refused := 0, 0, 0
	for seed := range uint64(20) {
		w := &world{r: rand.New(rand.NewPCG(seed, 0)), at: time.Unix(1e9, 0), faulty: map[Subject]bool{}, marks: map[Subject][]string{}}
		m := NewMachine(limits)
		for range 2000 {
			if w.r.IntN(200) == 0 { // a restart: only the marks remain
				m, w.past = NewMachine(limits), nil
			}
			o := w.observe()
			changes, no := m.Step(o, w.marks)
			w.check(t, o, changes, no)
			for _, c := range changes {
				if len(c.Verdicts) > 0 {
					w.marks[c.Subject] = c.Verdicts
					sets++
				} else {
					delete(w.marks, c.Subject)
					clears++
				}
			}
		}
		refused += w.refused
	}
	if sets < 100 || clears < 100 || refused < 100 {
		t.Errorf("%d marks set, %d removed, %d refused", sets, clears, refused)
	}
}

// TestVerdictsOfMark: a mark follows the names of the verdicts at once.
func TestVerdictsOfMark(t *testing.T) {
	s := Subject{"n", GPU, ""}
	o := &Observation{At: time.Unix(1e9, 0), Faulty: map[Subject][]string{s: {"GPUGone", "GPULost"}}}
	changes, _ := NewMachine(limits).Step(o, map[Subject][]string{s: {"GPULost"}})
	if len(changes) != 1 || !slices.Equal(changes[0].Verdicts, []string{"GPUGone", "GPULost"}) {
		t.Errorf("%v", changes)
	}
}
