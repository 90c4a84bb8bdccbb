// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// object adds objects of one type that a cgroup has now, and the number that it created.
func (n *node) object(cgroup uint64, typ model.ObjectType, now, made uint64) *node {
	n.Objects = append(n.Objects, model.Objects{Cgroup: model.CgroupID(cgroup), Device: "d", Type: typ, Current: now})
	n.Created = append(n.Created, model.Series[model.ObjectKey, model.Count]{
		Cgroup: model.CgroupID(cgroup), Key: model.ObjectKey{Device: "d", Type: typ}, Value: model.Count(made),
	})
	return n
}

// mlx5 makes the device an HCA of mlx5. devxSeen is whether the hooks that see DEVX objects are attached.
func (n *node) mlx5(devxSeen bool) *node {
	n.HCAs[0].Type = "MT4123"
	for _, name := range devxHooks {
		h := model.Hook{Name: name, State: model.StateUnsupported}
		if devxSeen {
			h.State = model.StateOK
		}
		n.Hooks = append(n.Hooks, h)
	}
	return n
}

// TestOtherUsers: a job moves bytes, and another workload does something on the same HCA. Who cannot move bytes takes none from the job.
func TestOtherUsers(t *testing.T) {
	for _, tt := range []struct {
		name string
		// other adds what the other workload does in interval i.
		other func(n *node, i uint64) *node
		job   uint64 // what it is credited of 1000 bytes in each of four intervals
	}{
		{"nothing", func(n *node, _ uint64) *node { return n }, 4000},
		{"holds an open context", func(n *node, _ uint64) *node { return n.object(2, model.Context, 1, 1) }, 4000},
		{"opens and closes a context", func(n *node, i uint64) *node { return n.object(2, model.Context, 0, i) }, 4000},
		{"opens contexts now and then", func(n *node, i uint64) *node { return n.object(2, model.Context, 0, i/2) }, 4000},
		{"a process without an owner opens contexts", func(n *node, i uint64) *node { return n.object(90, model.Context, 1, i) }, 4000},
		{"holds all but queue pairs", func(n *node, _ uint64) *node {
			for _, typ := range []model.ObjectType{model.PD, model.CQ, model.MR, model.SRQ, model.CMID} {
				n.object(2, typ, 3, 3)
			}
			return n
		}, 4000},
		{"holds a queue pair", func(n *node, _ uint64) *node { return n.holds(2, "d", 1, 1) }, 0},
		{"makes a queue pair and destroys it", func(n *node, i uint64) *node { return n.holds(2, "d", 0, i) }, 0},
		{"holds a DEVX object", func(n *node, _ uint64) *node { return n.object(2, model.DEVXObj, 1, 1) }, 0},
		{"a process without an owner makes a DEVX object", func(n *node, i uint64) *node { return n.object(90, model.DEVXObj, 0, i) }, 0},
		{"holds a context of mlx5", func(n *node, _ uint64) *node { return n.mlx5(true).object(2, model.Context, 1, 1) }, 4000},
		{"holds a context of mlx5, DEVX not seen", func(n *node, _ uint64) *node { return n.mlx5(false).object(2, model.Context, 1, 1) }, 0},
		{"context of mlx5 without an owner, DEVX not seen", func(n *node, _ uint64) *node {
			return n.mlx5(false).object(90, model.Context, 1, 1)
		}, 0},
	} {
		var l testLedger
		var got map[string]uint64
		for i := range uint64(5) {
			n := tt.other(newNode().device("d", 1000*i, 0).holds(1, "d", 1, 1), i+1)
			got = sent(t, &l, n)
		}
		if got["c1 port"] != tt.job || got[" port"] != 4000-tt.job {
			t.Errorf("%s: %v, want %d for the job", tt.name, got, tt.job)
		}
	}
}

// TestExclusiveProperty: three workloads open and close contexts and queue pairs at random, and those with a queue pair may send. The
// bytes of an interval are credited if and only if exactly one of them could have moved bytes in it, or in the one before: counters are
// read a little earlier or later than objects.
func TestExclusiveProperty(t *testing.T) {
	credited, mixed := 0, 0
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l testLedger
		type workload struct{ contexts, opened, qps, made, credit uint64 }
		var w [4]workload
		var total, unattributed uint64
		var could, before [4]bool
		for refresh := range 60 {
			n := newNode()
			before, could = could, [4]bool{}
			for i := 1; i < len(w); i++ {
				could[i] = w[i].qps > 0
				switch r.IntN(12) {
				case 0, 1, 2:
					w[i].contexts, w[i].opened = w[i].contexts+1, w[i].opened+1
				case 3:
					w[i].opened++
				case 4, 5:
					w[i].contexts = 0
				case 6:
					w[i].qps, w[i].made = w[i].qps+1, w[i].made+1
				case 7:
					w[i].made++
					could[i] = true
				case 8, 9, 10:
					w[i].qps = 0
				}
				could[i] = could[i] || w[i].qps > 0
			}
			var who []int
			for i := range could {
				if could[i] || before[i] {
					who = append(who, i)
				}
			}
			moved := uint64(0)
			if len(who) > 0 {
				moved = 4 * r.Uint64N(1000)
			}
			total += moved
			switch {
			case len(who) == 1 && refresh > 0:
				w[who[0]].credit += moved
				credited++
			default:
				unattributed += moved
				mixed++
			}
			n.device("d", total, 0)
			for i := 1; i < len(w); i++ {
				n.object(uint64(i), model.Context, w[i].contexts, w[i].opened).object(uint64(i), model.QP, w[i].qps, w[i].made)
			}
			n.sum("d", 1)
			got := sent(t, &l, n)
			for i := 1; i < len(w); i++ {
				if got[fmt.Sprintf("c%d port", i)] != w[i].credit {
					t.Fatalf("seed %d, refresh %d: %v, want %+v", seed, refresh, got, w)
				}
			}
			if got[" port"] != unattributed {
				t.Fatalf("seed %d, refresh %d: %v unattributed, want %d", seed, refresh, got, unattributed)
			}
		}
	}
	if credited < 100 || mixed < 100 {
		t.Errorf("%d intervals credited, %d not", credited, mixed)
	}
}
