// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// maxOfWorkload is the number of communicators of a workload that are listed, maxListed the number of ranks of communicators of the
	// node. The launches of others are added up.
	maxOfWorkload = 16
	maxListed     = 512
	// promotion is how many times as many launches a communicator needs to take the place of a listed one: two busy communicators must
	// not take turns.
	promotion = 2
	// endedGrace is how long an ended communicator is listed, so that a scrape sees its last launches. While other ranks on this node
	// exist, which may wait for it, the limit is awaitedGrace.
	endedGrace   = time.Minute
	awaitedGrace = 30 * time.Minute
)

// members are the ranks of communicators in processes of this node, by number of the communicator in the maps.
type members struct {
	keys     keyer
	versions map[int]string
	states   map[int]model.LaunchingProcess
	of       map[uint64]*member
	folded   map[foldedKey]*model.Launches
	lost     map[model.CgroupID]bool // cgroups whose counts lack launches or communicators
}

type foldedKey struct {
	cgroup model.CgroupID
	model.CollectiveKey
}

// member is a rank of a communicator.
type member struct {
	model.Communicator
	pid     int
	late    bool
	listed  bool
	awaited bool   // it has ended, and another rank on this node has not
	ended   uint64 // CLOCK_MONOTONIC; 0: it exists
	final   bool   // it has ended, and launches has its last launch
	last    uint64 // the last launch, CLOCK_MONOTONIC
	seen    uint64 // the launch that LastLaunch has
	numbers
	// launches and credited are by operation: all launches, and launches that were made while it was not listed.
	launches, credited [maxOperations]model.Launches
}

// maxOperations is more than there are operations.
const maxOperations = 16

func newMembers(keys keyer) members {
	return members{
		keys: keys, of: map[uint64]*member{}, folded: map[foldedKey]*model.Launches{}, lost: map[model.CgroupID]bool{},
	}
}

// see adds a communicator, and reports whether it ended so long ago that it is dropped.
func (m *members) see(number uint64, c *communicator, processEnded bool, now moment) bool {
	of := m.of[number]
	if of == nil {
		of = m.newMember(number, c, now)
		m.of[number] = of
	}
	if of.Version == "" {
		of.Version = m.versions[of.pid]
	}
	switch {
	case of.ended != 0:
	case c.Ended != 0:
		of.ended = c.Ended
	case processEnded:
		of.ended = now.monotonic
	}
	of.Process.Ended = of.Process.Ended || processEnded
	grace := endedGrace
	if of.awaited {
		grace = awaitedGrace
	}
	if !of.final || of.listed && now.monotonic-of.ended < uint64(grace) {
		return false
	}
	delete(m.of, number)
	return true
}

func (m *members) newMember(number uint64, c *communicator, now moment) *member {
	of := &member{pid: int(c.Tgid), late: isLate(c), numbers: numbers{made: c.Made}}
	of.Communicator = model.Communicator{
		Cgroup: model.CgroupID(c.Cgroup), Library: libraryLabels[min(c.Library, libraryCount-1)], Version: m.versions[int(c.Tgid)],
	}
	if of.late {
		return of
	}
	of.Key, of.Rank = m.keys.of(c, c.Path), strconv.Itoa(int(int32(c.Rank)))
	of.Since = now.at(number) // numbers are times
	if has(c, gen.CollectiveCollectiveFlagSIZED) {
		of.Ranks = c.Nranks
	}
	if has(c, gen.CollectiveCollectiveFlagDERIVED) {
		of.Parent = m.keys.of(c, c.ParentPath)
	}
	if !has(c, gen.CollectiveCollectiveFlagRANKED) {
		of.Rank = "parent-" + of.Rank
	}
	return of
}

// count takes the launches of a communicator.
func (m *members) count(key launchKey, l *launchCounts) {
	if of := m.of[key.Communicator]; of != nil && key.Operation < uint64(len(operations)) {
		of.launches[key.Operation] = model.Launches{Count: l.Count, Bytes: l.Bytes}
		of.last = max(of.last, l.Last)
	}
}

// settle decides which communicators are listed, and adds up the launches of others.
func (m *members) settle(now moment) {
	chosen := m.choose()
	defer m.setProcesses(now)
	for _, of := range m.of {
		if at := now.at(of.last); of.last != 0 && of.last != of.seen {
			of.seen, of.LastLaunch = of.last, at
		}
		of.final = of.ended != 0
		switch listed := chosen[of]; {
		case listed && !of.listed && of.credited != [maxOperations]model.Launches{}:
			of.Since = time.Time{}
		case !listed && of.listed: // its launches were listed, and must not count again
			of.credited = of.launches
		case !listed:
			m.fold(of)
		}
		if of.listed = chosen[of]; of.listed {
			of.setNumbers(now)
		}
	}
}

// fold adds the launches of a member since the last call to the sum of others.
func (m *members) fold(of *member) {
	label := model.OtherCommunicators
	if of.late {
		label = model.LateCommunicators
	}
	for i, operation := range operations {
		grown := of.launches[i]
		grown.Subtract(&of.credited[i])
		if grown == (model.Launches{}) {
			continue
		}
		key := foldedKey{of.Cgroup, model.CollectiveKey{Library: of.Library, Communicator: label, Operation: operation}}
		if m.folded[key] == nil {
			m.folded[key] = &model.Launches{}
		}
		m.folded[key].Add(&grown)
		of.credited[i] = of.launches[i]
	}
}

// candidate is a communicator of a workload, with its ranks on this node.
type candidate struct {
	cgroup model.CgroupID
	key    string
	ranks  []*member
	score  uint64
}

// choose returns the members to list: the communicators of each workload with the most launches, and of these the ones of the node.
func (m *members) choose() map[*member]bool {
	ofWorkload := map[model.CgroupID]int{}
	chosen := map[*member]bool{}
	for _, c := range m.candidates() {
		if ofWorkload[c.cgroup] == maxOfWorkload || len(chosen)+len(c.ranks) > maxListed {
			continue
		}
		ofWorkload[c.cgroup]++
		for _, of := range c.ranks {
			chosen[of] = true
		}
	}
	return chosen
}

// candidates returns the communicators with a Key, the most important first.
func (m *members) candidates() []*candidate {
	index := map[model.CgroupID]map[string]*candidate{}
	var all []*candidate
	for _, of := range m.of {
		if of.late {
			continue
		}
		c := index[of.Cgroup][of.Key]
		if c == nil {
			c = &candidate{cgroup: of.Cgroup, key: of.Key}
			if index[of.Cgroup] == nil {
				index[of.Cgroup] = map[string]*candidate{}
			}
			index[of.Cgroup][of.Key] = c
			all = append(all, c)
		}
		c.ranks = append(c.ranks, of)
		c.score += of.score()
	}
	slices.SortFunc(all, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.cgroup, b.cgroup), cmp.Compare(a.key, b.key))
	})
	return all
}

// score is higher for a listed member.
func (of *member) score() uint64 {
	n := uint64(0)
	for i := range of.launches {
		n += of.launches[i].Count
	}
	if of.listed {
		return promotion*n + 1
	}
	return n
}

// listedMembers returns what is listed, in the order of cgroup, communicator and process.
func (m *members) listedMembers() []model.Communicator {
	var ranks []*member
	for _, of := range m.of {
		if of.listed {
			ranks = append(ranks, of)
		}
	}
	slices.SortFunc(ranks, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.pid, b.pid))
	})
	out := make([]model.Communicator, 0, len(ranks))
	for _, of := range ranks {
		c := of.Communicator
		for i, operation := range operations {
			if of.launches[i] == (model.Launches{}) {
				continue
			}
			n := of.launches[i]
			n.Subtract(&of.credited[i])
			c.Operations = append(c.Operations, model.CommunicatorOperation{Operation: operation, Launches: n})
		}
		slices.SortFunc(c.Operations, func(a, b model.CommunicatorOperation) int { return cmp.Compare(a.Operation, b.Operation) })
		out = append(out, c)
	}
	return out
}

// foldedSeries returns the launches in communicators that are not listed.
func (m *members) foldedSeries() []model.Series[model.CollectiveKey, model.Launches] {
	out := make([]model.Series[model.CollectiveKey, model.Launches], 0, len(m.folded))
	for k, n := range m.folded {
		out = append(out, model.Series[model.CollectiveKey, model.Launches]{Cgroup: k.cgroup, Key: k.CollectiveKey, Value: *n})
	}
	return out
}

// coverage adds the gaps of communicators to the gaps of processes. A loss is a gap as long as the cgroup has counts or processes.
func (m *members) coverage(of []model.CollectiveCoverage) []model.CollectiveCoverage {
	all := slices.Clone(of)
	add := func(c model.CollectiveCoverage) {
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	for _, of := range m.of {
		add(model.CollectiveCoverage{Cgroup: of.Cgroup})
		switch {
		case of.late:
			add(model.CollectiveCoverage{Cgroup: of.Cgroup, Gap: model.CollectiveLate})
		case !of.listed:
			add(model.CollectiveCoverage{Cgroup: of.Cgroup, Gap: model.CollectiveOther})
		}
		if !of.late && (!of.known || of.counts.Unsure > 0) {
			add(model.CollectiveCoverage{Cgroup: of.Cgroup, Gap: model.CollectiveBehind})
		}
	}
	seen := map[model.CgroupID]bool{}
	for _, c := range all {
		seen[c.Cgroup] = true
	}
	for k := range m.folded {
		seen[k.cgroup] = true
	}
	maps.DeleteFunc(m.lost, func(id model.CgroupID, _ bool) bool { return !seen[id] })
	for id := range m.lost {
		add(model.CollectiveCoverage{Cgroup: id, Gap: model.CollectiveLost})
	}
	return all
}

func (m *members) forget(cgroups map[model.CgroupID]bool) {
	maps.DeleteFunc(m.folded, func(k foldedKey, _ *model.Launches) bool { return cgroups[k.cgroup] })
}
