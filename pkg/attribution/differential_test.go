// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	before "github.com/accelscope/accelscope/pkg/attribution/internal/before/attribution"
	beforemodel "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
	"github.com/accelscope/accelscope/pkg/attribution/internal/before/retired"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// formerPath is the accounting path as it was before: names per cgroup, and totals kept by turning
// owners into cgroups.
type formerPath struct {
	names  map[uint64]beforemodel.Entity
	totals retired.Totals
	facts  beforemodel.Snapshot
}

func (p *formerPath) refresh(a *answer) map[string]uint64 {
	s := beforemodel.Snapshot{}
	mentioned := map[uint64]bool{}
	if a.facts.Verbs != nil {
		s.Verbs, s.VerbErrors = []beforemodel.Verb{}, []beforemodel.VerbError{}
	}
	for _, v := range a.facts.Verbs {
		mentioned[v.Cgroup] = true
		s.Verbs = append(s.Verbs, beforemodel.Verb{Cgroup: v.Cgroup, Device: v.Key.Device, Verb: v.Key.Verb, Duration: beforemodel.Histogram{
			Count: v.Value.Count, SumSeconds: float64(v.Value.Sum), Buckets: v.Value.Buckets,
		}})
	}
	s.Entities = map[uint64]beforemodel.Entity{}
	for _, c := range a.facts.Cgroups {
		if mentioned[c.ID] {
			s.Entities[c.ID] = beforemodel.Entity{
				Workload: c.Workload, ContainerID: c.ContainerID, PodUID: c.PodUID, Step: c.Step, Cgroup: string(c.Path), Claimed: c.Claimed,
			}
		}
	}
	if a.facts.Cgroups == nil { // the resolver does not answer
		for id := range mentioned {
			if e, ok := p.names[id]; ok {
				s.Entities[id] = e
			}
		}
	}
	for _, c := range a.facts.Containers {
		s.Containers = append(s.Containers, beforemodel.Container{
			ID: c.ID, Namespace: c.Namespace, Pod: c.Pod, Name: c.Name, PodUID: c.PodUID, Cgroup: c.Cgroup,
		})
	}
	for _, q := range a.facts.Pods {
		s.Pods = append(s.Pods, beforemodel.Pod{UID: q.UID, Namespace: q.Namespace, Name: q.Name})
	}
	s.Entities = before.Name(&s, p.names)
	maps.Copy(p.names, s.Entities)
	p.totals.Add(&s)
	p.facts = s
	shares := before.Attribute(s)
	got := map[string]uint64{}
	for _, v := range shares.Verbs {
		o := shares.Owners[v.Owner]
		got[fmt.Sprint(o.Workload, "|", o.ContainerID, "|", v.Device, "|", v.Verb)] = v.Duration.Count
	}
	return got
}

// TestDifferential runs the same histories through the former accounting path and this one. They
// are equal but for the differences that are made on purpose, each of which is seen.
func TestDifferential(t *testing.T) {
	seen, equal := map[string]int{}, 0
	for seed := range uint64(40) {
		h := newHistory(seed)
		h.noRestarts = true
		p := formerPath{names: map[uint64]beforemodel.Entity{}}
		var owners identity.Table
		var counters verbTracker
		why := map[string]string{}                  // by labels: the difference that applies
		last := map[model.CgroupID]identity.Owner{} // of known cgroups
		gone := map[identity.OwnerID]bool{}         // owners whose last cgroup was forgotten
		for refresh := range 300 {
			a := h.step()
			onlyMentioned(&a)
			merges := owners.Resolve(&a.facts, a.facts.CgroupIDs())
			for _, m := range merges {
				counters.Merge(m)
			}
			for id, was := range last {
				is := owners.OwnerOf(id)
				switch {
				case is == was:
				case was == identity.Owner{}:
					why[label(is)], why[label(was)] = "D1", "D1"
				case len(merges) > 0 || owners.Of(id) == identity.Unattributed:
					why[label(is)], why[label(was)] = "D2", "D2"
				default: // the labels of the owner, or the owner of one cgroup
					d := "D2"
					for other, o := range last {
						if other != id && o == was && owners.OwnerOf(other) == was {
							d = "D4"
						}
					}
					why[label(is)], why[label(was)] = d, d
				}
			}
			mentioned, listed, partial := map[string]bool{}, map[model.CgroupID]int{}, map[string]bool{}
			for _, v := range a.facts.Verbs {
				mentioned[label(owners.OwnerOf(v.Cgroup))] = true
				listed[v.Cgroup]++
			}
			for _, c := range h.cgroups {
				l := label(owners.OwnerOf(c.id))
				switch {
				case c.forgotten && owners.Of(c.id) == identity.Unattributed: // seen once more, while its name is not known
					why[l] = "D1"
				case gone[owners.Of(c.id)] && mentioned[l]: // another cgroup within ten refreshes
					why[l] = "D6"
				case a.facts.Verbs == nil && len(a.forget) > 0, a.facts.Verbs != nil && !mentioned[l] && len(c.counters) > 0:
					why[l] = "D6"
				case a.partial && why[l] == "" && len(a.forget) == 0:
					partial[l] = true // this refresh alone
				case a.partial && why[l] == "":
					why[l] = "D7"
				}
				if _, known := last[c.id]; known || listed[c.id] > 0 {
					last[c.id] = owners.OwnerOf(c.id)
				}
			}
			counters.Credit(a.facts.Verbs, &owners)
			was := p.refresh(&a)
			for _, id := range owners.Expire(nil) {
				counters.Expire(id)
				delete(gone, id)
			}
			is := map[string]uint64{}
			for _, s := range counters.Shares(&owners, func(id identity.OwnerID) int { return int(id) }) {
				is[label(*owners.Owner(identity.OwnerID(s.Owner)))+"|"+s.Key.Device+"|"+s.Key.Verb] = s.Value.Count
			}
			for k := range union(is, was) {
				var w, c, d, v string
				fields(k, &w, &c, &d, &v)
				switch reason := why[w+"|"+c]; {
				case is[k] == was[k]:
					equal++
				case reason == "" && partial[w+"|"+c]:
					seen["D7"]++
				case reason == "":
					t.Fatalf("seed %d, refresh %d: %s is %d, was %d", seed, refresh, k, is[k], was[k])
				default:
					seen[reason]++
				}
			}
			p.totals.Forget(&p.facts, a.forget)
			for _, id := range a.forget {
				gone[owners.Of(id)] = true
				delete(p.names, id)
				delete(last, id)
			}
			forget(a.forget, &owners, &counters)
			for id := range last {
				delete(gone, owners.Of(id))
			}
		}
	}
	t.Logf("%d equal, different: %v", equal, seen)
	for _, d := range []string{"D1", "D2", "D4", "D6", "D7"} {
		if seen[d] == 0 {
			t.Errorf("%s is not seen", d)
		}
	}
	if equal < 10_000 {
		t.Errorf("only %d were equal", equal)
	}
}

// onlyMentioned leaves the names of cgroups that occur in the facts, as the engine asks for.
func onlyMentioned(a *answer) {
	mentioned := map[model.CgroupID]bool{}
	for _, v := range a.facts.Verbs {
		mentioned[v.Cgroup] = true
	}
	if a.facts.Cgroups != nil {
		a.facts.Cgroups = slices.DeleteFunc(a.facts.Cgroups, func(c model.Cgroup) bool { return !mentioned[c.ID] })
	}
}

func label(o identity.Owner) string { return o.Workload + "|" + o.ContainerID }

func union(a, b map[string]uint64) map[string]uint64 {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

func fields(k string, to ...*string) {
	n := 0
	for i := 0; i <= len(k); i++ {
		if i == len(k) || k[i] == '|' {
			*to[0] = k[n:i]
			to, n = to[1:], i+1
		}
	}
}
