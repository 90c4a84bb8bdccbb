// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// starts runs refreshes, a second apart, and returns when shares began by workload and verb, 0 for an unknown time.
type starts struct {
	owners   identity.Table
	counters Counters
	now      int64
}

// rows are the values of one verb by cgroup.
type rows map[model.CgroupID]uint64

func (s *starts) refresh(entities map[model.CgroupID]identitytest.Entity, values rows, more ...model.Series[model.VerbKey, model.Histogram]) map[string]int64 {
	s.now++
	facts := *identitytest.Facts(entities)
	facts.Counted = time.Unix(s.now, 0)
	facts.Verbs = append([]model.Series[model.VerbKey, model.Histogram]{}, more...)
	for id, n := range values {
		facts.Verbs = append(facts.Verbs, verbs(id, "mlx5_0", "reg_mr", model.Histogram{Count: n}))
	}
	merges := s.owners.Resolve(&facts, facts.CgroupIDs())
	s.counters.Credit(&facts, &s.owners, merges)
	a := Attribute(&facts, &s.owners, &s.counters, func(*Attribution) { s.counters.Expire(s.owners.Expire(nil)) })
	got := map[string]int64{}
	for _, v := range a.Verbs {
		since := int64(0)
		if !v.Since.IsZero() {
			since = v.Since.Unix()
		}
		got[a.Owners[v.Owner].Workload+" "+v.Key.Verb] = since
	}
	return got
}

func (s *starts) forget(id model.CgroupID) {
	s.counters.Forget([]model.CgroupID{id})
	s.owners.Forget([]model.CgroupID{id})
}

func unit(name string) identitytest.Entity { return identitytest.Entity{Workload: "unit:" + name} }

func docker(called string) identitytest.Entity {
	e := identitytest.Entity{Workload: "docker:c1", ContainerID: "c1", Runtime: "docker", Called: called, Cgroup: "/docker/c1"}
	return e
}

func TestSince(t *testing.T) {
	type all = map[model.CgroupID]identitytest.Entity
	type want = map[string]int64
	check := func(t *testing.T, got, want want) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	t.Run("new owner, new counter", func(t *testing.T) {
		var s starts
		check(t, s.refresh(all{1: unit("a")}, rows{1: 5, 9: 1}), want{"unit:a reg_mr": 0, " reg_mr": 0})
		check(t, s.refresh(all{1: unit("a"), 2: unit("b")}, rows{1: 5, 2: 3, 9: 1}), want{"unit:a reg_mr": 0, " reg_mr": 0, "unit:b reg_mr": 1})
		later := verbs(1, "mlx5_0", "alloc_pd", model.Histogram{Count: 1})
		check(t, s.refresh(all{1: unit("a"), 2: unit("b")}, rows{1: 5, 2: 4, 9: 2}, later),
			want{"unit:a reg_mr": 0, " reg_mr": 0, "unit:b reg_mr": 1, "unit:a alloc_pd": 2})
	})
	t.Run("owner known later", func(t *testing.T) { // what its cgroup counted before stays unattributed
		var s starts
		s.refresh(nil, rows{})
		check(t, s.refresh(nil, rows{1: 5}), want{" reg_mr": 0})
		check(t, s.refresh(all{1: unit("a")}, rows{1: 8}), want{" reg_mr": 0, "unit:a reg_mr": 2})
	})
	t.Run("partial answer", func(t *testing.T) { // other rows may be missing, too: these are old or new
		var s starts
		s.refresh(all{1: unit("a")}, rows{1: 5})
		check(t, s.refresh(all{3: unit("c")}, rows{3: 5}), want{"unit:a reg_mr": 0, "unit:c reg_mr": 0})
		check(t, s.refresh(all{1: unit("a"), 3: unit("c"), 4: unit("d")}, rows{1: 5, 3: 5, 4: 5}),
			want{"unit:a reg_mr": 0, "unit:c reg_mr": 0, "unit:d reg_mr": 1})
		check(t, s.refresh(all{5: unit("e")}, rows{1: 5, 3: 5, 4: 5, 5: 1}),
			want{"unit:a reg_mr": 0, "unit:c reg_mr": 0, "unit:d reg_mr": 1, "unit:e reg_mr": 3})
	})
	t.Run("no answer", func(t *testing.T) {
		var s starts
		s.refresh(all{1: unit("a")}, rows{1: 5})
		s.now++ // the source is stuck in this refresh
		s.counters.Credit(&model.Snapshot{Counted: time.Unix(s.now, 0)}, &s.owners, nil)
		check(t, s.refresh(all{2: unit("b")}, rows{1: 5, 2: 5}), want{"unit:a reg_mr": 0, "unit:b reg_mr": 1})
	})
	t.Run("named later", func(t *testing.T) { // the series of docker:c1 had the values
		var s starts
		s.refresh(nil, rows{})
		check(t, s.refresh(all{1: docker("")}, rows{1: 5}), want{"docker:c1 reg_mr": 1})
		check(t, s.refresh(all{1: docker("web")}, rows{1: 5}, verbs(1, "mlx5_0", "alloc_pd", model.Histogram{Count: 1})),
			want{"docker:web reg_mr": 0, "docker:web alloc_pd": 2})
		check(t, s.refresh(all{1: docker("web")}, rows{1: 5}), want{"docker:web reg_mr": 0, "docker:web alloc_pd": 2})
	})
	t.Run("named at once", func(t *testing.T) {
		var s starts
		s.refresh(nil, rows{})
		check(t, s.refresh(all{1: docker("web")}, rows{1: 5}), want{"docker:web reg_mr": 1})
	})
	t.Run("merged", func(t *testing.T) { // all cgroups of unit:a belong to the container now
		var s starts
		s.refresh(nil, rows{})
		check(t, s.refresh(all{1: unit("a")}, rows{1: 5}), want{"unit:a reg_mr": 1})
		check(t, s.refresh(all{1: docker("web")}, rows{1: 6}), want{"docker:web reg_mr": 0})
	})
	t.Run("comes back", func(t *testing.T) { // with its values: it did not begin again
		var s starts
		s.refresh(nil, rows{})
		check(t, s.refresh(all{1: unit("a")}, rows{1: 5}), want{"unit:a reg_mr": 1})
		s.forget(1)
		check(t, s.refresh(nil, rows{}), want{})
		check(t, s.refresh(all{2: unit("a")}, rows{2: 1}), want{"unit:a reg_mr": 1})
	})
}

// TestSinceOfUsage: usage began with the cgroup or, for a container from before the sensor's start, when its runtime
// created it.
func TestSinceOfUsage(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	for name, c := range map[string]struct {
		usages  []model.Usage
		created time.Time
		before  identitytest.Entity // in the refresh before
		want    time.Time
	}{
		"new cgroup":                    {usages: []model.Usage{{Cgroup: 1, Since: at(7), Created: at(8)}}, want: at(7)},
		"old cgroup":                    {usages: []model.Usage{{Cgroup: 1, Created: at(8)}}},
		"two cgroups":                   {usages: []model.Usage{{Cgroup: 1, Since: at(7)}, {Cgroup: 2, Since: at(5)}}, want: at(5)},
		"two cgroups, one old":          {usages: []model.Usage{{Cgroup: 1, Since: at(7)}, {Cgroup: 2}}},
		"container of before":           {usages: []model.Usage{{Cgroup: 1, Created: at(8)}}, created: at(6), want: at(6)},
		"container in an older cgroup":  {usages: []model.Usage{{Cgroup: 1, Created: at(5)}}, created: at(6)},
		"restarted: another cgroup":     {usages: []model.Usage{{Cgroup: 1, Since: at(7), Created: at(8)}}, created: at(6), want: at(7)},
		"it was another owner's cgroup": {usages: []model.Usage{{Cgroup: 1, Since: at(7), Created: at(8)}}, before: unit("a")},
	} {
		t.Run(name, func(t *testing.T) {
			var owners identity.Table
			if c.before.Workload != "" {
				s := identitytest.Facts(map[model.CgroupID]identitytest.Entity{1: c.before})
				owners.Resolve(s, s.CgroupIDs())
			}
			s := identitytest.Facts(map[model.CgroupID]identitytest.Entity{1: docker("web"), 2: docker("web")})
			s.Usages = c.usages
			for i := range s.Containers {
				s.Containers[i].Created = c.created
			}
			var counters Counters
			counters.Credit(s, &owners, owners.Resolve(s, s.CgroupIDs()))
			a := Attribute(s, &owners, &counters, func(*Attribution) {})
			if len(a.Usages) != 1 || !a.Usages[0].Since.Equal(c.want) {
				t.Errorf("%d shares, began at %v, want %v", len(a.Usages), a.Usages[0].Since, c.want)
			}
		})
	}
}
