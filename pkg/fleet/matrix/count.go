// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"cmp"
	"slices"
)

// maxElsewhere is the number of listed addresses.
const maxElsewhere = 100

// several is the owner of an address that several nodes have.
const several = -1

// count assigns the remote ends of the queue pairs to nodes.
func count(answers []answer) *Matrix {
	nodes := map[remote]int{} // by address: an index of answers, or several
	for i := range answers {
		for address := range answers[i].addresses {
			if at, ok := nodes[address]; ok && at != i {
				nodes[address] = several
			} else {
				nodes[address] = i
			}
		}
	}
	m := &Matrix{Nodes: []Node{}, Pairs: []Pair{}, Elsewhere: []Address{}}
	for i := range answers {
		a := &answers[i]
		pairs := map[int]Pair{}
		for to, e := range a.remotes {
			at, ok := nodes[to]
			n := e.pairs
			switch {
			case to == remote{}:
				a.Unknown += n
			case !ok || at == several:
				m.Elsewhere = append(m.Elsewhere, Address{From: a.Name, Address: to.String(), QueuePairs: n, Ambiguous: ok})
				if ok {
					a.Ambiguous += n
				} else {
					a.Elsewhere += n
				}
			default:
				p := pairs[at]
				p.From, p.To, p.QueuePairs = a.Name, answers[at].Name, p.QueuePairs+n
				p.ReceiveWaitSeconds, p.OldestReceiveSeconds = p.ReceiveWaitSeconds+e.waited, max(p.OldestReceiveSeconds, e.oldest)
				if !to.gid.IsValid() {
					p.ByLID += n
				}
				pairs[at] = p
			}
		}
		m.Nodes = append(m.Nodes, a.Node)
		for _, p := range pairs {
			m.Pairs = append(m.Pairs, p)
		}
	}
	slices.SortFunc(m.Pairs, func(a, b Pair) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	slices.SortFunc(m.Elsewhere, func(a, b Address) int {
		return cmp.Or(cmp.Compare(b.QueuePairs, a.QueuePairs), cmp.Compare(a.From, b.From), cmp.Compare(a.Address, b.Address))
	})
	m.Elsewhere = slices.Clone(m.Elsewhere[:min(len(m.Elsewhere), maxElsewhere)]) // the other addresses are not kept
	return m
}
