// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	pdCode  = uint8(gen.ObjectsObjectTypeTYPE_PD)
	qpCode  = uint8(gen.ObjectsObjectTypeTYPE_QP)
	mrCode  = uint8(gen.ObjectsObjectTypeTYPE_MR)
	ctxCode = uint8(gen.ObjectsObjectTypeTYPE_CTX)
)

func (s *sensor) count(t *testing.T, address uint64, o gen.ObjectsObject) {
	t.Helper()
	if err := s.objects.Coll.Maps[gen.ObjectsMapObjects].Put(address, o); err != nil {
		t.Fatal(err)
	}
	key := holdingKeyOf(o)
	var h gen.ObjectsHolding
	_ = s.objects.Coll.Maps[gen.ObjectsMapHoldings].Lookup(key, &h)
	if h.Created++; o.Hidden == 0 {
		h.Current, h.Bytes = h.Current+1, h.Bytes+int64(o.Bytes)
	}
	if err := s.objects.Coll.Maps[gen.ObjectsMapHoldings].Put(key, h); err != nil {
		t.Fatal(err)
	}
	live := s.objects.Coll.Variables[gen.ObjectsVarLiveObjects]
	if err := live.Set(variable(live) + 1); err != nil {
		t.Fatal(err)
	}
}

// held returns the number of objects of each type and device index, the registered bytes of device 3, and the entries
// of the map objects.
func (s *sensor) held(t *testing.T) (objects map[model.ObjectTable]uint64, bytes, entries uint64) {
	t.Helper()
	var snap model.Snapshot
	if err := s.readHoldings(&snap, nil); err != nil {
		t.Fatal(err)
	}
	s.self(&snap, &losses{})
	index := map[string]uint32{"mlx5_0": 3, "mlx5_1": 4}
	objects = map[model.ObjectTable]uint64{}
	for _, o := range snap.Objects {
		if o.Current > 0 {
			objects[model.ObjectTable{Index: index[o.Device], Type: o.Type}] += o.Current
		}
	}
	for _, r := range snap.Registered {
		if r.Device == "mlx5_0" {
			bytes += r.Bytes
		}
	}
	for _, m := range snap.Maps {
		if m.Name == gen.ObjectsMapObjects {
			entries = m.Entries
		}
	}
	return objects, bytes, entries
}

// TestReconcile: objects missing from two dumps ended while a program was skipped. Objects that a dump cannot list
// stay. The netlink is a FAKE; the maps are real.
func TestReconcile(t *testing.T) {
	root(t)
	s := unhooked(t)
	s.indexes = map[uint32]string{3: "mlx5_0", 4: "mlx5_1"}
	for i, o := range []gen.ObjectsObject{
		{Device: 3, Type: qpCode, Id: 11, Numbered: 1},
		{Device: 3, Type: qpCode, Id: 12, Numbered: 1}, // ends unseen
		{Device: 3, Type: qpCode, Id: 13, Numbered: 1}, // changed during the first dump: rdma_restrack_sync
		{Device: 3, Type: pdCode},                      // its id was missed
		{Device: 3, Type: qpCode, Id: 14, Numbered: 1, Hidden: 1},
		{Device: 3, Type: mrCode, Id: 1, Numbered: 1, Bytes: 4096},
		{Device: 3, Type: mrCode, Id: 0, Numbered: 1, Bytes: 8192}, // ends unseen
		{Device: 3, Type: ctxCode, Id: 5, Numbered: 1},             // counted by the kernel, not listed: before 5.15
		{Device: 4, Type: qpCode, Id: 12, Numbered: 1},             // of a device that is not listed
	} {
		o.Cgroup = 42
		s.count(t, uint64(0x1000+i), o)
	}
	qp := func(id uint32) model.Object { return model.Object{Device: "mlx5_0", Index: 3, Type: model.QP, ID: id} }
	mr := func(id uint32) model.Object {
		return model.Object{Device: "mlx5_0", Index: 3, Type: model.MR, ID: id, Bytes: 1 << 20}
	}
	unlisted := errors.New("mlx5_0 does not answer")
	var fails error
	dumps := [][]model.Object{{qp(11), mr(1), mr(3)}, {qp(11), qp(13), mr(1), mr(3)}}
	listed := 0
	opts := Options{
		Logger: zap.NewNop(),
		Objects: func(context.Context, ...model.ObjectType) ([]model.Object, error) {
			listed++
			return dumps[(listed-1)%2], fails
		},
		ObjectCounts: func(context.Context) (map[model.ObjectTable]uint64, error) {
			return map[model.ObjectTable]uint64{
				{Index: 3, Type: model.QP}: 5, {Index: 3, Type: model.MR}: 2, {Index: 3, Type: model.Context}: 1, {Index: 3, Type: model.PD}: 1,
			}, nil
		},
	}
	check := func(what string, want map[model.ObjectTable]uint64, bytes, entries uint64, repaired repairs) {
		t.Helper()
		held, n, left := s.held(t)
		if !maps.Equal(held, want) || n != bytes || left != entries {
			t.Errorf("%s: %v objects with %d bytes, %d entries; want %v, %d, %d", what, held, n, left, want, bytes, entries)
		}
		if got := s.repairs(); got != repaired {
			t.Errorf("%s: repaired %+v, want %+v", what, got, repaired)
		}
	}
	s.adoptions[model.QP] = adoption{at: time.Now()} // the objects that existed before were adopted
	type of = map[model.ObjectTable]uint64
	before := of{{Index: 3, Type: model.PD}: 1, {Index: 3, Type: model.QP}: 3, {Index: 4, Type: model.QP}: 1, {Index: 3, Type: model.MR}: 2, {Index: 3, Type: model.Context}: 1}
	fails = unlisted
	dumps = [][]model.Object{{}, {}}
	if err := s.adopt(t.Context(), opts); !errors.Is(err, unlisted) {
		t.Errorf("error %v", err)
	}
	check("a dump fails", before, 4096+8192, 9, repairs{})

	fails = nil
	dumps = [][]model.Object{{qp(11), mr(1), mr(3)}, {qp(11), qp(13), mr(1), mr(3)}}
	if err := s.adopt(t.Context(), opts); err != nil {
		t.Error(err)
	}
	after := of{{Index: 3, Type: model.PD}: 1, {Index: 3, Type: model.QP}: 2, {Index: 4, Type: model.QP}: 1, {Index: 3, Type: model.MR}: 2, {Index: 3, Type: model.Context}: 1}
	check("reconciled", after, 4096+1<<20, 7, repairs{added: 1, removed: 2})

	// The adopted region ends unseen, too.
	dumps = [][]model.Object{{qp(11), qp(13), mr(1)}, {qp(11), qp(13), mr(1)}}
	if err := s.adopt(t.Context(), opts); err != nil {
		t.Error(err)
	}
	after[model.ObjectTable{Index: 3, Type: model.MR}] = 1
	check("an adopted object", after, 4096, 7, repairs{added: 1, removed: 3})

	listed = 0
	for i := range 3 {
		if err := s.adopt(t.Context(), opts); err != nil || listed != i+1 {
			t.Errorf("nothing to repair: %d dumps, %v", listed, err)
		}
	}
}

// TestCompare: a difference between the kernel's and the programs' numbers that lasts for two refreshes is reconciled.
func TestCompare(t *testing.T) {
	root(t)
	s := unhooked(t)
	s.cmIDs = true
	qps := model.ObjectTable{Index: 3, Type: model.QP}
	kernel, cmIDs, regions := uint64(1), uint64(0), uint64(0) // a queue pair of the kernel
	opts := Options{
		Logger: zap.NewNop(),
		ObjectCounts: func(context.Context) (map[model.ObjectTable]uint64, error) {
			return map[model.ObjectTable]uint64{qps: kernel, {Index: 3, Type: model.CMID}: cmIDs, {Index: 3, Type: model.MR}: regions}, nil
		},
	}
	s.compare(t.Context(), opts)
	s.compare(t.Context(), opts)
	next := func(what string, want ...model.ObjectType) {
		t.Helper()
		s.compare(t.Context(), opts)
		differ := slices.DeleteFunc(slices.Clone(adoptedTypes), func(t model.ObjectType) bool { return !s.adoptions[t].differs })
		if !slices.Equal(differ, want) {
			t.Errorf("%s: %v differ, want %v", what, differ, want)
		}
	}
	kernel++
	s.count(t, 0x1000, gen.ObjectsObject{Cgroup: 42, Device: 3, Type: qpCode, Id: 11})
	next("counted")
	if _, err := s.record(gen.ObjectsAdoptedKey{Device: 3, Type: uint32(qpCode), Id: 12},
		gen.ObjectsObject{Device: 3, Type: qpCode, Id: 12}, "mlx5_0"); err != nil {
		t.Fatal(err)
	}
	kernel++
	next("adopted")
	kernel++
	next("different for one refresh")
	kernel--
	next("equal again")
	kernel++
	next("an object was missed")
	kernel++
	next("another difference")
	// Of other types, equally many may have begun and ended unseen.
	next("it lasts", adoptedTypes...)
	if due := s.dueTypes(time.Now()); !slices.Equal(due, adoptedTypes) {
		t.Errorf("%v are reconciled", due)
	}
	// A difference that the reconciliation does not explain consists of the kernel's own objects.
	opts.Objects = func(context.Context, ...model.ObjectType) ([]model.Object, error) { return nil, nil }
	_ = s.adopt(t.Context(), opts)
	for range 3 {
		next("reconciled")
	}
	cmIDs++
	next("a CM id was missed")
	next("it lasts", adoptedTypes...)
	// Kernels without types of modules.
	s.cmIDs = false
	_ = s.adopt(t.Context(), opts)
	for range 3 {
		next("CM ids are not counted")
	}
	regions++
	s.loseObject(t, mrCode)
	next("the map was full")
	next("it lasts", model.MR)
}

func TestSkippedPrograms(t *testing.T) {
	root(t)
	s := unhooked(t)
	if due := s.dueTypes(time.Now()); len(due) > 0 {
		t.Fatalf("%v are due without a loss", due)
	}
	s.skipped = 1
	if due := s.dueTypes(time.Now()); !slices.Equal(due, adoptedTypes) {
		t.Errorf("%v are due after a skipped program", due)
	}
	var snap model.Snapshot
	repairs{added: 2, removed: 1}.fill(&snap)
	if !slices.Equal(snap.Repairs, []model.Repair{{Change: "added", Count: 2}, {Change: "removed", Count: 1}}) {
		t.Errorf("%+v", snap.Repairs)
	}
}
