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

// delay is how late a rank launched, and how much the clocks of both nodes may differ.
type delay struct{ late, clocks time.Duration }

// late returns the ranks that launch after the first rank of the same launch, by more than the clocks differ. It adds the nodes of ranks
// that cannot be compared to unclocked. The sensor of a node compares the ranks on the node.
func (t *team) late(unclocked map[*answer]bool) (list []fleet.Late) {
	if len(t.nodes) < 2 {
		return nil
	}
	first := map[uint64]rankOn{} // by number of the launch
	for _, r := range t.ranks {
		if r.node.clock == 0 {
			unclocked[r.node] = true
			continue
		}
		for number, at := range r.times {
			if f, ok := first[number]; !ok || at.Before(f.times[number]) {
				first[number] = r
			}
		}
	}
	for _, r := range t.ranks {
		if r.node.clock == 0 {
			continue
		}
		var delays []delay
		for number, at := range r.times {
			f := first[number]
			d := delay{late: at.Sub(f.times[number])}
			if f.node != r.node {
				d.clocks = f.node.clock + r.node.clock
			}
			delays = append(delays, d)
		}
		if l, ok := median(delays); ok {
			l.Communicator, l.Rank, l.Workload, l.Node = r.communicator, r.name, r.workload, r.node.Name
			list = append(list, l)
		}
	}
	return list
}

// median returns the median of delays, if there are enough, and it is larger than the clocks may differ.
func median(delays []delay) (l fleet.Late, ok bool) {
	if len(delays) < leastTimes {
		return l, false
	}
	slices.SortFunc(delays, func(a, b delay) int { return cmp.Compare(a.late, b.late) })
	late := delays[len(delays)/2].late
	clocks := slices.MaxFunc(delays, func(a, b delay) int { return cmp.Compare(a.clocks, b.clocks) }).clocks
	l = fleet.Late{Seconds: late.Seconds(), ErrorSeconds: clocks.Seconds(), Launches: len(delays)}
	return l, late > clocks && late >= leastLate
}
