// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// covers adds the coverage of a cgroup by the data path, which is attached.
func (n *node) covers(cgroup uint64, gap model.Gap) *node {
	n.DataPath = &model.DataPathStats{Attached: true}
	n.Coverage = append(n.Coverage, model.Coverage{Cgroup: model.CgroupID(cgroup), Device: "d", Gap: gap})
	return n
}

// bound adds queue pairs of a cgroup with hardware counters.
func (n *node) bound(cgroup, qps uint64) *node {
	n.Traffic = append(n.Traffic, model.Traffic{Cgroup: model.CgroupID(cgroup), Device: "d", Method: qc, Direction: model.Transmit, QPs: qps})
	return n
}

// TestMissed has a row for each way in which bytes of container c1 are missing, or are not. Each step is a refresh, and
// the device moves 1000 bytes in each, which no method reports.
func TestMissed(t *testing.T) {
	d := func() *node { return newNode() }
	one := func() *node { return d().holds(1, "d", 1, 1) }
	noCounters := func(n *node) *node {
		n.HCAs = nil
		return n
	}
	for name, tt := range map[string]struct {
		steps []*node
		want  []string // coverage and missing bytes of c1, after each step
	}{
		"bytes from before the first refresh": {
			steps: []*node{one(), one()},
			want:  []string{"off", "complete"},
		},
		"another workload for one refresh": {
			steps: []*node{one(), one(), d().two(), one(), one(), one()},
			want:  []string{"off", "complete", "off 1000", "off 2000", "off 3000", "unattributed 3000"},
		},
		"an idle owner, and one that ended before": {
			steps: []*node{d().two(), d().holds(2, "d", 1, 1), d().holds(2, "d", 1, 1), d().holds(2, "d", 1, 1), one(), one(), one()},
			want:  []string{"off", " 1000", " 2000", " 2000", "off 3000", "off 4000", "unattributed 4000"},
		},
		"hardware counters of all queue pairs": {
			steps: []*node{d().two().bound(1, 1), d().two().bound(1, 1), one().bound(1, 1), one().bound(1, 1), one()},
			want:  []string{"complete", "complete", "complete", "complete", "complete"},
		},
		"hardware counters of some": {
			steps: []*node{d().holds(2, "d", 1, 1).holds(1, "d", 2, 2).bound(1, 1), d().two().holds(1, "d", 1, 1).bound(1, 1), one().bound(1, 1)},
			want:  []string{"off", "off 1000", "unattributed 2000"},
		},
		"probes that were late": {
			steps: []*node{
				d().two().covers(1, model.GapLate), d().two().covers(1, model.GapLate), d().two().covers(1, ""), d().two().covers(1, ""),
			},
			want: []string{"late", "late 1000", "unattributed 2000", "unattributed 2000"},
		},
		"queue pairs that were not connected": {
			steps: []*node{d().two().covers(1, model.GapNotSeen), d().two().covers(1, ""), d().two().covers(1, "")},
			want:  []string{"not_seen", "complete", "complete"},
		},
		"a process that ends, and the next one": {
			steps: []*node{d().two().covers(1, ""), d().holds(2, "d", 1, 1).traced(), d().holds(2, "d", 1, 1).traced(), d().two().covers(1, "")},
			want:  []string{"complete", "", " 1000", "unattributed 1000"},
		},
		"a process that lives between two refreshes": {
			steps: []*node{d().holds(2, "d", 1, 1), d().holds(1, "d", 0, 1).holds(2, "d", 1, 1), d().holds(2, "d", 1, 1), d().two().covers(1, "")},
			want:  []string{"", " 1000", " 2000", "unattributed 2000"},
		},
		"no source counts objects for a while": {
			steps: []*node{one(), one(), one().without(func(n *node) { n.Objects = nil }), one(), one()},
			want:  []string{"off", "complete", "", "off 2000", "unattributed 2000"},
		},
		"the device is not read for a short time": {
			steps: []*node{one(), one(), noCounters(one()), one()},
			want:  []string{"off", "complete", "complete", "complete"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLedger{}
			var got []string
			for i, n := range tt.steps {
				if n.DataPath != nil {
					l.states = []model.SourceState{{Source: model.DataPathSource, State: model.StateOK}}
				}
				step := newNode().device("d", 1000*uint64(i+1), 0)
				if n.HCAs == nil {
					step.HCAs = nil
				}
				n.HCAs = step.HCAs
				n.Domains, n.Resources = step.Domains, step.Resources
				got = append(got, missedOfC1(&l, n))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// missedOfC1 runs a refresh and returns the coverage of container c1 and its missed bytes.
func missedOfC1(l *testLedger, n *node) string {
	a := l.attribute(n)
	text := ""
	for _, c := range a.Coverage {
		switch {
		case a.Owners[c.Owner].ContainerID != "c1":
		case c.Gap == "":
			text += "complete"
		default:
			text += string(c.Gap)
		}
	}
	for _, m := range a.Missed {
		if a.Owners[m.Owner].ContainerID == "c1" {
			text += fmt.Sprintf(" %d", m.Bytes)
			if m.Unlimited {
				text += " and more"
			}
		}
	}
	return text
}

// TestMissedUncounted: bytes that moved before a counter was reset, or while it was unread for long, are missing.
func TestMissedUncounted(t *testing.T) {
	var l testLedger
	one := func(sent uint64) *node { return newNode().device("d", sent, 0).holds(1, "d", 1, 1) }
	missedOfC1(&l, one(1000))
	missedOfC1(&l, one(2000))
	if got := missedOfC1(&l, one(400)); got != "unattributed 0 and more" {
		t.Error("after a reset: ", got)
	}
	l = testLedger{}
	missedOfC1(&l, one(1000))
	for range maxMissedRefreshes + 1 {
		missedOfC1(&l, newNode().kernel("d", 1).holds(1, "d", 1, 1))
	}
	if got := missedOfC1(&l, one(9000)); got != "off 8000 and more" {
		t.Error("after a pause: ", got)
	}
	if got := missedOfC1(&l, one(9000)); got != "unattributed 8000 and more" {
		t.Error("later: ", got)
	}
}

// TestMissedOwners: when another owner takes over an owner's bytes, it takes over the missing bytes. They end with the
// owner.
func TestMissedOwners(t *testing.T) {
	var l testLedger
	shared := func(sent uint64) *node { return newNode().device("d", sent, 0).two() }
	missedOfC1(&l, shared(1000))
	missedOfC1(&l, shared(2000))
	from, to := l.owners.Of(2), l.owners.Of(1)
	l.Merge(identity.Merge{From: from, To: to})
	shares := l.MissedShares(func(id identity.OwnerID) int { return int(id) })
	if len(shares) != 1 || shares[0].Owner != int(to) || shares[0].Bytes != 2000 {
		t.Errorf("after a merge: %+v", shares)
	}
	l.Expire([]identity.OwnerID{to})
	if shares := l.MissedShares(func(id identity.OwnerID) int { return int(id) }); shares != nil {
		t.Errorf("after the end: %+v", shares)
	}
}
