// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// DriverShare is an owner's ioctls of a GPU driver in progress, without requests that wait on purpose.
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

// driverTasks returns the stuck tasks by driver, oldest ioctl first: tasks wait behind the task that holds a lock.
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
