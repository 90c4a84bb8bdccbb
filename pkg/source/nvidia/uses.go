// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// maxUses bounds the rows of uses. Further cgroups count as unknown cgroups.
const maxUses = 1 << 14

// uses adds up the uses of GPUs, for all children.
type uses struct {
	mu   sync.Mutex
	rows map[useKey]*model.GPUUse
}

type useKey struct {
	gpu, instance string
	cgroup        model.CgroupID
}

func (u *uses) row(k useKey) *model.GPUUse {
	if u.rows[k] == nil && len(u.rows) >= maxUses && k.cgroup != 0 {
		k.cgroup = 0
	}
	r := u.rows[k]
	if r == nil {
		if u.rows == nil {
			u.rows = map[useKey]*model.GPUUse{}
		}
		r = &model.GPUUse{GPU: k.gpu, Instance: k.instance, Cgroup: k.cgroup}
		u.rows[k] = r
	}
	return r
}

// add adds a round.
func (u *uses) add(l *wire.Listing, cgroupOf func(pid int) model.CgroupID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	unknown := map[*model.GPUUse]bool{} // the users in this round
	use := func(k useKey, one *wire.Use) {
		r := u.row(k)
		r.Busy += max(one.Busy, 0)
		unknown[r] = unknown[r] || one.Unknown
	}
	u.row(useKey{gpu: l.UUID})
	if !l.Whole {
		use(useKey{gpu: l.UUID}, &wire.Use{Unknown: true})
	}
	for i := range l.Processes {
		if l.Split {
			break
		}
		use(useKey{gpu: l.UUID, cgroup: cgroupOf(l.Processes[i].PID)}, &l.Processes[i])
	}
	for i := range l.Instances {
		use(useKey{gpu: l.UUID, instance: l.Instances[i].Instance}, &l.Instances[i])
	}
	for r, is := range unknown {
		r.Rounds++
		if is {
			r.Unknown++
		}
	}
}

// facts returns all rows.
func (u *uses) facts() []model.GPUUse {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]model.GPUUse, 0, len(u.rows))
	for _, r := range u.rows {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b model.GPUUse) int {
		return cmp.Or(strings.Compare(a.GPU, b.GPU), strings.Compare(a.Instance, b.Instance), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	return all
}

// Forget drops the uses of cgroups.
func (s *Source) Forget(ids []model.CgroupID) {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	for k := range s.uses.rows {
		if k.cgroup != 0 && slices.Contains(ids, k.cgroup) {
			delete(s.uses.rows, k)
		}
	}
}
