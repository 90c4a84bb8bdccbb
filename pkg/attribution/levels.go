// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/model"

// SamplingShare is the ratio of time in which an owner's calls are watched, and the certainty of
// what is estimated from that: the worst of its cgroups.
type SamplingShare struct {
	Owner         int
	Device        string
	Calls         model.Calls
	Ratio         float64
	Windows       float64
	RelativeError float64
}

// BudgetShare is the cost of data-path probes for one owner. SpentRatio is the maximum over
// its cgroups.
type BudgetShare struct {
	Owner      int
	SpentRatio float64
	Spent      model.CPUTime
}

func (o *users) sampling(s *model.Snapshot) []SamplingShare {
	if s.Sampling == nil {
		return nil
	}
	t := newTable[SamplingShare](len(s.Sampling))
	for _, f := range s.Sampling {
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(t.key(owner, f.Device, string(f.Calls)),
			SamplingShare{Owner: owner, Device: f.Device, Calls: f.Calls, Ratio: f.Ratio, Windows: f.Windows})
		share.Ratio, share.Windows = min(share.Ratio, f.Ratio), min(share.Windows, f.Windows)
		share.RelativeError = max(share.RelativeError, f.RelativeError)
	}
	return t.rows
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
		at(f.Owner).Spent = f.Value
	}
	return t.rows
}
