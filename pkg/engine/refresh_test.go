// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"reflect"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestSubjects: whatever speaks of a cgroup has it named.
func TestSubjects(t *testing.T) {
	var facts model.Snapshot
	kinds := map[uint64]string{}
	all := reflect.ValueOf(&facts).Elem()
	for i := range all.NumField() {
		list := all.Field(i)
		if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Struct {
			continue
		}
		fact := reflect.New(list.Type().Elem()).Elem()
		if cgroup := fact.FieldByName("Cgroup"); cgroup.IsValid() && cgroup.Kind() == reflect.Uint64 {
			kinds[uint64(i+1)] = all.Type().Field(i).Name
			cgroup.SetUint(uint64(i + 1))
			list.Set(reflect.Append(list, fact, fact))
		}
	}
	facts.Holdings = []model.Holding{{PID: 7}, {PID: 7}}
	cgroups, pids := subjects(&facts)
	for id, kind := range kinds {
		if !slices.Contains(cgroups, id) {
			t.Errorf("the cgroups of %s are not named", kind)
		}
	}
	if len(cgroups) != len(kinds) || len(kinds) < 10 || !slices.Equal(pids, []int{7}) {
		t.Errorf("cgroups %v, processes %v", cgroups, pids)
	}
}
