// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// loseObject counts an object that did not fit into the map, as remember() in bpf/objects.bpf.c does.
func (s *sensor) loseObject(t testing.TB, code uint8) {
	t.Helper()
	var full [gen.ObjectsObjectTypeTYPES]uint64
	v := s.objects.Coll.Variables[gen.ObjectsVarObjectsFull]
	if err := v.Get(&full); err != nil {
		t.Fatal(err)
	}
	full[code]++
	if err := v.Set(full); err != nil {
		t.Fatal(err)
	}
}

// TestFullMap: memory regions that do not fit into the map come and go for four hours. Only memory regions are listed
// again, less and less often although each dump finds some. The netlink is a FAKE.
func TestFullMap(t *testing.T) {
	root(t)
	s := unhooked(t)
	synctest.Test(t, func(t *testing.T) {
		const regions = 10
		last := uint32(1000)
		dumps := map[model.ObjectType][]time.Duration{}
		began := time.Now()
		opts := Options{
			Logger: zap.NewNop(),
			Objects: func(_ context.Context, types ...model.ObjectType) ([]model.Object, error) {
				for _, listed := range types {
					dumps[listed] = append(dumps[listed], time.Since(began))
				}
				var found []model.Object
				for i := range uint32(regions) {
					found = append(found, model.Object{Device: "mlx5_0", Index: 3, Type: model.MR, ID: last - i})
				}
				return found, nil
			},
		}
		if err := s.adopt(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
		clear(dumps)
		for range 4 * time.Hour / (15 * time.Second) {
			time.Sleep(15 * time.Second)
			last++
			s.loseObject(t, mrCode)
			_ = s.objects.Coll.Maps[gen.ObjectsMapAdopted].Delete(gen.ObjectsAdoptedKey{Device: 3, Type: uint32(mrCode), Id: last - regions})
			if due := s.dueTypes(time.Now()); len(due) > 0 {
				if err := s.adopt(t.Context(), opts, due...); err != nil {
					t.Fatal(err)
				}
			}
		}
		// Dumps after 1, 2, 4, 8, 16, 32, 60 and 60 minutes, each followed by a second dump of the changed types.
		if n := len(dumps[model.MR]); n != 16 || len(dumps) != 1 {
			t.Errorf("%d dumps in four hours: %v", n, dumps)
		}
		if s.repairs().added < 16*regions/4 {
			t.Errorf("%+v", s.repairs())
		}

		// There is room again for two hours, then one more is lost.
		time.Sleep(2 * time.Hour)
		for range 2 {
			last += regions
			s.loseObject(t, mrCode)
			if due := s.dueTypes(time.Now()); !slices.Equal(due, []model.ObjectType{model.MR}) {
				t.Errorf("%v are listed after a new loss", due)
			}
			if err := s.adopt(t.Context(), opts, model.MR); err != nil {
				t.Fatal(err)
			}
			time.Sleep(reconcileInterval)
		}
	})
}

// TestAdoptionInterval: the interval between adoptions doubles after adoptions that fail, change nothing, or follow as
// early as allowed.
func TestAdoptionInterval(t *testing.T) {
	const minute = time.Minute
	at := time.Unix(1000, 0)
	a := adoption{}.next(at, 0, false, false)
	for i, c := range []struct {
		after           time.Duration
		changed, failed bool
		want            time.Duration
	}{
		{minute, true, false, 2 * minute}, // as early as allowed
		{3 * minute, true, false, 4 * minute},
		{8 * minute, true, false, minute}, // after a rest
		{24 * time.Hour, true, false, minute},
		{24 * time.Hour, false, false, 2 * minute}, // without a change
		{24 * time.Hour, false, false, 4 * minute},
		{24 * time.Hour, true, true, 8 * minute},
		{24 * time.Hour, true, false, minute},
	} {
		at = at.Add(c.after)
		if a = a.next(at, 0, c.changed, c.failed); a.interval != c.want {
			t.Errorf("step %d: %v, want %v", i, a.interval, c.want)
		}
		if a.due(at.Add(a.interval-1), 1) || !a.due(at.Add(a.interval), 1) || a.due(at.Add(a.interval), 0) != c.failed {
			t.Errorf("step %d: %+v", i, a)
		}
	}
}
