// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func named(id, name string) model.Container {
	return model.Container{ID: id, Runtime: "docker", Name: name}
}

func pathOf(id model.CgroupID, workload, container string) model.Cgroup {
	return model.Cgroup{ID: id, Path: model.CgroupPath("/" + workload), Workload: workload, ContainerID: container}
}

// TestRenames: an owner keeps its number under a new name if its anchor is the same, or if all its cgroups belong to
// the new name.
func TestRenames(t *testing.T) {
	t.Run("container named later", func(t *testing.T) {
		var table Table
		table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{pathOf(1, "docker:c1", "c1"), pathOf(2, "docker:c1", "c1")}}, nil)
		before := table.Of(1)
		merges := table.Resolve(&model.Snapshot{
			Cgroups: []model.Cgroup{pathOf(1, "docker:c1", "c1")}, Containers: []model.Container{named("c1", "web")},
		}, nil)
		if table.Of(1) != before || table.Of(2) != before || merges != nil || table.Owner(before).Workload != "docker:web" {
			t.Errorf("%d %d, merges %v, %+v", table.Of(1), table.Of(2), merges, table.Owner(before))
		}
	})
	t.Run("pod named later", func(t *testing.T) {
		var table Table
		fact := model.Cgroup{ID: 1, Path: "/pods/u1", Workload: "pod:u1", PodUID: "u1"}
		table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{fact}}, nil)
		before := table.Of(1)
		table.Resolve(&model.Snapshot{Pods: []model.Pod{{UID: "u1", Namespace: "ns", Name: "p"}}}, nil)
		if table.Of(1) != before || table.Owner(before).Workload != "ns/p" {
			t.Errorf("%d, before %d, %+v", table.Of(1), before, table.Owner(table.Of(1)))
		}
	})
	t.Run("container found by its path", func(t *testing.T) {
		var table Table
		facts := []model.Cgroup{{ID: 1, Path: "/web", Workload: "cgroup:/web"}, {ID: 2, Path: "/web/a", Workload: "cgroup:/web/a"}}
		table.Resolve(&model.Snapshot{Cgroups: facts}, nil)
		first, second := table.Of(1), table.Of(2)
		merges := table.Resolve(&model.Snapshot{
			Cgroups: facts, Containers: []model.Container{{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/web"}},
		}, nil)
		web := table.Of(1)
		want := []Merge{{first, web}, {second, web}}
		if d := cmp.Diff(want, merges); d != "" || table.Of(2) != web || table.Owner(web).Workload != "containerd:web" {
			t.Errorf("%v, %+v", merges, table.Owner(web))
		}
	})
	t.Run("one cgroup of several", func(t *testing.T) {
		var table Table
		table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{pathOf(1, "unit:a", ""), pathOf(2, "unit:a", "")}}, nil)
		a := table.Of(1)
		if m := table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{pathOf(1, "unit:b", "")}}, nil); m != nil || table.Of(2) != a || table.Of(1) == a {
			t.Errorf("%v, %d and %d of %d", m, table.Of(1), table.Of(2), a)
		}
		if m := table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{pathOf(2, "unit:b", "")}}, nil); !slices.Equal(m, []Merge{{a, table.Of(1)}}) {
			t.Errorf("%v after the last one", m)
		}
	})
	t.Run("two owners with one name", func(t *testing.T) {
		var table Table
		pod := func(id model.CgroupID, uid string) model.Cgroup {
			return model.Cgroup{ID: id, Path: model.CgroupPath("/" + uid), Workload: "pod:" + uid, PodUID: uid}
		}
		facts := []model.Cgroup{pod(1, "u1"), pod(2, "u2")}
		table.Resolve(&model.Snapshot{Cgroups: facts}, nil)
		merges := table.Resolve(&model.Snapshot{Cgroups: facts, Pods: []model.Pod{
			{UID: "u1", Namespace: "ns", Name: "p"}, {UID: "u2", Namespace: "ns", Name: "p"},
		}}, nil)
		if len(merges) != 1 || table.Of(1) != table.Of(2) {
			t.Errorf("%v, %d and %d", merges, table.Of(1), table.Of(2))
		}
	})
	t.Run("cgroup that claims a container", func(t *testing.T) {
		var table Table
		claim := pathOf(2, "podman:c1", "c1")
		claim.Claimed = true
		facts := []model.Cgroup{pathOf(1, "podman:c1", "c1"), claim}
		table.Resolve(&model.Snapshot{Cgroups: facts}, nil)
		merges := table.Resolve(&model.Snapshot{Cgroups: facts, Containers: []model.Container{named("c1", "web")}}, nil)
		if merges != nil || table.Of(1) == table.Of(2) || table.OwnerOf(2).Workload != "podman:c1" || table.OwnerOf(1).Workload != "docker:web" {
			t.Errorf("%v, %+v and %+v", merges, table.OwnerOf(1), table.OwnerOf(2))
		}
		// The same holds for the last cgroup with the former name.
		table.Forget([]model.CgroupID{1})
		if m := table.Resolve(&model.Snapshot{Cgroups: facts[1:], Containers: []model.Container{named("c1", "web")}}, nil); m != nil {
			t.Errorf("%v", m)
		}
	})
	t.Run("cgroup without a name", func(t *testing.T) {
		var table Table
		table.Resolve(&model.Snapshot{}, nil)
		if m := table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{pathOf(1, "unit:a", "")}}, nil); m != nil {
			t.Errorf("%v: counters from before the name must stay unattributed", m)
		}
	})
}

// TestJobNumberedLater: a job whose number is found after its first cgroups stays one owner, whichever of its cgroups
// occur then.
func TestJobNumberedLater(t *testing.T) {
	job := func(id model.CgroupID, name, scope string) model.Cgroup {
		return model.Cgroup{
			ID: id, Path: model.CgroupPath("/system.slice/" + scope + "/s5K1KKYAYG5D00"), Workload: "slurm:" + name, Runtime: "slurm", User: "ada",
		}
	}
	const sluid, number, scope = "s5K1KKYAYG5D00", "4711", "slurmstepd.scope"
	for name, c := range map[string]struct {
		later  []model.Cgroup
		merges int
	}{
		"the same cgroups":              {[]model.Cgroup{job(1, number, scope), job(2, number, scope)}, 0},
		"one of them":                   {[]model.Cgroup{job(2, number, scope)}, 0},
		"a new step only":               {[]model.Cgroup{job(3, number, scope)}, 0},
		"a new step and an old one":     {[]model.Cgroup{job(3, number, scope), job(1, number, scope)}, 0},
		"steps of another slurmd first": {[]model.Cgroup{job(4, number, "n2_slurmstepd.scope"), job(2, number, scope)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var table Table
			ids := []model.CgroupID{1, 2}
			table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{job(1, sluid, scope), job(2, sluid, scope)}}, ids)
			merges := table.Resolve(&model.Snapshot{Cgroups: c.later}, ids)
			if len(merges) != c.merges {
				t.Errorf("merges %v, want %d", merges, c.merges)
			}
			for _, id := range append(ids, c.later[0].ID) {
				if got := table.OwnerOf(id).Workload; got != "slurm:4711" || table.Of(id) != table.Of(1) {
					t.Errorf("cgroup %d: %q, owner %d of %d", id, got, table.Of(id), table.Of(1))
				}
			}
			if info := table.Info(table.Of(1)); info.Job.Name != number || info.User != "ada" {
				t.Errorf("%+v", info)
			}
			// The user of an ended job is no longer known.
			ended := job(1, number, scope)
			ended.User = ""
			table.Resolve(&model.Snapshot{Cgroups: []model.Cgroup{ended}}, nil)
			if info := table.Info(table.Of(1)); info.User != "ada" {
				t.Errorf("ended: %+v", info)
			}
		})
	}
}

// TestExpire: an owner is present while one of its cgroups is known, a device is assigned to it, or an owner of its pod
// is present. Then it expires once.
func TestExpire(t *testing.T) {
	var table Table
	table.Resolve(&model.Snapshot{
		Cgroups:    []model.Cgroup{pathOf(1, "docker:c1", "c1")},
		Containers: []model.Container{{ID: "c1", Namespace: "ns", Pod: "p", Name: "main"}},
	}, nil)
	owner, pod := table.Of(1), table.OfPod("ns", "p", "")
	next := func(assigned ...OwnerID) []OwnerID {
		table.Resolve(&model.Snapshot{}, nil)
		return table.Expire(assigned)
	}
	for range 3 * maxMissedRefreshes {
		if e := next(); e != nil {
			t.Fatalf("%v expired", e)
		}
	}
	table.Forget([]model.CgroupID{1})
	for range 3 * maxMissedRefreshes {
		if e := next(owner); e != nil || table.HasCgroup(owner) {
			t.Fatalf("%v expired", e)
		}
	}
	for range maxMissedRefreshes {
		if e := next(); e != nil {
			t.Fatalf("%v expired", e)
		}
	}
	if e := next(); !slices.Equal(e, []OwnerID{owner, pod}) {
		t.Errorf("%v expired, want %v", e, []OwnerID{owner, pod})
	}
	if table.Owner(owner).Container != "main" {
		t.Error("the labels were removed at once")
	}
	if e := next(); e != nil || *table.Owner(owner) != (Owner{}) {
		t.Errorf("%v, %+v", e, table.Owner(owner))
	}
	if len(table.byLabels)+len(table.byAnchor)+len(table.cgroups) > 0 {
		t.Errorf("%v, %v, %v are left", table.byLabels, table.byAnchor, table.cgroups)
	}
}

// TestExpireKernelUser: a kernel user is present while refreshes name it.
func TestExpireKernelUser(t *testing.T) {
	var table Table
	var user OwnerID
	next := func(used bool) []OwnerID {
		table.Resolve(&model.Snapshot{}, nil)
		if used {
			user = table.OfKernel("rpcrdma")
		}
		return table.Expire(nil)
	}
	for range 3 * maxMissedRefreshes {
		if e := next(true); e != nil {
			t.Fatalf("%v expired", e)
		}
	}
	for range maxMissedRefreshes {
		if e := next(false); e != nil {
			t.Fatalf("%v expired", e)
		}
	}
	if e := next(false); !slices.Equal(e, []OwnerID{user}) {
		t.Errorf("%v expired, want %v", e, user)
	}
}

// TestTableProperties: for any lists of the runtimes, no two owners have equal labels, an anchor belongs to one owner,
// a claimed cgroup never follows a name, an owner with a cgroup is present, and the info is as in a new table with the
// same facts.
func TestTableProperties(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		var table Table
		known := map[model.CgroupID]model.Cgroup{}
		next := model.CgroupID(0)
		for round := range 60 {
			for range r.IntN(3) {
				next++
				known[next] = randomCgroup(r, next)
			}
			s := randomNames(r)
			for id := range next {
				if c, ok := known[id+1]; ok {
					s.Cgroups = append(s.Cgroups, c)
				}
			}
			wasClaimed := map[model.CgroupID]Owner{}
			for id, c := range known {
				if c.Claimed && table.cgroups[id] != nil {
					wasClaimed[id] = table.OwnerOf(id)
				}
			}
			merges := table.Resolve(s, nil)
			for id, o := range wasClaimed {
				if table.OwnerOf(id) != o {
					t.Fatalf("seed %d, round %d: the claimed cgroup %d followed %+v to %+v", seed, round, id, o, table.OwnerOf(id))
				}
			}
			for _, m := range merges {
				if table.owners[m.From] != nil || m.From == Unattributed || m.To == Unattributed {
					t.Fatalf("seed %d, round %d: merge %v", seed, round, m)
				}
			}
			var fresh Table
			fresh.Resolve(s, nil)
			checkTable(t, &table, &fresh, known)
			if e := table.Expire(nil); slices.ContainsFunc(e, table.HasCgroup) {
				t.Fatalf("seed %d, round %d: %v expired", seed, round, e)
			}
			var gone []model.CgroupID
			for id := range known {
				if r.IntN(12) == 0 {
					gone = append(gone, id)
					delete(known, id)
				}
			}
			table.Forget(gone)
		}
		if n := len(table.owners); n > 12*(3+maxMissedRefreshes)*3 {
			t.Fatalf("seed %d: %d owners", seed, n)
		}
	}
}

func checkTable(t *testing.T, table, fresh *Table, known map[model.CgroupID]model.Cgroup) {
	t.Helper()
	labels, cgroups := map[Owner]OwnerID{}, map[OwnerID]int{}
	for i, o := range table.owners {
		id := OwnerID(i)
		if o == nil || id == Unattributed {
			continue
		}
		if other, twice := labels[o.labels]; twice || table.byLabels[o.labels] != id {
			t.Fatalf("owners %d and %d are both %+v", id, other, o.labels)
		}
		labels[o.labels] = id
		for _, a := range o.anchors {
			if table.byAnchor[a] != id || o.claimed {
				t.Fatalf("anchor %v of owner %d", a, id)
			}
		}
	}
	for id := range known {
		cgroups[table.Of(id)]++
		// A new table that returns the same name returns the same info.
		if got, want := table.OwnerOf(id), fresh.OwnerOf(id); got == want {
			a, b := table.Info(table.Of(id)), fresh.Info(fresh.Of(id))
			a.Labels, b.Labels = nil, nil
			if sameMembers(table, fresh, known, id) && !cmp.Equal(a, b) {
				t.Fatalf("the info of %+v is %+v, want %+v", got, a, b)
			}
		}
	}
	for id, n := range cgroups {
		if id == Unattributed || table.owners[id].cgroups != n {
			t.Fatalf("owner %d has %d cgroups, counted %v", id, n, table.owners[id])
		}
	}
}

// sameMembers reports whether both tables assign the same cgroups with the same names to an
// owner. A name that is no longer listed applies in only one of them.
func sameMembers(a, b *Table, known map[model.CgroupID]model.Cgroup, id model.CgroupID) bool {
	for other := range known {
		member := a.Of(other) == a.Of(id)
		if member != (b.Of(other) == b.Of(id)) || member && a.cgroups[other].name != b.cgroups[other].name {
			return false
		}
	}
	return true
}

func randomCgroup(r *rand.Rand, id model.CgroupID) model.Cgroup {
	n := r.IntN(4)
	container, uid := fmt.Sprint("c", n), fmt.Sprint("u", n/2)
	c := model.Cgroup{ID: id, Path: model.CgroupPath(fmt.Sprint("/p", n, "/", id))}
	switch r.IntN(6) {
	case 0:
		c.Workload, c.ContainerID, c.PodUID = "pod:"+uid+"/"+container, container, uid
	case 1:
		c.Workload, c.PodUID = "pod:"+uid, uid
	case 2:
		c.Workload, c.ContainerID = "docker:"+container, container
	case 3:
		c.Workload, c.ContainerID, c.Claimed = "docker:"+container, container, true
	case 4:
		c.Workload = fmt.Sprint("cgroup:/p", n)
	default:
		c.Workload = fmt.Sprint("unit:", n)
	}
	return c
}

func randomNames(r *rand.Rand) *model.Snapshot {
	s := &model.Snapshot{}
	for n := range 4 {
		container, uid := fmt.Sprint("c", n), fmt.Sprint("u", n/2)
		switch r.IntN(5) {
		case 0:
			s.Containers = append(s.Containers, named(container, fmt.Sprint("name", r.IntN(3))))
		case 1:
			s.Containers = append(s.Containers, model.Container{
				ID: container, Namespace: "ns", Pod: "p" + uid, PodUID: uid, Name: container, Sandbox: r.IntN(3) == 0,
			})
		case 2:
			c := named(container, fmt.Sprint("name", r.IntN(3)))
			c.Cgroup = fmt.Sprint("/p", n)
			s.Containers = append(s.Containers, c)
		}
		if n%2 == 0 && r.IntN(2) == 0 {
			s.Pods = append(s.Pods, model.Pod{UID: uid, Namespace: "ns", Name: fmt.Sprint("p", r.IntN(2))})
		}
	}
	return s
}
