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
	// OldestReceive is the longest present wait for a receive. ReceiveGaps are why queue pairs are not included, sorted. See
	// ReceivesKnown.
	OldestReceive time.Duration
	ReceiveGaps   []model.Gap
}

// Known reports whether Oldest and Stalled are a measurement. If some queue pairs are unknown, 0 is not a value; if
// known queue pairs are stalled, the values are lower bounds.
func (s *OutstandingShare) Known() bool { return len(s.Gaps) == 0 || s.Stalled > 0 }

// ReceivesKnown reports whether OldestReceive is a measurement, as Known does.
func (s *OutstandingShare) ReceivesKnown() bool {
	return len(s.ReceiveGaps) == 0 || s.OldestReceive > 0
}

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
		share.OldestReceive = max(share.OldestReceive, f.OldestReceive)
		share.ReceiveGaps = append(share.ReceiveGaps, f.ReceiveGaps...)
	}
	for i := range t.rows {
		t.rows[i].Gaps, t.rows[i].ReceiveGaps = distinct(t.rows[i].Gaps), distinct(t.rows[i].ReceiveGaps)
	}
	return t.rows
}

// distinct sorts gaps and removes repeated ones.
func distinct(gaps []model.Gap) []model.Gap {
	slices.Sort(gaps)
	return slices.Compact(gaps)
}
