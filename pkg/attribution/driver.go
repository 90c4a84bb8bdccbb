// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// DriverShare is the ioctls of one GPU driver that tasks of one owner are in, without those that wait on purpose.
type DriverShare struct {
	Owner  int
	Driver string
	Oldest time.Duration
	Stuck  uint64 // tasks
}

// DriverTask is a stuck task with its owner.
type DriverTask struct {
	Owner int
	*model.DriverTask
}

// driverShares adds up the ioctls in progress of the cgroups of each owner.
func (o *users) driverShares(s *model.Snapshot) []DriverShare {
	if s.DriverUses == nil {
		return nil
	}
	t := newTable[DriverShare](len(s.DriverUses))
	for i := range s.DriverUses {
		f := &s.DriverUses[i]
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(t.key(owner, f.Driver, ""), DriverShare{Owner: owner, Driver: f.Driver})
		share.Oldest = max(share.Oldest, f.Oldest)
		share.Stuck += f.Stuck
	}
	return t.rows
}

// driverTasks returns the stuck tasks by driver, those that entered their ioctl first before the others: tasks wait for a lock
// behind the task that has it.
func (o *users) driverTasks(s *model.Snapshot) []DriverTask {
	if s.DriverTasks == nil {
		return nil
	}
	out := make([]DriverTask, len(s.DriverTasks))
	for i := range s.DriverTasks {
		f := &s.DriverTasks[i]
		out[i] = DriverTask{o.ofCgroup(f.Cgroup), f}
	}
	slices.SortStableFunc(out, func(a, b DriverTask) int {
		return cmp.Or(cmp.Compare(a.Driver, b.Driver), a.Since.Compare(b.Since))
	})
	return out
}
