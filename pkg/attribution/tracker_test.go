// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

type (
	verbTracker  = Tracker[model.VerbKey, model.Histogram, *model.Histogram]
	errorTracker = Tracker[model.VerbErrorKey, model.Count, *model.Count]
)

// historyModel computes owners' counters from a log of all deliveries, without deltas. A token stands for an owner from
// its first delivery until it expires or is merged.
type historyModel struct {
	log    []credit
	tokens map[identity.OwnerID]int
	next   int
	total  uint64
}

type credit struct {
	token  int
	key    model.VerbKey
	amount uint64
}

func (m *historyModel) token(id identity.OwnerID) int {
	if _, ok := m.tokens[id]; !ok {
		m.next++
		m.tokens[id] = m.next
	}
	return m.tokens[id]
}

func (m *historyModel) merge(g identity.Merge) {
	from, to := m.token(g.From), m.token(g.To)
	for i := range m.log {
		if m.log[i].token == from {
			m.log[i].token = to
		}
	}
	delete(m.tokens, g.From)
}

type accountOf struct {
	owner identity.OwnerID
	key   model.VerbKey
}

func (m *historyModel) want(owners *identity.Table) (shown map[accountOf]uint64, expired uint64) {
	ids := map[int]identity.OwnerID{}
	for id, token := range m.tokens {
		ids[token] = id
	}
	shown = map[accountOf]uint64{}
	for _, c := range m.log {
		id, ok := ids[c.token]
		switch {
		case !ok:
			expired += c.amount
		case id == identity.Unattributed || owners.HasCgroup(id):
			shown[accountOf{id, c.key}] += c.amount
		}
	}
	return shown, expired
}

// TestTrackerHistory checks on random histories that each owner has the deliveries of its cgroups exactly once, and
// that only the expiry of an owner loses counts.
func TestTrackerHistory(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testTrackerHistory(t, seed) })
	}
}

func testTrackerHistory(t *testing.T, seed uint64) {
	h := newHistory(seed)
	r := rand.New(rand.NewPCG(seed, 5))
	var owners identity.Table
	var tracked, again, shuffled verbTracker
	var errors errorTracker
	m := historyModel{tokens: map[identity.OwnerID]int{}}
	before := map[accountOf]uint64{}
	for refresh := range 300 {
		a := h.step()
		for _, g := range owners.Resolve(&a.facts, a.facts.CgroupIDs()) {
			m.merge(g)
			delete(before, accountOf{g.From, model.VerbKey{}})
			for k := range before {
				if k.owner == g.From {
					delete(before, k)
				}
			}
			tracked.Merge(g)
			again.Merge(g)
			shuffled.Merge(g)
			errors.Merge(g)
		}
		for _, d := range a.delivered {
			m.log = append(m.log, credit{m.token(owners.Of(d.cgroup)), d.key, d.amount})
			m.total += d.amount
		}
		tracked.Credit(a.facts.Verbs, &owners, time.Time{})
		again.Credit(a.facts.Verbs, &owners, time.Time{})
		errors.Credit(a.facts.VerbErrors, &owners, time.Time{})
		other := slices.Clone(a.facts.Verbs)
		shuffle(r, other)
		shuffled.Credit(other, &owners, time.Time{})
		for _, id := range owners.Expire(nil) {
			delete(m.tokens, id)
			for k := range before {
				if k.owner == id {
					delete(before, k)
				}
			}
			gone := map[identity.OwnerID]bool{id: true}
			tracked.Expire(gone)
			again.Expire(gone)
			shuffled.Expire(gone)
			errors.Expire(gone)
		}

		use := func(id identity.OwnerID) int { return int(id) }
		shares := tracked.Shares(&owners, use)
		if (shares == nil) != (a.facts.Verbs == nil) {
			t.Fatalf("refresh %d: shares %v of an answer %v", refresh, shares != nil, a.facts.Verbs != nil)
		}
		if shares != nil {
			got := sharesOf(t, shares)
			want, expired := m.want(&owners)
			if d := cmp.Diff(nonzero(want), nonzero(got), cmp.AllowUnexported(accountOf{})); d != "" {
				t.Fatalf("refresh %d:\n%s", refresh, d)
			}
			for k, n := range before {
				if now, shown := got[k]; shown && now < n {
					t.Fatalf("refresh %d: %v fell from %d to %d", refresh, k, n, now)
				}
			}
			before = got
			for _, e := range errors.Shares(&owners, use) {
				k := accountOf{identity.OwnerID(e.Owner), model.VerbKey{Device: e.Key.Device, Verb: e.Key.Verb}}
				if uint64(e.Value) != 2*got[k] {
					t.Fatalf("refresh %d: %d errors of %v, want %d", refresh, e.Value, k, 2*got[k])
				}
			}
			sum := expired
			for _, a := range tracked.accounts {
				if a.ended != nil {
					sum += a.ended.Count
				}
			}
			for _, r := range tracked.rows {
				if r.account != nil {
					sum += r.last.Count
				}
			}
			if sum != m.total {
				t.Fatalf("refresh %d: the accounts add up to %d, %d were delivered", refresh, sum, m.total)
			}
			if !reflect.DeepEqual(shares, again.Shares(&owners, use)) {
				t.Fatalf("refresh %d: the same facts give shares in another order", refresh)
			}
			if d := cmp.Diff(got, sharesOf(t, shuffled.Shares(&owners, use)), cmp.AllowUnexported(accountOf{})); d != "" {
				t.Fatalf("refresh %d: the order of facts matters:\n%s", refresh, d)
			}
		}
		forget(a.forget, &owners, &tracked, &again, &shuffled)
		forget(a.forget, &owners, &errors)
	}

	var all []model.CgroupID
	for id := range h.next {
		all = append(all, id+1)
	}
	forget(all, &owners, &tracked)
	for range 2 * maxMissedAnswers {
		owners.Resolve(&model.Snapshot{}, nil)
		tracked.Credit([]model.Series[model.VerbKey, model.Histogram]{}, &owners, time.Time{})
		for _, id := range owners.Expire(nil) {
			tracked.Expire(map[identity.OwnerID]bool{id: true})
		}
	}
	for i := range tracked.accounts {
		if tracked.accounts[i].owner != identity.Unattributed {
			t.Fatalf("an account of owner %d is left", tracked.accounts[i].owner)
		}
	}
	if len(tracked.rows)+len(tracked.leaving) > 0 || len(tracked.accounts) > 6 {
		t.Errorf("%d rows and %d accounts are left", len(tracked.rows), len(tracked.accounts))
	}
}

func forget(ids []model.CgroupID, owners *identity.Table, trackers ...interface{ Forget(map[model.CgroupID]bool) }) {
	set := map[model.CgroupID]bool{}
	for _, id := range ids {
		set[id] = true
	}
	for _, t := range trackers {
		t.Forget(set)
	}
	owners.Forget(ids)
}

func sharesOf(t *testing.T, shares []Share[model.VerbKey, model.Histogram]) map[accountOf]uint64 {
	t.Helper()
	got := map[accountOf]uint64{}
	for _, s := range shares {
		k := accountOf{identity.OwnerID(s.Owner), s.Key}
		if _, twice := got[k]; twice {
			t.Fatalf("%v is listed twice", k)
		}
		if s.Value != histogramOf(s.Value.Count) {
			t.Fatalf("%v is %v", k, s.Value)
		}
		got[k] = s.Value.Count
	}
	return got
}

func nonzero(m map[accountOf]uint64) map[accountOf]uint64 {
	m = maps.Clone(m)
	maps.DeleteFunc(m, func(_ accountOf, n uint64) bool { return n == 0 })
	return m
}
