// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestBegan: the bytes of an owner began at the previous reading of the device. Their begin is unknown if the source
// did not answer then, at the first reading of the device, and after the owner's labels changed. The unattributed share
// has no begin.
func TestBegan(t *testing.T) {
	renamed := func(n *node) *node {
		e := n.Entities[1]
		e.Pod = "other"
		n.Entities[1] = e
		return n
	}
	uses := func(n *node, method model.Method, bytes uint64) *node {
		return n.holds(1, "d", 1, 1).holds(2, "d", 1, 1).reports(1, "d", method, bytes)
	}
	idle := func() *node { return newNode().device("d", 0, 0).traced() }
	busy := func(sent uint64) *node { return newNode().device("d", sent, 0).traced() }
	for _, c := range []struct {
		name  string
		nodes []*node
		want  int64
	}{
		{"new", []*node{idle(), idle(), uses(busy(1000), model.MethodUprobe, 500)}, 2},
		{"keeps its begin", []*node{
			idle(), uses(busy(1000), model.MethodUprobe, 500), uses(busy(2000), model.MethodUprobe, 900),
		}, 1},
		{"first reading", []*node{uses(busy(1000), model.MethodUprobe, 500), uses(busy(2000), model.MethodUprobe, 900)}, 0},
		{"the data path did not answer", []*node{
			idle(), newNode().device("d", 0, 0), uses(busy(1000), model.MethodUprobe, 500),
		}, 0},
		{"renamed", []*node{
			idle(), uses(busy(1000), model.MethodUprobe, 500), renamed(uses(busy(2000), model.MethodUprobe, 900)),
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &testLedger{}
			var a attribution.Attribution
			for i, n := range c.nodes {
				n.Counted = time.Unix(int64(i+1), 0)
				a = l.attribute(n)
			}
			found := false
			for _, s := range a.Traffic {
				switch {
				case a.Owners[s.Owner] == identity.Owner{}:
					if !s.Since.IsZero() {
						t.Errorf("the unattributed share began at %v", s.Since)
					}
				case s.Direction == model.Transmit && s.Method == model.MethodUprobe:
					found = true
					if s.Bytes == 0 || s.Since.IsZero() != (c.want == 0) || c.want != 0 && s.Since.Unix() != c.want {
						t.Errorf("%d bytes began at %v, want %d", s.Bytes, s.Since, c.want)
					}
				}
			}
			if !found {
				t.Error("the owner has no bytes")
			}
		})
	}
}
