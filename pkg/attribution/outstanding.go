// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// OutstandingShare is the outstanding work requests of one owner on one device.
type OutstandingShare struct {
	Owner   int
	Device  string
	Oldest  time.Duration
	Stalled uint64 // queue pairs
	partial bool
}

// outstanding adds up the outstanding work requests of owners. Without all queue pairs of an owner 0 would be no measurement:
// then there is a share only if some of the others are stalled.
func (o *users) outstanding(s *model.Snapshot) []OutstandingShare {
	if s.Outstanding == nil {
		return nil
	}
	t := newTable[OutstandingShare](len(s.Outstanding))
	for i := range s.Outstanding {
		f := &s.Outstanding[i]
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(t.key(owner, f.Device, ""), OutstandingShare{Owner: owner, Device: f.Device})
		share.Oldest = max(share.Oldest, f.Oldest)
		share.Stalled += f.Stalled
		share.partial = share.partial || len(f.Gaps) > 0
	}
	return slices.DeleteFunc(t.rows, func(s OutstandingShare) bool { return s.partial && s.Stalled == 0 })
}
