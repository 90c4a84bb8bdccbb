// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"maps"

	"github.com/accelscope/accelscope/pkg/model"
)

// unowned keeps the totals of the zero entity from falling. They are the sum
// over the cgroups that have no name, and one of those may get its name late
// or be forgotten: what it had counted for nobody until then stays nobody's.
type unowned struct {
	objects ledger[uint64]
	verbs   ledger[model.Histogram]
	errors  ledger[uint64]
	gone    map[uint64]bool // forgotten, and possibly still in the figures
}

// ledger is the totals of each cgroup that counts for nobody, and the sum of
// those that no longer do.
type ledger[V any] struct {
	live map[uint64]map[figure]V
	left map[figure]V
}

// figure is one total of a cgroup.
type figure struct{ device, what, errno string }

// update takes the present totals; add sums two.
func (l *ledger[V]) update(now map[uint64]map[figure]V, left func(cgroup uint64) bool, add func(a, b V) V) {
	if l.live == nil {
		l.live, l.left = map[uint64]map[figure]V{}, map[figure]V{}
	}
	for cgroup, totals := range l.live {
		if now[cgroup] == nil && left(cgroup) {
			for f, v := range totals {
				l.left[f] = add(l.left[f], v)
			}
			delete(l.live, cgroup)
		}
	}
	for cgroup, totals := range now {
		l.live[cgroup] = totals
	}
}

// put books v on cgroup in totals.
func put[V any](totals map[uint64]map[figure]V, cgroup uint64, f figure, v V) {
	if totals[cgroup] == nil {
		totals[cgroup] = map[figure]V{}
	}
	totals[cgroup][f] = v
}

// add adds the totals of those that left to facts, booked on cgroup 0, which
// does not exist.
func (u *unowned) add(facts *model.Snapshot) {
	nobody := func(cgroup uint64) bool { return facts.Entities[cgroup].Workload == "" }
	left := func(cgroup uint64) bool { return !nobody(cgroup) || u.gone[cgroup] }
	sum := func(a, b uint64) uint64 { return a + b }

	objects := map[uint64]map[figure]uint64{}
	for _, f := range facts.Objects {
		if nobody(f.Cgroup) {
			put(objects, f.Cgroup, figure{device: f.Device, what: string(f.Type)}, f.Created)
		}
	}
	verbs := map[uint64]map[figure]model.Histogram{}
	for _, f := range facts.Verbs {
		if nobody(f.Cgroup) {
			put(verbs, f.Cgroup, figure{device: f.Device, what: f.Verb}, f.Duration)
		}
	}
	failed := map[uint64]map[figure]uint64{}
	for _, f := range facts.VerbErrors {
		if nobody(f.Cgroup) {
			put(failed, f.Cgroup, figure{device: f.Device, what: f.Verb, errno: f.Errno}, f.Count)
		}
	}
	u.objects.update(objects, left, sum)
	u.verbs.update(verbs, left, func(a, b model.Histogram) model.Histogram { a.Add(b); return a })
	u.errors.update(failed, left, sum)
	maps.DeleteFunc(u.gone, func(cgroup uint64, _ bool) bool {
		return objects[cgroup] == nil && verbs[cgroup] == nil && failed[cgroup] == nil
	})

	var more model.Snapshot
	for f, n := range u.objects.left {
		more.Objects = append(more.Objects, model.Objects{Device: f.device, Type: model.ObjectType(f.what), Created: n})
	}
	for f, h := range u.verbs.left {
		more.Verbs = append(more.Verbs, model.Verb{Device: f.device, Verb: f.what, Duration: h})
	}
	for f, n := range u.errors.left {
		more.VerbErrors = append(more.VerbErrors,
			model.VerbError{Device: f.device, Verb: f.what, Errno: f.errno, Count: n})
	}
	if facts.Objects != nil {
		facts.Merge(more)
	}
}

// forget notes that the sources were told to drop these cgroups.
func (u *unowned) forget(cgroups []uint64) {
	if u.gone == nil {
		u.gone = map[uint64]bool{}
	}
	for _, id := range cgroups {
		u.gone[id] = true
	}
}
