// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"
	"testing"
)

func sortedRows[V any, P Cumulative[V]](t *Totals[VerbKey, V, P]) []Series[VerbKey, V] {
	rows := t.AppendTo(nil)
	slices.SortFunc(rows, func(a, b Series[VerbKey, V]) int {
		return cmp.Or(cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Key.Device, b.Key.Device))
	})
	return rows
}

// TestTotals checks that values of a cgroup and key add up, that another cgroup or key is another row, and that
// forgotten cgroups have no rows.
func TestTotals(t *testing.T) {
	type row = Series[VerbKey, Histogram]
	var totals Totals[VerbKey, Histogram, *Histogram]
	if rows := totals.AppendTo(nil); rows != nil {
		t.Errorf("of nothing: %+v", rows)
	}
	totals.Forget(map[CgroupID]bool{1: true})

	a, b := VerbKey{Device: "a", Verb: "reg_mr"}, VerbKey{Device: "b", Verb: "reg_mr"}
	value := Histogram{Count: 2, Sum: 30, Buckets: [HistogramBuckets]uint64{3: 2}}
	for _, add := range []struct {
		id  CgroupID
		key VerbKey
	}{{1, a}, {1, b}, {2, a}, {1, a}, {0, a}, {1, a}} {
		if !totals.Add(add.id, add.key, value) {
			t.Errorf("no room for %+v, without a limit", add)
		}
	}
	three := Histogram{Count: 6, Sum: 90, Buckets: [HistogramBuckets]uint64{3: 6}}
	want := []row{{Cgroup: 0, Key: a, Value: value}, {Cgroup: 1, Key: a, Value: three}, {Cgroup: 1, Key: b, Value: value}, {Cgroup: 2, Key: a, Value: value}}
	rows := sortedRows(&totals)
	if !slices.Equal(rows, want) {
		t.Errorf("%+v, want %+v", rows, want)
	}
	if value.Count != 2 {
		t.Errorf("the value that was added is %+v now", value)
	}

	// The result is a copy, and existing rows stay first.
	totals.Add(1, a, value)
	if !slices.Equal(rows, want) {
		t.Errorf("rows changed after they were returned: %+v", rows)
	}
	first := row{Cgroup: 7, Key: b, Resting: true}
	if got := totals.AppendTo([]row{first}); len(got) != 5 || got[0] != first {
		t.Errorf("appended: %+v", got)
	}

	totals.Forget(map[CgroupID]bool{1: true, 2: false, 9: true})
	if got := sortedRows(&totals); !slices.Equal(got, []row{want[0], want[3]}) {
		t.Errorf("left after forgetting: %+v", got)
	}
	totals.Add(1, a, value)
	if got := sortedRows(&totals); !slices.Equal(got, []row{want[0], {Cgroup: 1, Key: a, Value: value}, want[3]}) {
		t.Errorf("counted after it was forgotten: %+v", got)
	}
}

func TestTotalsLimit(t *testing.T) {
	type row = Series[VerbKey, Count]
	totals := Totals[VerbKey, Count, *Count]{Limit: 2}
	a, b := VerbKey{Device: "a"}, VerbKey{Device: "b"}
	want := func(name string, rows ...row) {
		t.Helper()
		if got := sortedRows(&totals); !slices.Equal(got, rows) {
			t.Errorf("%s: %+v, want %+v", name, got, rows)
		}
	}
	if !totals.Add(1, a, 1) || !totals.Add(2, a, 2) {
		t.Error("no room for two rows")
	}
	if totals.Add(1, b, 4) || totals.Add(3, a, 8) {
		t.Error("room for a third row")
	}
	want("full", row{Cgroup: 1, Key: a, Value: 1}, row{Cgroup: 2, Key: a, Value: 2})
	if !totals.Add(2, a, 16) {
		t.Error("an existing row does not grow")
	}
	want("grown", row{Cgroup: 1, Key: a, Value: 1}, row{Cgroup: 2, Key: a, Value: 18})
	totals.Forget(map[CgroupID]bool{1: true})
	if !totals.Add(3, a, 32) || totals.Add(4, a, 64) {
		t.Error("a row that is forgotten makes room for one")
	}
	want("one for another", row{Cgroup: 2, Key: a, Value: 18}, row{Cgroup: 3, Key: a, Value: 32})
}
