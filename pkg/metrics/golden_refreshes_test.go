// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// TestGoldenRefreshes keeps the exposition of three refreshes: before the second a pod gets its name, before the third
// a job's step is forgotten and an HCA is removed. The order of lines does not matter.
func TestGoldenRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sources := node()
		hcas := sources[0].Source.(*fake)
		probe := &fakeForgetter{fake: fake{name: "probe", facts: probeFacts()}, onForget: func([]model.CgroupID) {}}
		namer := sources[2].Source.(*fakeNames)
		sources[1].Source = probe
		entities := nodeNames()
		named := entities[101]
		entities[101] = identitytest.Entity{
			Workload: "pod:11111111-2222/0a1b", ContainerID: "0a1b", PodUID: named.PodUID, Runtime: named.Runtime, Cgroup: named.Cgroup,
		}
		table := names(entities).resolve
		var expired []model.CgroupID
		namer.resolve = func(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
			s, err := table(ctx, ids)
			s.Expired = expired
			return s, err
		}
		c := newCollector(setup{Sources: sources, Node: "gpu01", Version: "1.0", Revision: "abc"})
		defer c.Close() //nolint:errcheck // nothing to lose
		refresh := func(name string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			lines := strings.SplitAfter(library.Encode(t, mustGather(t, c), expfmt.TypeTextPlain), "\n")
			slices.Sort(lines)
			compare(t, filepath.Join("testdata", "refreshes", name+".prom"), strings.Join(lines, ""))
		}

		refresh("1")

		entities[101] = named
		probe.facts = grown(probe.facts, 10)
		expired = []model.CgroupID{102}
		for i := range probe.facts.Objects { // cgroups with objects are not forgotten
			if o := &probe.facts.Objects[i]; o.Cgroup == 102 {
				o.Current = 0
			}
		}
		refresh("2")

		expired = nil
		hcas.facts = nodeHCAs()
		hcas.facts.HCAs = hcas.facts.HCAs[:1]
		hcas.facts.Resources = hcas.facts.Resources[:5]
		probe.facts = without(grown(probe.facts, 100), 102)
		refresh("3")
	})
}

func grown(s model.Snapshot, n uint64) model.Snapshot {
	s.Objects, s.Created = slices.Clone(s.Objects), slices.Clone(s.Created)
	s.Verbs, s.VerbErrors = slices.Clone(s.Verbs), slices.Clone(s.VerbErrors)
	for i := range s.Created {
		s.Created[i].Value += model.Count(n)
	}
	for i := range s.Verbs {
		h := &s.Verbs[i].Value
		h.Count, h.Sum, h.Buckets[8] = h.Count+n, h.Sum+n*1e9/1024, h.Buckets[8]+n
	}
	for i := range s.VerbErrors {
		s.VerbErrors[i].Value += model.Count(n)
	}
	return s
}

// without returns the facts without a cgroup.
func without(s model.Snapshot, id uint64) model.Snapshot {
	s.Objects = slices.DeleteFunc(slices.Clone(s.Objects), func(f model.Objects) bool { return f.Cgroup == model.CgroupID(id) })
	s.Created = slices.DeleteFunc(slices.Clone(s.Created), func(f model.Series[model.ObjectKey, model.Count]) bool {
		return f.Cgroup == model.CgroupID(id)
	})
	s.Verbs = slices.DeleteFunc(slices.Clone(s.Verbs), func(f model.Series[model.VerbKey, model.Histogram]) bool {
		return f.Cgroup == model.CgroupID(id)
	})
	return s
}
