// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// CommunicatorShare is a rank of a communicator of an owner. Processes with the same rank are added up.
type CommunicatorShare struct {
	Owner int
	model.Communicator
}

// CollectiveGapShare is a gap in the launches of an owner. If all launches are counted, the owner has a share with an empty gap.
type CollectiveGapShare struct {
	Owner int
	Gap   model.CollectiveGap
}

func (o *users) communicators(s *model.Snapshot) []CommunicatorShare {
	if s.Communicators == nil {
		return nil
	}
	t := newTable[CommunicatorShare](len(s.Communicators))
	for i := range s.Communicators {
		f := &s.Communicators[i]
		owner := o.ofCgroup(f.Cgroup)
		k := t.key(owner, f.Library+" "+f.Key, f.Rank)
		if _, known := t.index[k]; known {
			t.at(k, CommunicatorShare{}).join(f)
		} else {
			t.at(k, CommunicatorShare{owner, *f})
		}
	}
	return t.rows
}

// join adds another process.
func (c *CommunicatorShare) join(f *model.Communicator) {
	c.Since, c.Late, c.Numbered, c.Launched, c.Kept = time.Time{}, model.Optional{}, false, 0, nil // numbers of launches are of a process
	launch, graph := later(c.Process.LastLaunch, f.Process.LastLaunch), later(c.Process.LastGraph, f.Process.LastGraph)
	if f.LastLaunch.After(c.LastLaunch) {
		c.LastLaunch, c.Process = f.LastLaunch, f.Process
	}
	c.Process.LastLaunch, c.Process.LastGraph = launch, graph
	c.Operations = slices.Clone(c.Operations) // of a fact, which does not change
	for _, added := range f.Operations {
		i, known := slices.BinarySearchFunc(c.Operations, added.Operation,
			func(o model.CommunicatorOperation, name string) int { return strings.Compare(o.Operation, name) })
		if known {
			c.Operations[i].Add(&added.Launches)
		} else {
			c.Operations = slices.Insert(c.Operations, i, added)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (o *users) collectiveGaps(s *model.Snapshot) []CollectiveGapShare {
	if s.CollectiveCoverage == nil {
		return nil
	}
	gaps := map[int][]model.CollectiveGap{}
	var owners []int
	for _, f := range s.CollectiveCoverage {
		owner := o.ofCgroup(f.Cgroup)
		if owner == unattributed {
			continue
		}
		if gaps[owner] == nil {
			owners = append(owners, owner)
		}
		if !slices.Contains(gaps[owner], f.Gap) {
			gaps[owner] = append(gaps[owner], f.Gap)
		}
	}
	shares := []CollectiveGapShare{}
	for _, owner := range owners {
		for _, gap := range reported(gaps[owner]) {
			shares = append(shares, CollectiveGapShare{owner, gap})
		}
	}
	return shares
}

// reported sorts the gaps of an owner. The empty gap stays if all launches are counted: CollectiveBehind is only about how late they are.
func reported(gaps []model.CollectiveGap) []model.CollectiveGap {
	slices.Sort(gaps)
	if slices.ContainsFunc(gaps, func(gap model.CollectiveGap) bool { return gap != "" && gap != model.CollectiveBehind }) {
		return slices.DeleteFunc(gaps, func(gap model.CollectiveGap) bool { return gap == "" })
	}
	return gaps
}
