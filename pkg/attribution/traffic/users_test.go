// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math/rand/v2"
	"testing"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

func (n *node) object(cgroup uint64, typ model.ObjectType, now, made uint64) *node {
	n.Objects = append(n.Objects, model.Objects{Cgroup: model.CgroupID(cgroup), Device: "d", Type: typ, Current: now})
	n.Created = append(n.Created, model.Series[model.ObjectKey, model.Count]{
		Cgroup: model.CgroupID(cgroup), Key: model.ObjectKey{Device: "d", Type: typ}, Value: model.Count(made),
	})
	return n
}

// mlx5 makes the device an mlx5 HCA. devxSeen is whether the hooks that see DEVX objects are attached.
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

// TestOtherUsers: a job moves bytes, and another workload uses the same HCA. If that workload cannot move bytes, the
// job loses none.
func TestOtherUsers(t *testing.T) {
	for _, tt := range []struct {
		name string
		// other adds what the other workload does in interval i.
		other func(n *node, i uint64) *node
		job   uint64 // what the job is credited of 1000 bytes in each of four intervals
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

// TestOtherUsersInKernel: a job moves bytes, and the kernel has queue pairs for itself or for another consumer. The
// rows of mlx5 are constructed: queue pairs as gsi.c and umr.c of Linux 6.12 make them, protection domains as
// RES_PD_GET lists them.
func TestOtherUsersInKernel(t *testing.T) {
	// mlx5 has two protection domains of its own, one with the queue pair that registers memory.
	mlx5 := func(n *node) *node { return n.mlx5(true).domains("mlx5_ib", 2, 1) }
	ipoib := func(n *node, domains uint64, of ...model.IPoIB) *node {
		n.HCAs[0].IPoIB = of
		return mlx5(n).domains(model.IPoIBModule, domains, domains)
	}
	for _, tt := range []struct {
		name  string
		other func(n *node, i uint64) *node // what else is on the device in interval i
		job   uint64                        // what the job is credited of 1000 bytes in each of four intervals
	}{
		{"mlx5, RoCE", func(n *node, _ uint64) *node { return mlx5(n).sum("d", 2) }, 4000},
		{"mlx5_bond_0: a queue pair for each port of the bond", func(n *node, _ uint64) *node { return mlx5(n).sum("d", 4) }, 4000},
		{"mlx5, InfiniBand with four P_Keys", func(n *node, _ uint64) *node { return mlx5(n).sum("d", 7) }, 4000},
		{"mlx5, on a kernel that does not count the queue pair that registers memory", func(n *node, _ uint64) *node {
			return mlx5(n).sum("d", 1)
		}, 4000},
		{"queue pairs of the job that the kernel does not count: DCI and DCT", func(n *node, _ uint64) *node {
			n.Resources[0].Count--
			return mlx5(n)
		}, 4000},
		{"the same, and NVMe-oF", func(n *node, _ uint64) *node { return mlx5(n).domains("nvme_rdma", 1, 1) }, 0},
		{"NVMe-oF for one interval", func(n *node, i uint64) *node { return n.domains("nvme_rdma", 1, b2u(i == 4)) }, 2000},
		{"a consumer without objects", func(n *node, _ uint64) *node { return n.domains("ib_srp", 1, 0) }, 4000},
		{"IPoIB that is down or idle", func(n *node, _ uint64) *node { return ipoib(n, 1, model.IPoIB{Name: "ib0", Packets: 7}) }, 4000},
		{"IPoIB that moves packets", func(n *node, i uint64) *node { return ipoib(n, 1, model.IPoIB{Name: "ib0", Packets: i}) }, 0},
		{"IPoIB that moves one packet", func(n *node, i uint64) *node { return ipoib(n, 1, model.IPoIB{Name: "ib0", Packets: i / 3}) }, 2000},
		{"a partition of IPoIB that moves packets", func(n *node, i uint64) *node {
			return ipoib(n, 2, model.IPoIB{Name: "ib0", Packets: 7}, model.IPoIB{Name: "ib0.8001", Packets: i})
		}, 0},
		{"IPoIB in another network namespace", func(n *node, _ uint64) *node { return ipoib(n, 2, model.IPoIB{Name: "ib0", Packets: 7}) }, 0},
		{"IPoIB in the network namespace of the device", func(n *node, _ uint64) *node { return ipoib(n, 1).moved() }, 4000},
		{"a process that only the kernel lists", func(n *node, _ uint64) *node {
			n.Domains[0].Count = 1
			return n
		}, 0},
		{"a process with a protection domain only", func(n *node, _ uint64) *node {
			n.Domains[0].Count = 2
			return n.object(2, model.PD, 1, 1).object(90, model.PD, 1, 1)
		}, 4000},
		{"protection domains are not listed", func(n *node, _ uint64) *node {
			n.Domains = n.Domains[:0]
			return n
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

func b2u(b bool) uint64 { return uint64(toInt(b)) }

// TestExclusiveProperty: three workloads open and close contexts and queue pairs at random, and workloads with a queue
// pair may send. So may a consumer in the kernel, IPoIB and processes that only the kernel lists; the counter may be
// reset. The bytes of an interval are credited if and only if exactly one workload, or only the consumer, could have
// moved them in this interval or the previous one: counters are read a little earlier or later than objects. A workload
// that could have moved uncredited bytes is never complete again.
func TestExclusiveProperty(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(150) {
		exclusiveHistory(t, rand.New(rand.NewPCG(seed, 1)), counts)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, what := range []string{
		"credited", "shared", "kernel", "kernel and container", "ipoib", "process", "reset", "complete", "unattributed", "off",
	} {
		if counts[what] < 100 {
			t.Errorf("%s: only %d times in %v", what, counts[what], counts)
		}
	}
}

type propertyWorkload struct {
	contexts, opened, qps, made uint64
	could, before               bool // could have moved bytes, in this interval and in the previous one
	credit                      uint64
	missed                      uint64 // at most
	any, unlimited              bool
}

// step opens and closes contexts and queue pairs.
func (w *propertyWorkload) step(r *rand.Rand) {
	w.before, w.could = w.could, w.qps > 0
	switch r.IntN(16) {
	case 0, 1, 2:
		w.contexts, w.opened = w.contexts+1, w.opened+1
	case 3:
		w.opened++
	case 4, 5:
		w.contexts = 0
	case 6:
		w.qps, w.made = w.qps+1, w.made+1
	case 7:
		w.made++
		w.could = true
	case 8, 9:
		w.qps = 0
	}
	w.could = w.could || w.qps > 0
}

func exclusiveHistory(t *testing.T, r *rand.Rand, counts map[string]int) {
	var l testLedger
	names := []string{"kernel:nfs", "c1", "c2", "c3"}
	w := make([]propertyWorkload, len(names))
	var counter, unattributed, packets uint64
	process, unknownBefore := false, true
	kernel := &w[0]
	absent := 0 // refreshes without the consumer
	for refresh := range 60 {
		ipoib := false
		kernel.before, kernel.could = kernel.could, kernel.qps > 0
		switch r.IntN(20) {
		case 0, 1:
			kernel.qps = b2u(kernel.qps == 0 && r.IntN(3) == 0)
			kernel.could = kernel.could || kernel.qps > 0
		case 2, 3:
			process = !process && r.IntN(3) == 0
		case 4:
			packets++
			ipoib = refresh > 0
		}
		var who []int
		for i := range w {
			if i > 0 {
				w[i].step(r)
			}
			if w[i].could || w[i].before {
				who = append(who, i)
			}
		}
		unknown := process || ipoib
		moved, reset := uint64(0), false
		if len(who) > 0 || unknown || unknownBefore {
			moved = 4 * r.Uint64N(1000)
		}
		if reset = r.IntN(25) == 0 && moved < counter; reset {
			counter = 0
		}
		counter += moved
		first := refresh == 0
		exclusive := -1
		if len(who) == 1 && !unknown && !unknownBefore && !first {
			exclusive = who[0]
			w[exclusive].credit += moved
		} else {
			unattributed += moved
		}
		for _, i := range who {
			if exclusive < 0 && moved > 0 && !first {
				w[i].missed, w[i].any = w[i].missed+moved, true
			}
			if reset {
				w[i].any, w[i].unlimited = true, true
			}
		}
		for what, is := range map[string]bool{
			"credited": exclusive > 0 && moved > 0, "shared": len(who) > 1, "kernel": exclusive == 0 && moved > 0,
			"kernel and container": len(who) > 1 && who[0] == 0, "ipoib": ipoib, "process": process, "reset": reset,
		} {
			counts[what] += toInt(is)
		}
		unknownBefore = unknown

		if absent++; kernel.qps > 0 {
			absent = 0
		}
		if absent > maxMissedRefreshes { // the owner expired
			unattributed += kernel.credit
			kernel.credit, kernel.missed, kernel.any, kernel.unlimited = 0, 0, false, false
		}
		n := newNode().device("d", counter, 0).domains(model.IPoIBModule, 1, 0).domains("rpcrdma", 1, kernel.qps)
		n.HCAs[0].IPoIB = []model.IPoIB{{Name: "ib0", Packets: packets}}
		for i := 1; i < len(w); i++ {
			n.object(uint64(i), model.Context, w[i].contexts, w[i].opened).object(uint64(i), model.QP, w[i].qps, w[i].made)
			n.object(uint64(i), model.PD, w[i].contexts, w[i].opened)
			n.Domains[0].Count += w[i].contexts
		}
		n.Domains[0].Count += b2u(process)
		a := l.attribute(n)
		got := credited(t, a)
		reasons, amounts := map[string]string{}, map[string]attribution.MissedShare{}
		for _, c := range a.Coverage {
			reasons[shortName(&a, c.Owner)] += string(c.Gap) + ";"
		}
		for _, m := range a.Missed {
			amounts[shortName(&a, m.Owner)] = m
		}
		for i, c := range names {
			reason := ""
			switch {
			case w[i].qps == 0:
			case exclusive != i && i == 0:
				reason = "kernel;"
			case exclusive != i:
				reason = "off;"
			case w[i].any:
				reason = "unattributed;"
			default:
				reason = ";" // complete
			}
			counts[map[string]string{"": "none", "off;": "off", "kernel;": "kernel only", "unattributed;": "unattributed", ";": "complete"}[reason]]++
			m, has := amounts[c]
			if got[c+" port"] != w[i].credit || reasons[c] != reason || has != w[i].any || m.Bytes != w[i].missed || m.Unlimited != w[i].unlimited {
				t.Errorf("refresh %d: %v, coverage %q (want %q), missed %+v, want %+v", refresh, got, reasons[c], reason, m, w[i])
			}
		}
		if got[" port"] != unattributed {
			t.Errorf("refresh %d: %v, want %d unattributed", refresh, got, unattributed)
		}
		if t.Failed() {
			return
		}
	}
}

// TestUseAdd: what two owners did is what their common owner did.
func TestUseAdd(t *testing.T) {
	a := use{held: true, created: 1, createdBy: 2, opened: 3, openedBy: 4, active: true}
	b := use{holds: true, created: 10, createdBy: 20, opened: 30, openedBy: 40, wasActive: true}
	sum, reverse := a, b
	sum.add(&b)
	reverse.add(&a)
	want := use{held: true, holds: true, created: 11, createdBy: 22, opened: 33, openedBy: 44, active: true, wasActive: true}
	if sum != want || reverse != want {
		t.Errorf("%+v, %+v", sum, reverse)
	}
}
