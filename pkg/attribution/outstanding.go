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
	// Gaps are why queue pairs are not included, sorted. See Known.
	Gaps []model.Gap
}

// Known reports whether Oldest and Stalled are a measurement. If some queue pairs are unknown, 0 is not a value; if
// known queue pairs are stalled, the values are lower bounds.
func (s *OutstandingShare) Known() bool { return len(s.Gaps) == 0 || s.Stalled > 0 }

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
		share.Gaps = append(share.Gaps, f.Gaps...)
	}
	for i := range t.rows {
		slices.Sort(t.rows[i].Gaps)
		t.rows[i].Gaps = slices.Compact(t.rows[i].Gaps)
	}
	return t.rows
}
