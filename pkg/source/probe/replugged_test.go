// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestReplugged: an HCA that was removed and added again has a new index, a new uverbs device, and the same name. New
// counts are added to the counts before, and other HCAs keep their names. The devices are FAKES.
func TestReplugged(t *testing.T) {
	root(t)
	const cgroup, before, after = 42, 4, 5 // the indexes of rxe1
	number := func(minor uint32) uint32 { return 231<<20 | minor }
	sysfs := fakeSysfs(t, "231:192", "rxe0")
	plug := func(uverbs, dev string) {
		dir := filepath.Join(sysfs, "class/infiniband_verbs", uverbs)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"dev": dev, "ibdev": "rxe1"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := unhooked(t)
	source := &Source{opts: Options{Sysfs: sysfs, Logger: zap.NewNop(), Paths: &PathLog{}}, sensor: s, forget: map[model.CgroupID]bool{}}
	index := func(names map[uint32]string) {
		source.rename(true)
		s.reindex(t.Context(), Options{DeviceNames: func(context.Context) (map[uint32]string, error) { return names, nil }})
	}
	count := func(rdev, device uint32, calls uint64, live int64) {
		t.Helper()
		stat := gen.VerbsVerbStat{}
		stat.Buckets[0] = calls
		verb := gen.VerbsVerbKey{Cgroup: cgroup, Rdev: rdev, Verb: uint32(gen.VerbsVerbVERB_CREATE_QP)}
		if err := s.verbs.Coll.Maps[gen.VerbsMapVerbs].Put(verb, stat); err != nil {
			t.Fatal(err)
		}
		failed := gen.VerbsErrorKey{Cgroup: cgroup, Rdev: rdev, Verb: uint16(gen.VerbsVerbVERB_CREATE_QP), Err: 12}
		if err := s.verbs.Coll.Maps[gen.VerbsMapVerbErrors].Put(failed, gen.VerbsErrorStat{Count: calls}); err != nil {
			t.Fatal(err)
		}
		holding := gen.ObjectsHoldingKey{Cgroup: cgroup, Device: device, Type: uint16(gen.ObjectsObjectTypeTYPE_QP)}
		if err := s.objects.Coll.Maps[gen.ObjectsMapHoldings].Put(holding, gen.ObjectsHolding{Current: live, Created: calls}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(when string, made, held map[string]uint64) {
		t.Helper()
		for range 2 { // a read changes nothing
			snap, err := source.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			verbs, errs, created, current := map[string]uint64{}, map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
			for _, v := range snap.Verbs {
				verbs[v.Key.Device] += v.Value.Count
			}
			for _, v := range snap.VerbErrors {
				errs[v.Key.Device] += uint64(v.Value)
			}
			for device, n := range createdBy(t, &snap) {
				created[device] = uint64(n)
			}
			for _, o := range snap.Objects {
				current[o.Device] += o.Current
			}
			for what, got := range map[string]map[string]uint64{"verbs": verbs, "errors": errs, "created": created} {
				if !maps.Equal(got, made) {
					t.Errorf("%s: %s %v, want %v", when, what, got, made)
				}
			}
			if !maps.Equal(current, held) {
				t.Errorf("%s: held %v, want %v", when, current, held)
			}
		}
	}
	plug("uverbs1", "231:193")
	index(map[uint32]string{3: "rxe0", before: "rxe1"})
	count(number(192), 3, 1, 1)
	count(number(193), before, 2, 2)
	read("before", map[string]uint64{"rxe0": 1, "rxe1": 2}, map[string]uint64{"rxe0": 1, "rxe1": 2})

	if err := os.RemoveAll(filepath.Join(sysfs, "class/infiniband_verbs/uverbs1")); err != nil {
		t.Fatal(err)
	}
	index(map[uint32]string{3: "rxe0"})
	count(number(193), before, 2, 0)
	read("removed", map[string]uint64{"rxe0": 1, "rxe1": 2}, map[string]uint64{"rxe0": 1, "rxe1": 0})

	plug("uverbs2", "231:194")
	index(map[uint32]string{3: "rxe0", after: "rxe1"})
	count(number(194), after, 2, 1)
	read("added again", map[string]uint64{"rxe0": 1, "rxe1": 4}, map[string]uint64{"rxe0": 1, "rxe1": 1})
}
