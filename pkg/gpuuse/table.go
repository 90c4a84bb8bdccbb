// SPDX-License-Identifier: Apache-2.0

// Package gpuuse adds up who used GPUs, for sources that list the processes of GPUs in rounds.
package gpuuse

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxRows bounds the rows of a Table. Further cgroups count as unknown cgroups.
const maxRows = 1 << 14

// BlindAfter is the number of intervals between two rounds after which users may have come and gone.
const BlindAfter = 3

// Table adds up rounds. The zero Table is ready to use. It is safe for concurrent use.
type Table struct {
	mu   sync.Mutex
	rows map[key]*model.GPUUse
}

type key struct {
	gpu, instance string
	cgroup        model.CgroupID
}

// Round is the use of a GPU since the round before.
type Round struct {
	GPU    string // UUID of the whole GPU
	Whole  bool   // no user is missing
	Active bool   // something ran on the GPU, or this is unknown
	Uses   []Use
}

// Use is the use by a process of a cgroup, or the use of a MIG instance by all.
type Use struct {
	Cgroup   model.CgroupID
	Instance string // see model.GPU; empty for a process
	Unknown  bool   // Busy is unknown
	Busy     time.Duration
}

func (t *Table) row(k key) *model.GPUUse {
	if t.rows[k] == nil && len(t.rows) >= maxRows && k.cgroup != 0 {
		k.cgroup = 0
	}
	r := t.rows[k]
	if r == nil {
		if t.rows == nil {
			t.rows = map[key]*model.GPUUse{}
		}
		r = &model.GPUUse{GPU: k.gpu, Instance: k.instance, Cgroup: k.cgroup}
		t.rows[k] = r
	}
	return r
}

// Add adds a round.
func (t *Table) Add(round *Round) {
	t.mu.Lock()
	defer t.mu.Unlock()
	unknown := map[*model.GPUUse]bool{} // the users in this round
	use := func(u *Use) {
		r := t.row(key{round.GPU, u.Instance, u.Cgroup})
		r.Busy += max(u.Busy, 0)
		unknown[r] = unknown[r] || u.Unknown
	}
	all := t.row(key{gpu: round.GPU})
	if all.Listed++; round.Active || !round.Whole {
		all.Active++
	}
	if !round.Whole {
		use(&Use{Unknown: true})
	}
	for i := range round.Uses {
		use(&round.Uses[i])
	}
	for r, is := range unknown {
		r.Rounds++
		if is {
			r.Unknown++
		}
	}
}

// Facts returns all rows, by GPU, instance and cgroup; nil before the first round.
func (t *Table) Facts() []model.GPUUse {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		return nil
	}
	all := make([]model.GPUUse, 0, len(t.rows))
	for _, r := range t.rows {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b model.GPUUse) int {
		return cmp.Or(strings.Compare(a.GPU, b.GPU), strings.Compare(a.Instance, b.Instance), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	return all
}

// Forget drops the uses of cgroups.
func (t *Table) Forget(ids []model.CgroupID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.rows {
		if k.cgroup != 0 && slices.Contains(ids, k.cgroup) {
			delete(t.rows, k)
		}
	}
}
