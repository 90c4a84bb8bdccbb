// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// BudgetShare is the cost of data-path probes for an owner. SpentRatio is the maximum over its cgroups.
type BudgetShare struct {
	Owner      int
	SpentRatio float64
	Spent      model.CPUTime
	Since      time.Time // of Spent, see Share
}

func (o *users) budgets(s *model.Snapshot) []BudgetShare {
	if s.Budgets == nil {
		return nil
	}
	t := newTable[BudgetShare](len(s.Budgets))
	at := func(owner int) *BudgetShare { return t.at(key{owner: owner}, BudgetShare{Owner: owner}) }
	for _, f := range s.Budgets {
		share := at(o.ofCgroup(f.Cgroup))
		share.SpentRatio = max(share.SpentRatio, f.SpentRatio)
	}
	for _, f := range o.a.Spent {
		share := at(f.Owner)
		share.Spent, share.Since = f.Value, f.Since
	}
	return t.rows
}
