// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"cmp"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
)

const (
	// maxSaid bounds the named ranks and communicators.
	maxSaid = 20
	// leastLate and leastTimes are how late a rank has to be, and in how many launches that were compared.
	leastLate  = time.Millisecond
	leastTimes = 4
)

// team is a communicator with its ranks on all nodes.
type team struct {
	ranks []rankOn
	nodes map[*answer]bool
	names map[string]bool // of the ranks
}

// rankOn is a rank on a node.
type rankOn struct {
	*rank
	node *answer
}

func (t *team) add(a *answer, r *rank) {
	if t.names == nil {
		t.names = map[string]bool{}
	}
	t.ranks, t.nodes[a], t.names[r.name] = append(t.ranks, rankOn{r, a}), true, true
}

// stamp is when a rank on a node launched.
type stamp struct {
	node *answer
	at   time.Time
}

// firsts are the first launch with a number, and the first on another node.
type firsts struct{ first, other stamp }

// with adds a launch.
func (f firsts) with(s stamp) firsts {
	switch {
	case f.first.node == nil || f.first.node == s.node && s.at.Before(f.first.at):
		f.first = s
	case s.at.Before(f.first.at):
		f.first, f.other = s, f.first
	case s.node != f.first.node && (f.other.node == nil || s.at.Before(f.other.at)):
		f.other = s
	}
	return f
}

// elsewhere returns the first launch on another node than this; without a node if there is no such launch.
func (f firsts) elsewhere(node *answer) stamp {
	if f.first.node != node {
		return f.first
	}
	return f.other
}

// delay is how late a rank launched, and how much the clocks of both nodes may differ.
type delay struct{ late, clocks time.Duration }

// late returns the ranks that launch after the first rank of the same launch on other nodes, by more than the clocks differ. It adds the
// nodes of ranks that cannot be compared to uncompared. The sensor of a node compares the ranks on the node.
func (t *team) late(uncompared map[*answer]bool) (list []fleet.Late) {
	if len(t.nodes) < 2 {
		return nil
	}
	first := map[uint64]firsts{} // by number of the launch
	for _, r := range t.ranks {
		if r.node.clock == 0 || len(r.times) == 0 {
			uncompared[r.node] = true
			continue
		}
		for number, at := range r.times {
			first[number] = first[number].with(stamp{r.node, at})
		}
	}
	for _, r := range t.ranks {
		if r.node.clock == 0 {
			continue
		}
		var delays []delay
		for number, at := range r.times {
			if f := first[number].elsewhere(r.node); f.node != nil {
				delays = append(delays, delay{at.Sub(f.at), f.node.clock + r.node.clock})
			}
		}
		if l, ok := median(delays); ok {
			l.Communicator, l.Rank, l.Workload, l.Node = r.communicator, r.name, r.workload, r.node.Name
			list = append(list, l)
		}
	}
	return list
}

// median returns the median of delays, of an even number the smaller, if there are enough, and the median is larger than the clocks may
// differ.
func median(delays []delay) (l fleet.Late, ok bool) {
	if len(delays) < leastTimes {
		return l, false
	}
	slices.SortFunc(delays, func(a, b delay) int { return cmp.Compare(a.late, b.late) })
	late := delays[(len(delays)-1)/2].late
	clocks := slices.MaxFunc(delays, func(a, b delay) int { return cmp.Compare(a.clocks, b.clocks) }).clocks
	l = fleet.Late{Seconds: late.Seconds(), ErrorSeconds: clocks.Seconds(), Launches: len(delays)}
	return l, late > clocks && late >= leastLate
}
