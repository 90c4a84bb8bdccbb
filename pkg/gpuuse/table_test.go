// SPDX-License-Identifier: Apache-2.0

package gpuuse

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestTable(t *testing.T) {
	const s = time.Second
	var table Table
	if rows := table.Facts(); rows != nil {
		t.Errorf("before the first round: %+v", rows)
	}
	add := func(whole bool, uses ...Use) { table.Add(&Round{GPU: "GPU-1", Whole: whole, Uses: uses}) }
	add(false) // the first round
	add(true, Use{Cgroup: 1, Busy: 2 * s}, Use{Cgroup: 1, Busy: s}, Use{Cgroup: 2, Busy: s})
	add(true, Use{Cgroup: 1, Busy: s}, Use{Cgroup: 1, Unknown: true}, Use{Busy: s})
	add(true, Use{Cgroup: 2, Busy: -s})
	add(true)
	add(true, Use{Instance: "7", Busy: s})
	table.Add(&Round{GPU: "GPU-1", Whole: true, Active: true})
	want := []model.GPUUse{
		{GPU: "GPU-1", Listed: 7, Active: 2, Rounds: 2, Unknown: 1, Busy: s},
		{GPU: "GPU-1", Cgroup: 1, Rounds: 2, Unknown: 1, Busy: 4 * s},
		{GPU: "GPU-1", Cgroup: 2, Rounds: 2, Busy: s},
		{GPU: "GPU-1", Instance: "7", Rounds: 1, Busy: s},
	}
	if d := cmp.Diff(want, table.Facts()); d != "" {
		t.Error(d)
	}
	table.Forget([]model.CgroupID{0, 2})
	if rows := table.Facts(); len(rows) != 3 {
		t.Errorf("after Forget: %+v", rows)
	}
	for id := range 2 * maxRows {
		add(true, Use{Cgroup: model.CgroupID(id + 1), Busy: 1})
	}
	var busy time.Duration
	rows := table.Facts()
	for _, r := range rows {
		busy += r.Busy
	}
	if want := 6*s + 2*maxRows; len(rows) > maxRows+1 || busy != want {
		t.Errorf("%d rows with %v, want %v", len(rows), busy, want)
	}
}
