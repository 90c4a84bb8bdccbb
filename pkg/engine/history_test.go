// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// A history is a random life of cgroups that count verbs, and a log of every increment
// from which the counters of owners are computed again, without deltas.
type history struct {
	r       *rand.Rand
	refresh int
	next    uint64
	cgroups []*historyCgroup
	log     []increment
}

type historyCgroup struct {
	id        uint64
	owner     string // empty: without a name
	totals    map[historyKey]uint64
	delivered map[historyKey]uint64
	died      int // refreshes since its end, 0 while it lives
	forgotten bool
	lingers   int // refreshes that its rows are seen after it was forgotten
}

type historyKey struct{ device, verb string }

type increment struct {
	owner  string
	key    historyKey
	amount uint64
}

// historyValues are the counters of owners: by workload, device and verb.
type historyValues map[string]uint64

func (h *history) chance(percent int) bool { return h.r.IntN(100) < percent }

// step lets cgroups begin, count and end, and returns those to be forgotten.
func (h *history) step(answered bool) (forget []uint64) {
	h.refresh++
	if h.chance(40) && len(h.cgroups) < 12 {
		h.next++
		c := &historyCgroup{id: h.next, totals: map[historyKey]uint64{}, delivered: map[historyKey]uint64{}}
		if !h.chance(10) {
			c.owner = fmt.Sprint("job", h.r.IntN(6))
		}
		h.cgroups = append(h.cgroups, c)
	}
	for _, c := range h.cgroups {
		switch {
		case c.forgotten:
			c.lingers--
		case c.died > 0:
			if c.died++; answered && c.died > 4 {
				c.forgotten, c.lingers = true, h.r.IntN(3)
				forget = append(forget, c.id)
			}
		case h.chance(8):
			c.died = 1
		default:
			for range h.r.IntN(4) {
				k := historyKey{fmt.Sprint("mlx5_", h.r.IntN(2)), []string{"reg_mr", "create_qp", "dereg_mr"}[h.r.IntN(3)]}
				c.totals[k] += uint64(h.r.IntN(1000))
			}
		}
	}
	return forget
}

// rows delivers the counters of all cgroups that are seen, in any order.
func (h *history) rows() (rows []model.Verb, errors []model.VerbError) {
	rows, errors = []model.Verb{}, []model.VerbError{}
	for _, c := range h.cgroups {
		if c.forgotten && c.lingers < 0 {
			continue
		}
		for k, n := range c.totals {
			h.log = append(h.log, increment{c.owner, k, n - c.delivered[k]})
			c.delivered[k] = n
			first := uint64(h.r.IntN(int(n) + 1)) // two device numbers of one name
			for _, n := range []uint64{first, n - first} {
				v := model.Verb{Cgroup: c.id, Device: k.device, Verb: k.verb, Duration: model.Histogram{Count: n, SumSeconds: float64(n)}}
				v.Duration.Buckets[3] = n
				rows = append(rows, v)
				errors = append(errors, model.VerbError{Cgroup: c.id, Device: k.device, Verb: k.verb, Errno: "ENOMEM", Count: 2 * n})
			}
		}
	}
	h.r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	h.r.Shuffle(len(errors), func(i, j int) { errors[i], errors[j] = errors[j], errors[i] })
	h.cgroups = slices.DeleteFunc(h.cgroups, func(c *historyCgroup) bool { return c.forgotten && c.lingers < 0 })
	return rows, errors
}

// want computes the counters of all owners with a cgroup, and of what has none, from the
// whole log. What an owner counted before its last cgroup went is not its successor's.
func (h *history) want() historyValues {
	present := map[string]bool{"": true}
	for _, c := range h.cgroups {
		if !c.forgotten || c.lingers >= 0 {
			present[c.owner] = true
		}
	}
	h.log = slices.DeleteFunc(h.log, func(i increment) bool { return !present[i.owner] })
	want := historyValues{}
	for _, i := range h.log {
		want[i.owner+" "+i.key.device+" "+i.key.verb] += i.amount
	}
	return want
}

func (h *history) entities() map[uint64]model.Entity {
	entities := map[uint64]model.Entity{}
	for _, c := range h.cgroups {
		if c.owner != "" {
			entities[c.id] = model.Entity{Workload: c.owner}
		}
	}
	return entities
}

// TestHistory runs random histories against a log of all increments. Left out is what this
// code gets wrong: names that come late or change, answers that lack rows, cgroups that are
// forgotten while there is no answer.
func TestHistory(t *testing.T) {
	for seed := range uint64(20) {
		h := &history{r: rand.New(rand.NewPCG(seed, 3))}
		var kept retired
		before := historyValues{}
		for refresh := range 300 {
			answered := h.chance(90)
			forget := h.step(answered) // a cgroup that is forgotten without an answer loses what it counted
			var s model.Snapshot
			if answered {
				s.Verbs, s.VerbErrors = h.rows()
			}
			s.Entities = h.entities()
			kept.add(&s)
			a := attribution.Attribute(s)
			if !answered {
				if len(a.Verbs)+len(a.VerbErrors) > 0 {
					t.Fatalf("seed %d, refresh %d: counters without an answer", seed, refresh)
				}
			} else {
				got := compareHistory(t, seed, refresh, h.want(), &a)
				for k, n := range before {
					if now, there := got[k]; there && now < n {
						t.Fatalf("seed %d, refresh %d: %s fell from %d to %d", seed, refresh, k, n, now)
					}
				}
				before = got
			}
			kept.forget(&s, forget)
		}
	}
}

func compareHistory(t *testing.T, seed uint64, refresh int, want historyValues, a *attribution.Attribution) historyValues {
	t.Helper()
	got := historyValues{}
	for i := range a.Verbs {
		v := &a.Verbs[i]
		k := a.Owners[v.Owner].Workload + " " + v.Device + " " + v.Verb
		if _, twice := got[k]; twice {
			t.Fatalf("seed %d, refresh %d: %s is there twice", seed, refresh, k)
		}
		got[k] = v.Duration.Count
		if d := v.Duration; d.Buckets[3] != d.Count || d.SumSeconds != float64(d.Count) {
			t.Fatalf("seed %d, refresh %d: %s is %v", seed, refresh, k, d)
		}
	}
	maps.DeleteFunc(got, func(_ string, n uint64) bool { return n == 0 })
	maps.DeleteFunc(want, func(_ string, n uint64) bool { return n == 0 })
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("seed %d, refresh %d:\n%s", seed, refresh, d)
	}
	for _, e := range a.VerbErrors {
		if k := a.Owners[e.Owner].Workload + " " + e.Device + " " + e.Verb; e.Count != 2*got[k] {
			t.Fatalf("seed %d, refresh %d: %d errors of %s, want %d", seed, refresh, e.Count, k, 2*got[k])
		}
	}
	return got
}
