// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/web"
)

const (
	// widest is the number of nodes from which the pairs are listed instead of a table of nodes and nodes.
	widest = 16
	// maxPairs and maxAddresses are the numbers of rows that are shown. The JSON has all pairs, and more addresses.
	maxPairs     = 500
	maxAddresses = 25
)

// The remote ends that are not on a node of the job.
const (
	elsewhere = "elsewhere"
	ambiguous = "more than one node"
	unknown   = "not known"
)

// matrixView is how the nodes of a job are connected.
type matrixView struct {
	Heads     []string // the nodes, and the three above; empty if there are too many nodes
	Rows      []matrixRow
	Pairs     []pairView
	MorePairs int
	Addresses []addressView
	Problems  []string
	At, JSON  string
}

type matrixRow struct {
	Name, Link string
	Cells      []matrixCell
}

type matrixCell struct{ Head, Value string }

type pairView struct {
	From, Link, To, Value string
	pairs                 int
	waited                float64
}

type addressView struct{ From, Address, Value, About string }

func matrixOf(query string, m *matrix.Matrix) *matrixView {
	v := &matrixView{At: web.UTC(m.At), JSON: matrixPath + "?" + query}
	for i := range m.Nodes {
		if n := &m.Nodes[i]; n.Problem != "" {
			v.Problems = append(v.Problems, format.Escape(n.Name+": "+n.Problem))
		}
	}
	if n := len(m.NotAsked); n > 0 {
		text := fmt.Sprintf("not asked, beyond the first %d nodes: %d, such as ", matrix.MaxNodes, n)
		v.Problems = append(v.Problems, format.Escape(text+strings.Join(m.NotAsked[:min(n, 5)], ", ")))
	}
	if len(m.Nodes) <= widest {
		v.table(m)
	} else {
		v.list(m)
	}
	for _, a := range m.Elsewhere[:min(len(m.Elsewhere), maxAddresses)] {
		row := addressView{From: format.Escape(a.From), Address: format.Escape(a.Address), Value: fmt.Sprint(a.QueuePairs)}
		if row.About = "of no node of the job that answers"; a.Ambiguous {
			row.About = "of more than one node"
		}
		v.Addresses = append(v.Addresses, row)
	}
	return v
}

// waits is from which seconds on a present wait for receives is shown.
const waits = 1

// waited returns the longest present wait of a pair in seconds; 0: it is not shown.
func waited(p matrix.Pair) float64 {
	if p.OldestReceiveSeconds < waits {
		return 0
	}
	return p.OldestReceiveSeconds
}

// queuePairs formats the queue pairs of a pair, and their longest wait, with an arrow to the node that is waited for. A LID is unique in
// its subnet only: figures by LID are estimates.
func queuePairs(p matrix.Pair) string {
	estimate := ""
	if p.ByLID > 0 {
		estimate = format.Estimate
	}
	text := estimate + fmt.Sprint(p.QueuePairs)
	if seconds := waited(p); seconds > 0 {
		text += " → " + estimate + format.Duration(seconds)
	}
	return text
}

// table makes the rows of nodes by nodes. What is not known of a node is not 0.
func (v *matrixView) table(m *matrix.Matrix) {
	type direction struct{ from, to string }
	pairs := map[direction]matrix.Pair{}
	for _, p := range m.Pairs {
		pairs[direction{p.From, p.To}] = p
	}
	for i := range m.Nodes {
		v.Heads = append(v.Heads, format.Escape(m.Nodes[i].Name))
	}
	v.Heads = append(v.Heads, elsewhere, ambiguous, unknown)
	for i := range m.Nodes {
		n := &m.Nodes[i]
		row := matrixRow{Name: format.Escape(n.Name), Link: nodeLink(n.Name)}
		add := func(known bool, value string) {
			if !known {
				value = format.None
			}
			row.Cells = append(row.Cells, matrixCell{v.Heads[len(row.Cells)], value})
		}
		for j := range m.Nodes {
			to := &m.Nodes[j]
			add(n.Peers && to.Addresses, queuePairs(pairs[direction{n.Name, to.Name}]))
		}
		for _, value := range []int{n.Elsewhere, n.Ambiguous, n.Unknown} {
			add(n.Peers, fmt.Sprint(value))
		}
		v.Rows = append(v.Rows, row)
	}
}

// list makes a row of each pair, the pairs that wait longest first, then the pairs with the most queue pairs.
func (v *matrixView) list(m *matrix.Matrix) {
	add := func(from, to, value string, pairs int, waited float64) {
		if pairs > 0 {
			v.Pairs = append(v.Pairs, pairView{format.Escape(from), nodeLink(from), to, value, pairs, waited})
		}
	}
	for _, p := range m.Pairs {
		add(p.From, format.Escape(p.To), queuePairs(p), p.QueuePairs, waited(p))
	}
	for i := range m.Nodes {
		n := &m.Nodes[i]
		add(n.Name, elsewhere, fmt.Sprint(n.Elsewhere), n.Elsewhere, 0)
		add(n.Name, ambiguous, fmt.Sprint(n.Ambiguous), n.Ambiguous, 0)
		add(n.Name, unknown, fmt.Sprint(n.Unknown), n.Unknown, 0)
	}
	slices.SortStableFunc(v.Pairs, func(a, b pairView) int {
		return cmp.Or(cmp.Compare(b.waited, a.waited), cmp.Compare(b.pairs, a.pairs))
	})
	v.MorePairs = max(0, len(v.Pairs)-maxPairs)
	v.Pairs = v.Pairs[:len(v.Pairs)-v.MorePairs]
}
