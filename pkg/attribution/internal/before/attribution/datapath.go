// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// seenKey is key for what is exact or sampled: the two are never one share.
func seenKey[S any](t *table[S], owner int, device, what string, seen model.Seen) key {
	sampled := ""
	if seen.Sampled {
		sampled = "sampled"
	}
	return t.key(owner, device, what, sampled)
}

func workRequestShares(s model.Snapshot, o *owners) []WorkRequestShare {
	if s.WorkRequests == nil {
		return nil
	}
	t := newTable[WorkRequestShare](len(s.WorkRequests))
	for i := range s.WorkRequests {
		f := &s.WorkRequests[i]
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(seenKey(t, owner, f.Device, f.Opcode, f.Seen),
			WorkRequestShare{Owner: owner, Device: f.Device, Opcode: f.Opcode, Seen: f.Seen})
		share.Count += f.Count
		share.Bytes += f.Bytes
		share.Resting = share.Resting || f.Resting
	}
	return t.rows
}

func completionErrorShares(s model.Snapshot, o *owners) []CompletionErrorShare {
	if s.CompletionErrors == nil {
		return nil
	}
	t := newTable[CompletionErrorShare](len(s.CompletionErrors))
	for i := range s.CompletionErrors {
		f := &s.CompletionErrors[i]
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(seenKey(t, owner, f.Device, f.Status, f.Seen),
			CompletionErrorShare{Owner: owner, Device: f.Device, Status: f.Status, Seen: f.Seen})
		share.Count += f.Count
		share.Resting = share.Resting || f.Resting
	}
	return t.rows
}

func completionShares(s model.Snapshot, o *owners) []CompletionShare {
	if s.Completions == nil {
		return nil
	}
	t := newTable[CompletionShare](len(s.Completions))
	for i := range s.Completions {
		f := &s.Completions[i]
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(seenKey(t, owner, f.Device, f.Opcode, f.Seen),
			CompletionShare{Owner: owner, Device: f.Device, Opcode: f.Opcode, Seen: f.Seen})
		share.Duration.Add(&f.Duration)
		share.Resting = share.Resting || f.Resting
	}
	return t.rows
}

func samplingShares(s model.Snapshot, o *owners) []SamplingShare {
	if s.Sampling == nil {
		return nil
	}
	t := newTable[SamplingShare](len(s.Sampling))
	for _, f := range s.Sampling {
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(t.key(owner, f.Device, string(f.Calls), ""),
			SamplingShare{Owner: owner, Device: f.Device, Calls: f.Calls, Ratio: f.Ratio})
		share.Ratio = min(share.Ratio, f.Ratio)
	}
	return t.rows
}

func budgetShares(s model.Snapshot, o *owners) []BudgetShare {
	if s.Budgets == nil {
		return nil
	}
	t := newTable[BudgetShare](len(s.Budgets))
	for _, f := range s.Budgets {
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(key{owner: owner}, BudgetShare{Owner: owner})
		share.LimitRatio = max(share.LimitRatio, f.LimitRatio)
		share.SpentRatio = max(share.SpentRatio, f.SpentRatio)
		share.SpentSeconds += f.SpentSeconds
	}
	return t.rows
}
