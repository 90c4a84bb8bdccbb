// SPDX-License-Identifier: Apache-2.0

package model

import (
	"reflect"
	"slices"
	"testing"
)

// TestListsAreComplete checks that every list of facts is merged, and that CgroupIDs includes the cgroups of every
// list.
func TestListsAreComplete(t *testing.T) {
	var facts, merged Snapshot
	all := reflect.ValueOf(&facts).Elem()
	var want []CgroupID
	names := map[CgroupID]string{}
	for i := range all.NumField() {
		list := all.Field(i)
		if list.Kind() != reflect.Slice {
			continue
		}
		fact := reflect.New(list.Type().Elem()).Elem()
		if fact.Kind() == reflect.Struct {
			if cgroup := fact.FieldByName("Cgroup"); cgroup.IsValid() && cgroup.Kind() == reflect.Uint64 {
				id := CgroupID(i + 1)
				cgroup.SetUint(uint64(id))
				want, names[id] = append(want, id), all.Type().Field(i).Name
			}
		}
		list.Set(reflect.Append(list, fact, fact))
	}
	got := facts.CgroupIDs()
	for _, id := range want {
		if !slices.Contains(got, id) {
			t.Errorf("the cgroups of %s are not named", names[id])
		}
	}
	if len(got) != len(want) || len(want) < 15 {
		t.Errorf("%d cgroups, want %d, each once", len(got), len(want))
	}
	merged.Merge(&facts)
	merged.Merge(&facts)
	for i := range all.NumField() {
		if list := reflect.ValueOf(&merged).Elem().Field(i); list.Kind() == reflect.Slice && list.Len() != 4 {
			t.Errorf("%s has %d facts, want 4", all.Type().Field(i).Name, list.Len())
		}
	}
	a, b := Snapshot{HCAs: make([]HCA, 1, 4)}, Snapshot{HCAs: []HCA{{Name: "b"}}}
	merged = Snapshot{}
	merged.Merge(&a)
	if merged.Merge(&b); a.HCAs[:2][1].Name != "" || merged.HCAs[1].Name != "b" {
		t.Error("a partial snapshot was changed")
	}
}

// TestDropSeries checks that series are dropped, and nothing else.
func TestDropSeries(t *testing.T) {
	s := Snapshot{
		Verbs: []Series[VerbKey, Histogram]{{Cgroup: 1}}, Spent: []Series[SpentKey, CPUTime]{}, Objects: []Objects{{Cgroup: 1}},
	}
	s.DropSeries()
	if s.Verbs != nil || s.Spent != nil || len(s.Objects) != 1 {
		t.Errorf("%+v", s)
	}
}
