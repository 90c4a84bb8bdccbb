// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// testLedger is a ledger with its dependencies, set up like in the engine.
type testLedger struct {
	Ledger
	owners   identity.Table
	counters attribution.Counters
	known    map[model.CgroupID]bool
	// asRecorded selects the behavior for which the histories were recorded: missed refreshes of owners count only
	// while the probe answers, and only the listed facts' objects count as created.
	asRecorded bool
	clock      time.Time
	states     []model.SourceState
}

// attribute runs a refresh. If the probe answers, it first forgets cgroups without rows.
func (l *testLedger) attribute(n *node) attribution.Attribution {
	s := &n.Snapshot
	used := map[model.CgroupID]bool{}
	for _, f := range s.Objects {
		used[f.Cgroup] = true
	}
	for _, f := range s.Traffic {
		used[f.Cgroup] = true
	}
	for _, f := range s.Namespaces {
		used[f.Cgroup] = true
	}
	if l.known == nil {
		l.known = map[model.CgroupID]bool{}
	}
	var gone []model.CgroupID
	for id := range l.known {
		if s.Objects != nil && !used[id] {
			gone = append(gone, id)
		}
	}
	maps.Copy(l.known, used)
	l.forget(gone)
	merges := l.owners.Resolve(n.names(used), nil)
	for _, m := range merges {
		l.Merge(m)
	}
	l.counters.Credit(s, &l.owners, merges)
	a := attribution.Attribute(s, &l.owners, &l.counters, func(a *attribution.Attribution) {
		if l.asRecorded {
			l.createdOfFacts(s, a)
		}
		l.Settle(s, a, &l.owners, l.clock)
		if !l.asRecorded || s.Objects != nil {
			l.Expire(l.owners.Expire(a.AssignedOwners()))
		}
		a.Traffic = l.Shares(a.Use)
		a.Coverage = attribution.Coverage(s, a, &l.owners, l.states, &l.Ledger)
		a.Missed = l.MissedShares(a.Use)
	})
	return a
}

// createdOfFacts counts the objects that the listed cgroups created: the number falls when a cgroup is forgotten.
func (l *testLedger) createdOfFacts(s *model.Snapshot, a *attribution.Attribution) {
	made := map[string]map[identity.OwnerID]uint64{}
	for i := range a.Objects {
		o := &a.Objects[i]
		o.Created = 0
		for _, f := range s.Created {
			if f.Key.Device == o.Device && f.Key.Type == o.Type && l.owners.Of(f.Cgroup) == a.ID(o.Owner) {
				o.Created += uint64(f.Value)
			}
		}
		if made[o.Device] == nil {
			made[o.Device] = map[identity.OwnerID]uint64{}
		}
		made[o.Device][a.ID(o.Owner)] += o.Created
	}
	for _, d := range l.order {
		for id, u := range d.users {
			if s.Objects != nil {
				u.created = min(u.created, made[d.name][id])
			}
		}
	}
}

func (l *testLedger) forget(ids []model.CgroupID) {
	l.owners.Forget(ids)
	l.counters.Forget(ids)
	for _, id := range ids {
		delete(l.known, id)
	}
}

type entity = identitytest.Entity

func (n *node) names(used map[model.CgroupID]bool) *model.Snapshot {
	entities := maps.Clone(n.Entities)
	maps.DeleteFunc(entities, func(id model.CgroupID, _ entity) bool { return !used[id] })
	s := identitytest.Facts(entities)
	s.Containers = append(s.Containers, n.listed...)
	return s
}

// node is the facts of a node. Cgroup n is container cn in its own pod; cgroups from 90 on are unattributed.
type node struct {
	model.Snapshot
	Entities map[model.CgroupID]entity
	listed   []model.Container // additional containers that a runtime lists
}

func newNode() *node {
	n := &node{Entities: map[model.CgroupID]entity{}, Snapshot: model.Snapshot{
		HCAs: []model.HCA{}, Objects: []model.Objects{}, Created: []model.Series[model.ObjectKey, model.Count]{},
		Resources: []model.Resource{}, Domains: []model.Domains{}, Traffic: []model.Traffic{},
	}}
	for id := range uint64(10) {
		n.Entities[model.CgroupID(id)] = entity{
			Workload: fmt.Sprintf("ns/p%d/c", id), Namespace: "ns", Pod: fmt.Sprint("p", id), Container: "c",
			ContainerID: fmt.Sprint("c", id), Cgroup: fmt.Sprint("/", id),
		}
	}
	return n
}

// device adds a RoCE device with the given numbers of sent and received bytes.
func (n *node) device(name string, sent, received uint64) *node {
	n.HCAs = append(n.HCAs, model.HCA{Name: name, Ports: []model.Port{{
		Number: 1, LinkLayer: "Ethernet", Counters: []model.Counter{
			{Name: "port_xmit_data", Value: sent / 4},
			{Name: "port_rcv_data", Value: received / 4},
			{Name: "unicast_rcv_packets"},
		},
	}}})
	return n.kernel(name, 1)
}

// kernel adds queue pairs of the kernel for management datagrams.
func (n *node) kernel(name string, qps uint64) *node {
	n.Domains = append(n.Domains, model.Domains{Device: name}, model.Domains{Device: name, Module: "ib_core", Count: 1, Used: 1})
	n.Resources = append(n.Resources, model.Resource{Device: name, Type: model.QP, Count: qps},
		model.Resource{Device: name, Type: model.Context})
	return n.sum(name, qps)
}

// domains adds protection domains of a kernel module; used of them have objects.
func (n *node) domains(module string, count, used uint64) *node {
	n.Domains = append(n.Domains, model.Domains{Device: "d", Module: module, Count: count, Used: used})
	return n
}

// sum sets the kernel's count to the sum of all objects.
func (n *node) sum(name string, qps uint64) *node {
	var contexts uint64
	for _, o := range n.Objects {
		if o.Device == name && o.Type == model.QP {
			qps += o.Current
			contexts += o.Current
		}
	}
	for i := range n.Resources {
		if r := &n.Resources[i]; r.Device == name {
			if r.Count = contexts; r.Type == model.QP {
				r.Count = qps
			}
		}
	}
	return n
}

// holds adds contexts and queue pairs of a cgroup: how many it has now and how many it created.
func (n *node) holds(cgroup uint64, device string, now, made uint64) *node {
	for _, typ := range []model.ObjectType{model.Context, model.QP} {
		n.Objects = append(n.Objects, model.Objects{Cgroup: model.CgroupID(cgroup), Device: device, Type: typ, Current: now})
		n.Created = append(n.Created, model.Series[model.ObjectKey, model.Count]{
			Cgroup: model.CgroupID(cgroup), Key: model.ObjectKey{Device: device, Type: typ}, Value: model.Count(made),
		})
		for i := range n.Resources {
			if r := &n.Resources[i]; r.Device == device && r.Type == typ {
				r.Count += now
			}
		}
	}
	return n
}

func (n *node) traced() *node {
	n.DataPath = &model.DataPathStats{}
	return n
}

func (n *node) reports(cgroup uint64, device string, m model.Method, sent uint64, resting ...bool) *node {
	n.Traffic = append(n.Traffic, model.Traffic{
		Cgroup: model.CgroupID(cgroup), Device: device, Method: m, Direction: model.Transmit, Bytes: sent, Resting: len(resting) > 0,
	})
	return n
}

// sent returns the transmitted bytes that a ledger credited, by "container method".
func sent(t *testing.T, l *testLedger, n *node) map[string]uint64 {
	t.Helper()
	return credited(t, l.attribute(n))
}

func credited(t *testing.T, a attribution.Attribution) map[string]uint64 {
	t.Helper()
	got := map[string]uint64{}
	for _, s := range a.Traffic {
		if s.Direction != model.Transmit {
			continue
		}
		k := fmt.Sprint(shortName(&a, s.Owner), " ", s.Method)
		if s.Device != "d" {
			k = s.Device + " " + k
		}
		if _, twice := got[k]; twice {
			t.Errorf("two shares for %s", k)
		}
		got[k] = s.Bytes
	}
	return got
}

// shortName returns the container of an owner, or the name of a pod or of a kernel user.
func shortName(a *attribution.Attribution, owner int) string {
	if o := &a.Owners[owner]; o.ContainerID == "" {
		return o.Workload
	}
	return a.Owners[owner].ContainerID
}

func (n *node) moved() *node {
	n.HCAs[0].Netns, n.Namespaces = 7, []model.Namespace{{Inode: 7, Cgroup: 1}}
	return n
}

func (n *node) twin() *node {
	n.Entities[11] = n.Entities[1]
	return n
}

func (n *node) two() *node { return n.holds(1, "d", 1, 1).holds(2, "d", 1, 1) }

func (n *node) without(change func(*node)) *node {
	change(n)
	return n
}

const (
	up = model.MethodUprobe
	qc = model.MethodQPCounter
)

const rests = true

type want = map[string]uint64

// TestLedger has a row for each rule. " port" is the unattributed bytes of a port.
func TestLedger(t *testing.T) {
	d := func(sent uint64) *node { return newNode().device("d", sent, 0) }
	type step struct {
		node *node
		want want
	}
	for name, steps := range map[string][]step{
		"an exclusive owner, from the second refresh on": {
			{d(1000).holds(1, "d", 1, 1), want{" port": 1000}},
			{d(1500).holds(1, "d", 1, 1).reports(1, "d", up, 400), want{" port": 1000, "c1 port": 500, "c1 uprobe": 0}},
			{d(1600).holds(1, "d", 0, 1).reports(1, "d", up, 480), want{" port": 1000, "c1 port": 600, "c1 uprobe": 0}},
		},
		"the first bytes that the data path counts": {
			{d(0).holds(1, "d", 1, 1).traced(), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).traced(), want{" port": 0, "c1 port": 100}},
			{
				d(2100).holds(1, "d", 1, 1).holds(2, "d", 0, 1).holds(3, "d", 1, 1).traced().reports(2, "d", up, 900).reports(3, "d", up, 700),
				want{" port": 400, "c1 port": 100, "c2 uprobe": 900, "c3 uprobe": 700},
			},
		},
		"the first bytes that the data path counts, after it did not answer": {
			{d(0).holds(1, "d", 1, 1).traced(), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1), want{" port": 0, "c1 port": 100}},
			{
				d(1100).holds(1, "d", 1, 1).holds(2, "d", 1, 1).traced().reports(1, "d", up, 90).reports(2, "d", up, 900),
				want{" port": 1000, "c1 port": 100, "c1 uprobe": 0, "c2 uprobe": 0},
			},
		},
		"made after the last refresh": {
			{d(0), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1), want{" port": 0, "c1 port": 100}},
		},
		"made and gone between two refreshes, and the interval after": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).holds(2, "d", 0, 0), want{" port": 0, "c1 port": 100}},
			{d(200).holds(1, "d", 1, 1).holds(2, "d", 0, 1), want{" port": 100, "c1 port": 100}},
			{d(300).holds(1, "d", 1, 1).holds(2, "d", 0, 1), want{" port": 200, "c1 port": 100}},
			{d(400).holds(1, "d", 1, 1).holds(2, "d", 0, 1), want{" port": 200, "c1 port": 200}},
		},
		"another owner": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1), want{" port": 0, "c1 port": 100}},
			{d(200).holds(2, "d", 1, 1), want{" port": 100, "c1 port": 100}},
			{d(300).holds(2, "d", 1, 1), want{" port": 200, "c1 port": 100}},
			{d(400).holds(2, "d", 1, 1), want{" port": 200, "c1 port": 100, "c2 port": 100}},
		},
		"an unattributed cgroup": {
			{d(0).holds(1, "d", 1, 1).holds(90, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).holds(90, "d", 1, 1), want{" port": 100}},
		},
		"objects on a device without a known name": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).holds(2, "", 1, 1), want{" port": 100}},
			{d(200).holds(1, "d", 1, 1).holds(2, "", 1, 1), want{" port": 200}},
			{d(300).holds(1, "d", 1, 1).holds(2, "", 1, 1), want{" port": 200, "c1 port": 100}}, // these may be on another device
			{d(400).holds(1, "d", 1, 1).holds(2, "", 1, 2), want{" port": 300, "c1 port": 100}},
		},
		"objects of a forgotten cgroup": {
			{d(0).holds(1, "d", 1, 2).holds(2, "d", 0, 5).holds(90, "d", 0, 1).holds(3, "", 0, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 2).holds(2, "d", 0, 5).holds(90, "d", 0, 1).holds(3, "", 0, 1), want{" port": 100}},
			{d(200).holds(1, "d", 1, 2).holds(2, "d", 0, 5).holds(90, "d", 0, 1).holds(3, "", 0, 1), want{" port": 100, "c1 port": 100}},
			{d(300).holds(1, "d", 1, 1), want{" port": 100, "c1 port": 200}},
			{d(400).holds(1, "d", 1, 1).holds(2, "d", 0, 0), want{" port": 100, "c1 port": 300}},
		},
		"in another network namespace, with counters of its own": {
			{d(0).holds(1, "d", 1, 1).moved(), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).moved(), want{" port": 0, "c1 port": 100}},
			{d(200).holds(1, "d", 1, 1).holds(2, "d", 1, 1).moved(), want{" port": 100, "c1 port": 100}},
		},
		"a consumer in the kernel": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).domains("nvme_rdma", 1, 1).holds(1, "d", 1, 1), want{" port": 100}},
			{d(200).holds(1, "d", 1, 1), want{" port": 200}},
			{d(300).holds(1, "d", 1, 1), want{" port": 300}},
			{d(400).holds(1, "d", 1, 1), want{" port": 300, "c1 port": 100}},
		},
		"a consumer in the kernel alone, then beside a container": {
			{d(0).domains("rpcrdma", 1, 1), want{" port": 0}},
			{d(100).domains("rpcrdma", 2, 2).domains("nvme_rdma", 1, 0), want{" port": 0, "kernel:nfs port": 100}},
			{d(200).domains("rpcrdma", 1, 1).holds(1, "d", 1, 1), want{" port": 100, "kernel:nfs port": 100}},
			{d(300).holds(1, "d", 1, 1), want{" port": 200, "kernel:nfs port": 100}},
			{d(400).holds(1, "d", 1, 1), want{" port": 300, "kernel:nfs port": 100}},
			{d(500).holds(1, "d", 1, 1), want{" port": 300, "kernel:nfs port": 100, "c1 port": 100}},
		},
		"two consumers in the kernel": {
			{d(0).domains("nvme_rdma", 1, 1).domains("nvmet_rdma", 1, 1), want{" port": 0}},
			{d(100).domains("nvme_rdma", 1, 1).domains("nvmet_rdma", 1, 1), want{" port": 100}},
		},
		"two modules of a service": {
			{d(0).domains("cifs", 1, 1).domains("ksmbd", 1, 1), want{" port": 0}},
			{d(100).domains("cifs", 1, 1).domains("ksmbd", 1, 1), want{" port": 0, "kernel:smb port": 100}},
		},
		"management datagrams and registration of memory only": {
			{d(0).domains("mlx5_ib", 2, 1), want{" port": 0}},
			{d(100).domains("mlx5_ib", 2, 1), want{" port": 100}},
		},
		"a consumer in the kernel, and a process that only the kernel lists": {
			{d(0).domains("rpcrdma", 1, 1).without(func(n *node) { n.Domains[0].Count = 1 }), want{" port": 0}},
			{d(100).domains("rpcrdma", 1, 1).without(func(n *node) { n.Domains[0].Count = 1 }), want{" port": 100}},
		},
		"no source counts objects, or the kernel does not": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).without(func(n *node) { n.Objects = nil }), want{" port": 100}},
			{d(200).holds(1, "d", 1, 1), want{" port": 200}},
			{d(300).holds(1, "d", 1, 1), want{" port": 200, "c1 port": 100}},
			{d(400).holds(1, "d", 1, 1).without(func(n *node) { n.Domains = nil }), want{" port": 300, "c1 port": 100}},
		},
		"several methods: the best of each owner": {
			{d(0).holds(1, "d", 1, 1).holds(2, "d", 1, 1), want{" port": 0}},
			{
				d(1000).holds(1, "d", 1, 1).holds(2, "d", 1, 1).reports(1, "d", up, 100).reports(1, "d", qc, 120).reports(2, "d", up, 300),
				want{" port": 580, "c1 uprobe": 0, "c1 qp_counter": 120, "c2 uprobe": 300},
			},
		},
		"a better method that stops counting": {
			{d(0).two().reports(1, "d", up, 0).reports(1, "d", qc, 0), want{" port": 0, "c1 uprobe": 0, "c1 qp_counter": 0}},
			{d(120).two().reports(1, "d", up, 100).reports(1, "d", qc, 120), want{" port": 0, "c1 uprobe": 0, "c1 qp_counter": 120}},
			{d(240).two().reports(1, "d", up, 200).reports(1, "d", qc, 120, rests), want{" port": 20, "c1 uprobe": 100, "c1 qp_counter": 120}},
			{d(360).two().reports(1, "d", qc, 120, rests), want{" port": 140, "c1 uprobe": 100, "c1 qp_counter": 120}},
			{d(480).two().reports(1, "d", up, 400).reports(1, "d", qc, 120, rests), want{" port": 140, "c1 uprobe": 220, "c1 qp_counter": 120}},
			{d(600).two().reports(1, "d", up, 500).reports(1, "d", qc, 240), want{" port": 140, "c1 uprobe": 220, "c1 qp_counter": 240}},
		},
		"a better method that counts some of it": {
			{d(0).two().reports(1, "d", up, 0).reports(1, "d", qc, 0), want{" port": 0, "c1 uprobe": 0, "c1 qp_counter": 0}},
			{d(120).two().reports(1, "d", up, 100).reports(1, "d", qc, 60), want{" port": 20, "c1 uprobe": 40, "c1 qp_counter": 60}},
			{d(240).two().reports(1, "d", up, 200).reports(1, "d", qc, 120), want{" port": 40, "c1 uprobe": 80, "c1 qp_counter": 120}},
		},
		"a better method that counts it later": {
			{d(0).two().reports(1, "d", up, 0).reports(1, "d", qc, 0), want{" port": 0, "c1 uprobe": 0, "c1 qp_counter": 0}},
			// Another owner sent the rest.
			{d(80).two().reports(1, "d", up, 100).reports(1, "d", qc, 30), want{" port": 0, "c1 uprobe": 50, "c1 qp_counter": 30}},
			{d(160).two().reports(1, "d", up, 100).reports(1, "d", qc, 60), want{" port": 60, "c1 uprobe": 50, "c1 qp_counter": 50}},
			{d(240).two().reports(1, "d", up, 100).reports(1, "d", qc, 105), want{" port": 135, "c1 uprobe": 50, "c1 qp_counter": 55}},
		},
		"a better method that did not answer once": {
			{d(0).two().reports(1, "d", up, 0).reports(1, "d", qc, 0), want{" port": 0, "c1 uprobe": 0, "c1 qp_counter": 0}},
			{d(100).two().reports(1, "d", up, 100).reports(1, "d", qc, 100), want{" port": 0, "c1 uprobe": 0, "c1 qp_counter": 100}},
			{d(200).two().reports(1, "d", up, 200), want{" port": 0, "c1 uprobe": 100, "c1 qp_counter": 100}},
			{d(300).two().reports(1, "d", up, 300).reports(1, "d", qc, 300), want{" port": 0, "c1 uprobe": 200, "c1 qp_counter": 100}},
			{d(400).two().reports(1, "d", up, 400).reports(1, "d", qc, 400), want{" port": 0, "c1 uprobe": 200, "c1 qp_counter": 200}},
		},
		"a method that did not answer once is made up for": {
			{d(0).two().reports(1, "d", up, 0), want{" port": 0, "c1 uprobe": 0}},
			{d(100).two(), want{" port": 100, "c1 uprobe": 0}},
			{d(300).two().reports(1, "d", up, 300), want{" port": 100, "c1 uprobe": 200}},
			{d(600).two().reports(1, "d", up, 400), want{" port": 200, "c1 uprobe": 400}},
		},
		"bytes credited by the port are not credited by a method later": {
			{d(0).holds(1, "d", 1, 1).reports(1, "d", up, 0), want{" port": 0, "c1 uprobe": 0}},
			{d(100).holds(1, "d", 1, 1), want{" port": 0, "c1 uprobe": 0, "c1 port": 100}},
			{d(200).two().reports(1, "d", up, 200), want{" port": 100, "c1 uprobe": 0, "c1 port": 100}},
			{d(300).two().reports(1, "d", up, 300), want{" port": 100, "c1 uprobe": 100, "c1 port": 100}},
		},
		"nor when they answer first while the device is not read": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1), want{" port": 0, "c1 port": 100}},
			{newNode().kernel("d", 1).two().reports(1, "d", up, 100), want{"c1 port": 100, "c1 uprobe": 0}},
			{d(200).two().reports(1, "d", up, 150), want{" port": 100, "c1 port": 100, "c1 uprobe": 0}},
			{d(300).two().reports(1, "d", up, 160), want{" port": 190, "c1 port": 100, "c1 uprobe": 10}},
		},
		"nor when they did, and then did not": {
			{d(0).holds(1, "d", 1, 1).reports(3, "d", up, 0), want{" port": 0, "c3 uprobe": 0}},
			{
				newNode().kernel("d", 1).holds(1, "d", 1, 1).reports(3, "d", up, 0).reports(1, "d", up, 100),
				want{"c1 uprobe": 0, "c3 uprobe": 0},
			},
			{d(100).holds(1, "d", 1, 1), want{" port": 0, "c1 port": 100, "c1 uprobe": 0, "c3 uprobe": 0}},
			{d(200).two().reports(1, "d", up, 100), want{" port": 100, "c1 port": 100, "c1 uprobe": 0, "c3 uprobe": 0}},
		},
		"posted and not yet sent": {
			{d(0).two(), want{" port": 0}},
			{d(60).two().reports(1, "d", up, 100), want{" port": 0, "c1 uprobe": 60}},
			{d(80).two().reports(1, "d", up, 100), want{" port": 0, "c1 uprobe": 80}},
			{d(200).two().reports(1, "d", up, 100), want{" port": 100, "c1 uprobe": 100}},
		},
		"an owner that reports too much takes nothing from the others": {
			{d(0).two(), want{" port": 0}},
			{
				d(1000).two().reports(1, "d", up, math.MaxUint64).reports(2, "d", up, 400),
				want{" port": 0, "c1 uprobe": 600, "c2 uprobe": 400},
			},
			{
				d(2000).two().reports(1, "d", up, math.MaxUint64).reports(2, "d", up, 800),
				want{" port": 0, "c1 uprobe": 1200, "c2 uprobe": 800},
			},
		},
		"an excess is dropped with the last object": {
			{d(0).two(), want{" port": 0}},
			{d(0).two().reports(1, "d", up, 500), want{" port": 0, "c1 uprobe": 0}},
			{d(0).holds(2, "d", 1, 1).holds(1, "d", 0, 1).reports(1, "d", up, 500), want{" port": 0, "c1 uprobe": 0}},
			{d(0).holds(2, "d", 1, 1).holds(1, "d", 0, 1).reports(1, "d", up, 500), want{" port": 0, "c1 uprobe": 0}},
			{
				d(100).holds(2, "d", 1, 1).holds(3, "d", 1, 1).holds(1, "d", 0, 1).reports(1, "d", up, 500),
				want{" port": 100, "c1 uprobe": 0},
			},
		},
		"an excess is not dropped earlier": {
			{d(0).two(), want{" port": 0}},
			{d(0).two().reports(1, "d", up, 500), want{" port": 0, "c1 uprobe": 0}},
			{d(0).holds(2, "d", 1, 1).holds(1, "d", 0, 1).reports(1, "d", up, 500), want{" port": 0, "c1 uprobe": 0}},
			{d(100).holds(2, "d", 1, 1).holds(1, "d", 0, 1).reports(1, "d", up, 500), want{" port": 0, "c1 uprobe": 100}},
		},
		"an excess is credited by the port to an exclusive owner": {
			{d(0).two(), want{" port": 0}},
			{d(60).two().reports(1, "d", up, 100), want{" port": 0, "c1 uprobe": 60}},
			{d(60).holds(1, "d", 1, 1).reports(1, "d", up, 100), want{" port": 0, "c1 uprobe": 60}},
			{d(60).holds(1, "d", 1, 1).reports(1, "d", up, 100), want{" port": 0, "c1 uprobe": 60}},
			{d(100).holds(1, "d", 1, 1).reports(1, "d", up, 100), want{" port": 0, "c1 uprobe": 60, "c1 port": 40}},
			{d(200).two().reports(1, "d", up, 100), want{" port": 100, "c1 uprobe": 60, "c1 port": 40}},
		},
		"an owner that moves bytes uses the device": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).reports(2, "d", up, 30), want{" port": 70, "c2 uprobe": 30}},
		},
		"an unattributed cgroup that moves bytes uses the device": {
			{d(0).holds(1, "d", 1, 1).reports(90, "d", up, 0), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).reports(90, "d", up, 30), want{" port": 100}},
		},
		"a queue pair of an unattributed cgroup": {
			{d(0).holds(1, "d", 1, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).without(func(n *node) { n.Domains[0].Count++ }), want{" port": 100}},
		},
		"objects of an unattributed cgroup, created and gone": {
			{d(0).holds(1, "d", 1, 1).holds(90, "d", 0, 1), want{" port": 0}},
			{d(100).holds(1, "d", 1, 1).holds(90, "d", 0, 1), want{" port": 100}},
			{d(200).holds(1, "d", 1, 1).holds(90, "d", 0, 1), want{" port": 100, "c1 port": 100}},
			{d(300).holds(1, "d", 1, 1).holds(90, "d", 0, 2), want{" port": 200, "c1 port": 100}},
		},
		"a share with an exact better method does not rest": {
			{d(0).two(), want{" port": 0}},
			{
				d(100).two().reports(1, "d", up, 10, rests).reports(1, "d", qc, 40),
				want{" port": 60, "c1 uprobe": 0, "c1 qp_counter": 40},
			},
		},
		"the counter was reset": {
			{d(1000).holds(1, "d", 1, 1), want{" port": 1000}},
			{d(40).holds(1, "d", 1, 1), want{" port": 1000, "c1 port": 40}},
			{d(100).holds(1, "d", 1, 1), want{" port": 1000, "c1 port": 100}},
		},
		"a device that was not read": {
			{d(0).holds(1, "d", 1, 1).reports(1, "d", up, 0), want{" port": 0, "c1 uprobe": 0}},
			{newNode().kernel("d", 1).holds(1, "d", 1, 1).holds(2, "d", 1, 1).reports(1, "d", up, 100), want{"c1 uprobe": 0}},
			{d(300).holds(1, "d", 1, 1).reports(1, "d", up, 200), want{" port": 100, "c1 uprobe": 200}},
			{d(400).holds(1, "d", 1, 1).reports(1, "d", up, 300), want{" port": 100, "c1 uprobe": 300}},
			{d(500).holds(1, "d", 1, 1).reports(1, "d", up, 400), want{" port": 100, "c1 uprobe": 300, "c1 port": 100}},
		},
		"one of two cgroups rests": {
			{d(0).two(), want{" port": 0}},
			{d(1000).two().twin().reports(1, "d", up, 10, rests).reports(11, "d", up, 500), want{" port": 490, "c1 uprobe": 510}},
			{d(2000).two().twin().reports(1, "d", up, 10, rests).reports(11, "d", up, 900), want{" port": 1090, "c1 uprobe": 910}},
			{d(3000).two().twin().reports(1, "d", up, 110).reports(11, "d", up, 900), want{" port": 1990, "c1 uprobe": 1010}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l testLedger
			for i, s := range steps {
				if diff := cmp.Diff(s.want, sent(t, &l, s.node)); diff != "" {
					t.Errorf("refresh %d:\n%s", i+1, diff)
				}
			}
		})
	}
}

// TestExclusive: the port counters belong to the only user, until a second user comes.
func TestExclusive(t *testing.T) {
	var l testLedger
	exclusive := func(n *node) (owners []int) {
		l.attribute(n)
		for _, cgroup := range []model.CgroupID{1, 2} {
			if id := l.owners.Of(cgroup); id != identity.Unattributed && l.Exclusive(id, "d") {
				owners = append(owners, int(cgroup))
			}
		}
		return owners
	}
	for i, step := range []struct {
		node *node
		want []int
	}{
		{newNode().device("d", 0, 0).holds(1, "d", 1, 1), nil}, // bytes from before
		{newNode().device("d", 10, 0).holds(1, "d", 1, 1), []int{1}},
		{newNode().device("d", 10, 0).holds(1, "d", 1, 1), []int{1}},
		{newNode().device("d", 20, 0).two(), nil},
		{newNode().device("d", 30, 0).holds(2, "d", 1, 1), nil},
		{newNode().device("d", 30, 0).holds(2, "d", 1, 1), nil}, // container 1 may have used it before
		{newNode().device("d", 40, 0).holds(2, "d", 1, 1), []int{2}},
	} {
		if got := exclusive(step.node); fmt.Sprint(got) != fmt.Sprint(step.want) {
			t.Errorf("step %d: exclusive %v, want %v", i, got, step.want)
		}
	}
	if l.Exclusive(l.owners.Of(2), "none") {
		t.Error("exclusive on a device that does not exist")
	}
}

// TestLedgerWithoutCounters: reports are credited as they are.
func TestLedgerWithoutCounters(t *testing.T) {
	rxe := func() *node {
		n := newNode()
		n.HCAs = []model.HCA{{Name: "d", Ports: []model.Port{{Number: 1, LinkLayer: "Ethernet"}}}}
		return n.kernel("d", 1).holds(1, "d", 1, 1)
	}
	var l testLedger
	for i, s := range []struct {
		node *node
		want want
	}{
		{rxe().reports(1, "d", up, 100), want{"c1 uprobe": 100}},
		{rxe().reports(1, "d", up, 300).reports(90, "d", up, 5), want{"c1 uprobe": 300}},
		{rxe().reports(1, "d", up, 20), want{"c1 uprobe": 320}},
		{rxe().reports(1, "d", up, math.MaxUint64), want{"c1 uprobe": math.MaxUint64}},
		{rxe().reports(1, "d", up, 7), want{"c1 uprobe": math.MaxUint64}},
	} {
		if diff := cmp.Diff(s.want, sent(t, &l, s.node)); diff != "" {
			t.Errorf("refresh %d:\n%s", i+1, diff)
		}
	}
	// A device without an HCA may have counters: its reports are credited only after a while.
	l = testLedger{}
	for i := range maxMissedRefreshes + 2 {
		got := sent(t, &l, newNode().reports(1, "x", up, 9))
		if n := got["x c1 uprobe"]; (n == 9) != (i > maxMissedRefreshes-1) {
			t.Errorf("refresh %d: %v", i+1, got)
		}
	}
}

// TestLedgerOneDirection: a direction without a counter has no unattributed share.
func TestLedgerOneDirection(t *testing.T) {
	n := newNode().device("d", 100, 0).two()
	p := &n.HCAs[0].Ports[0]
	p.Counters = p.Counters[:1]
	n.Traffic = append(n.Traffic, model.Traffic{Cgroup: 1, Device: "d", Method: up, Direction: model.Receive, Bytes: 9})
	var l testLedger
	a := l.attribute(n)
	if d := cmp.Diff([]attribution.TrafficShare{
		{Device: "d", Method: model.MethodPort, Direction: model.Transmit, Bytes: 100},
		{Owner: 1, Device: "d", Method: up, Direction: model.Receive, Bytes: 9},
	}, a.Traffic); d != "" {
		t.Error(d)
	}
}

// TestLedgerSaturated: a saturated 32-bit counter is ignored, and reports are credited without it.
func TestLedgerSaturated(t *testing.T) {
	narrow := func(words, bytes uint64) *node {
		n := newNode().device("d", words*4, 0)
		n.HCAs[0].Ports[0].Counters = n.HCAs[0].Ports[0].Counters[:1]
		return n.two().reports(1, "d", up, bytes)
	}
	var l testLedger
	sent(t, &l, narrow(math.MaxUint32-10, 0))
	for range maxMissedRefreshes {
		got := sent(t, &l, narrow(math.MaxUint32, 1000))
		if diff := cmp.Diff(want{" port": 4 * (math.MaxUint32 - 10), "c1 uprobe": 0}, got); diff != "" {
			t.Fatal(diff)
		}
	}
	if diff := cmp.Diff(want{"c1 uprobe": 1000}, sent(t, &l, narrow(math.MaxUint32, 1000))); diff != "" {
		t.Error(diff)
	}
	for i, s := range []struct {
		words, bytes uint64
		want         want
	}{
		{5, 1010, want{" port": 4 * (math.MaxUint32 - 10), "c1 uprobe": 1000}}, // reset: 20 bytes since
		{100, 1020, want{" port": 4*(math.MaxUint32-10) + 360, "c1 uprobe": 1020}},
	} {
		if diff := cmp.Diff(s.want, sent(t, &l, narrow(s.words, s.bytes))); diff != "" {
			t.Errorf("%d: %s", i, diff)
		}
	}
	wide := newNode().device("d", 4*math.MaxUint32, 0)
	if diff := cmp.Diff(want{" port": 4 * math.MaxUint32}, sent(t, &testLedger{}, wide)); diff != "" {
		t.Errorf("64 bits: %s", diff)
	}
}

// TestLedgerExpire: the bytes of an owner become unattributed when it expires, and not before.
func TestLedgerExpire(t *testing.T) {
	var l testLedger
	at := func(bytes uint64) *node { return newNode().device("d", bytes, 0) }
	sent(t, &l, at(0).two())
	sent(t, &l, at(100).two().reports(1, "d", up, 70).reports(2, "d", up, 20))
	for i := range maxMissedRefreshes {
		// No cgroup is listed.
		if diff := cmp.Diff(want{" port": 10, "c1 uprobe": 70, "c2 uprobe": 20}, sent(t, &l, at(100))); diff != "" {
			t.Fatalf("%d: %s", i, diff)
		}
	}
	got := sent(t, &l, at(100).holds(1, "d", 1, 1))
	if diff := cmp.Diff(want{" port": 30, "c1 uprobe": 70, "c1 port": 0}, got); diff != "" {
		t.Error(diff)
	}
	for range maxMissedRefreshes + 1 {
		got = sent(t, &l, at(100))
	}
	if diff := cmp.Diff(want{" port": 100}, got); diff != "" {
		t.Error(diff)
	}
	if len(l.accounts) > 0 {
		t.Errorf("%d accounts are left", len(l.accounts))
	}
	// Rows are kept while their source does not answer, and are dropped afterwards.
	for range maxMissedRefreshes + 1 {
		sent(t, &l, at(100).reports(3, "d", up, 0))
	}
	if len(l.rows) != 1 {
		t.Errorf("%d rows are left", len(l.rows))
	}
}

// TestLedgerWithoutProbe: an owner keeps its bytes while one of its cgroups is known, even if no source lists the
// cgroup, and expires once the cgroup is forgotten, with a probe or without.
func TestLedgerWithoutProbe(t *testing.T) {
	at := func(bytes uint64, probe bool) *node {
		n := newNode().device("d", bytes, 0)
		if probe {
			return n.holds(1, "d", 1, 1)
		}
		n.Objects = nil
		return n
	}
	var l testLedger
	sent(t, &l, at(0, true))
	sent(t, &l, at(100, true))
	for range 2 * maxMissedRefreshes {
		if d := cmp.Diff(want{" port": 100, "c1 port": 100}, sent(t, &l, at(200, false))); d != "" {
			t.Fatal(d)
		}
	}
	sent(t, &l, at(200, false).reports(2, "d", up, 30))
	l.forget([]model.CgroupID{2})
	for range maxMissedRefreshes + 1 {
		sent(t, &l, at(200, false))
	}
	if d := cmp.Diff(want{" port": 100, "c1 port": 100}, sent(t, &l, at(200, false))); d != "" {
		t.Error(d)
	}
	if got := sent(t, &l, at(300, true)); got["c1 port"] != 100 || got[" port"] != 200 {
		t.Error(got)
	}
}

// TestLedgerGivenVF: a virtual function that is allocated to one container belongs to it also without a probe; a
// physical function requires a probe.
func TestLedgerGivenVF(t *testing.T) {
	at := func(bytes uint64, vf, allocated bool) *node {
		n := vfNode(0, 0, true)
		n.HCAs, n.VFs, n.Objects = n.HCAs[:0], nil, nil
		n.device("d", bytes, 0)
		n.HCAs[0].PCIAddress, n.HCAs[0].VF = "0000:18:00.2", vf
		if !allocated {
			n.Allocations = nil
			n.Containers[0].Devices, n.HCAs[0].CharDevice = []string{"/dev/infiniband/uverbs0"}, "uverbs0"
		}
		return n
	}
	for _, tt := range []struct {
		vf, allocated bool
		want          want
	}{
		{true, true, want{" port": 200, "c1 port": 100}},
		{false, true, want{" port": 300}},
		{true, false, want{" port": 300}},
	} {
		var l testLedger
		var got want
		for i := range uint64(3) {
			got = sent(t, &l, at(100*(i+1), tt.vf, tt.allocated))
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("VF %v, allocated %v:\n%s", tt.vf, tt.allocated, d)
		}
	}
	// The probe stops answering after another owner had objects on the device.
	var l testLedger
	with := func(bytes uint64) *node {
		n := at(bytes, true, true)
		n.Objects = []model.Objects{}
		return n.holds(1, "d", 1, 1).holds(2, "d", 1, 1)
	}
	for i := range uint64(4) {
		sent(t, &l, with(100*i))
	}
	sent(t, &l, at(400, true, true))
	if d := cmp.Diff(want{" port": 500}, sent(t, &l, at(500, true, true))); d != "" {
		t.Error(d)
	}
}

// TestLedgerLateName: a container keeps the bytes that it moved before its runtime named it.
func TestLedgerLateName(t *testing.T) {
	early := entity{Workload: "pod:u1/c1", ContainerID: "c1", PodUID: "u1", Cgroup: "/1"}
	at := func(bytes uint64, names ...entity) *node {
		n := newNode().device("d", bytes, 0).holds(1, "d", 1, 1).reports(1, "d", up, bytes)
		for i, e := range names {
			n.Entities[model.CgroupID(i)+1] = e
		}
		return n
	}
	owners := func(l *testLedger, n *node) map[string]uint64 {
		got := map[string]uint64{}
		a := l.attribute(n)
		for _, s := range a.Traffic {
			if s.Direction == model.Transmit {
				got[fmt.Sprint(a.Owners[s.Owner].Workload, " ", s.Method)] += s.Bytes
			}
		}
		return got
	}
	t.Run("later", func(t *testing.T) {
		var l testLedger
		for i := range uint64(3) {
			owners(&l, at(i*100, early))
		}
		for i := range uint64(2 * maxMissedRefreshes) {
			got := owners(&l, at(300+i*100))
			if d := cmp.Diff(want{" port": 0, "ns/p1/c port": 300 + i*100, "ns/p1/c uprobe": 0}, got); d != "" {
				t.Fatalf("%d: %s", i, d)
			}
		}
		if len(l.accounts) != 3 {
			t.Errorf("%d accounts", len(l.accounts))
		}
	})
	t.Run("one cgroup after the other", func(t *testing.T) {
		named := newNode().Entities[1]
		other := early
		other.Cgroup = "/1/2"
		both := func(bytes, first, second uint64, names ...entity) *node {
			return at(0, names...).reports(2, "d", up, second).without(func(n *node) {
				n.HCAs[0].Ports[0].Counters[0].Value = bytes / 4
				n.Traffic[0].Bytes = first
			}).holds(2, "d", 1, 1).holds(3, "d", 1, 1)
		}
		var l testLedger
		owners(&l, both(0, 0, 0, early, other))
		owners(&l, both(400, 100, 200, early, other))
		owners(&l, both(500, 150, 250, named, other))
		got := owners(&l, both(600, 160, 290, named, named))
		if d := cmp.Diff(want{" port": 150, "ns/p1/c uprobe": 450}, got); d != "" {
			t.Error(d)
		}
		if len(l.accounts) != 1 {
			t.Errorf("%d accounts", len(l.accounts))
		}
	})
	t.Run("claimed", func(t *testing.T) {
		claimed := early
		claimed.Claimed = true
		var l testLedger
		for i := range uint64(3) {
			owners(&l, at(i*100, claimed))
		}
		if got := owners(&l, at(300)); got["pod:u1/c1 port"] != 200 {
			t.Error(got)
		}
	})
}

// TestLedgerRenames: bytes follow each new name that identity proves, also the name of a pod that was known by its UID,
// and of a container that is found by its cgroup path.
func TestLedgerRenames(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after entity
		listed        []model.Container
		want          string
	}{
		"a pod by its UID": {
			before: entity{Workload: "pod:u9", PodUID: "u9", Cgroup: "/u9"},
			after:  entity{Workload: "pod:u9", PodUID: "u9", Cgroup: "/u9", Namespace: "ns", Pod: "p9"},
			want:   "ns/p9",
		},
		"a container by its path": {
			before: entity{Workload: "cgroup:/web", Cgroup: "/web"},
			after:  entity{Workload: "cgroup:/web", Cgroup: "/web"},
			listed: []model.Container{{ID: "c9", Runtime: "containerd", Name: "web", Cgroup: "/web"}},
			want:   "containerd:web",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l testLedger
			workloads := func(bytes uint64, e entity, listed []model.Container) map[string]uint64 {
				n := newNode().device("d", bytes, 0).holds(1, "d", 1, 1)
				n.Entities[1], n.listed = e, listed
				a := l.attribute(n)
				got := map[string]uint64{}
				for _, s := range a.Traffic {
					if s.Direction == model.Transmit {
						got[a.Owners[s.Owner].Workload] += s.Bytes
					}
				}
				return got
			}
			for i := range uint64(3) {
				workloads(100*i, tt.before, nil)
			}
			got := workloads(300, tt.after, tt.listed)
			if d := cmp.Diff(map[string]uint64{"": 0, tt.want: 300}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestLedgerVanished: reports on an unlisted device are credited after a while, and are part of its total when it comes
// back.
func TestLedgerVanished(t *testing.T) {
	at := func(bytes uint64, seen bool) *node {
		n := newNode().device("d", bytes, 0).two().reports(1, "d", up, bytes)
		if !seen {
			n.HCAs = n.HCAs[:0]
		}
		return n
	}
	var l testLedger
	sent(t, &l, at(0, true))
	sent(t, &l, at(100, true))
	for i := range uint64(2 * maxMissedRefreshes) {
		got := sent(t, &l, at(200+i*100, false))
		if away := i >= maxMissedRefreshes; away != (got["c1 uprobe"] == 200+i*100) {
			t.Errorf("%d: %v", i, got)
		}
	}
	if d := cmp.Diff(want{" port": 1000, "c1 uprobe": 4000}, sent(t, &l, func() *node {
		n := at(4000, true)
		n.HCAs[0].Ports[0].Counters[0].Value = 5000 / 4
		return n
	}())); d != "" {
		t.Error(d)
	}
	// A refresh without HCAs does not count as missed.
	l = testLedger{}
	sent(t, &l, at(0, true))
	for range 2 * maxMissedRefreshes {
		if got := sent(t, &l, at(100, false).without(func(n *node) { n.HCAs = nil })); got["c1 uprobe"] != 0 {
			t.Fatal(got)
		}
	}
}

// TestLedgerForgetsAbsentDevices: devices that are not listed and have no shares do not pile up.
func TestLedgerForgetsAbsentDevices(t *testing.T) {
	var l testLedger
	for i := range maxAbsent + 2 {
		l.attribute(newNode().device(fmt.Sprint("d", i), 0, 0))
	}
	if n := len(l.order); n > maxAbsent+1 || n != len(l.devices) {
		t.Errorf("%d devices", n)
	}
}

// TestLedgerRemembersAbsentOwner: an owner that is unlisted for a moment is shown as before.
func TestLedgerRemembersAbsentOwner(t *testing.T) {
	var l testLedger
	at := func() *node { return newNode().device("d", 100, 0) }
	before := l.attribute(at().two().reports(1, "d", up, 70))
	after := l.attribute(at())
	info := func(a attribution.Attribution) attribution.Info {
		for _, i := range a.Infos {
			if a.Owners[i.Owner].ContainerID == "c1" {
				i.Owner = 0
				return i
			}
		}
		return attribution.Info{}
	}
	if diff := cmp.Diff(info(before), info(after)); diff != "" || info(before).Cgroup == "" {
		t.Error(diff)
	}
}

// vfNode returns a PF with a virtual function that is allocated to pod p1. Its statistics
// differ in each refresh.
func vfNode(pf, vf uint64, allocated bool) *node {
	n := newNode().device("pf", pf, 0)
	n.HCAs[0].PCIAddress = "0000:18:00.0"
	n.HCAs[0].Ports[0].LinkLayer = "InfiniBand"
	n.VFs = []model.VF{{PF: "pf", PCIAddress: "0000:18:00.2", Counted: true, TransmitBytes: vf, Look: vf}}
	n.Containers = []model.Container{{
		ID: "c1", Name: "c", Namespace: "ns", Pod: "p1", PodUID: "u1", Status: model.ContainerRunning,
	}}
	if allocated {
		n.Allocations = []model.Allocation{{
			Namespace: "ns", Pod: "p1", Container: "c", Resource: "nvidia.com/mlnx", ID: "0000:18:00.2",
		}}
	}
	return n
}

// given allocates the function to another cgroup's container.
func (n *node) given(to uint64) *node {
	c, a := &n.Containers[0], &n.Allocations[0]
	c.ID, c.Pod, c.PodUID = fmt.Sprint("c", to), fmt.Sprint("p", to), fmt.Sprint("u", to)
	a.Pod = c.Pod
	return n
}

// other adds another container of pod p1 that has the device node of the function's HCA.
func (n *node) other() *node {
	n.Containers = append(n.Containers, model.Container{
		ID: "c3", Name: "other", Namespace: "ns", Pod: "p1", PodUID: "u1", Status: model.ContainerRunning,
		Devices: []string{"/dev/infiniband/uverbs7"},
	})
	return n
}

// hca adds the HCA of the virtual function.
func (n *node) hca(h model.HCA) *node {
	h.PCIAddress, h.VF, h.PF = "0000:18:00.2", true, "pf"
	n.HCAs = append(n.HCAs, h)
	return n
}

func (n *node) ethernet() *node {
	n.HCAs[0].Ports[0].LinkLayer = "Ethernet"
	return n
}

func TestLedgerVFs(t *testing.T) {
	const pci = "0000:18:00.2"
	moved := func(n *node, nodes ...string) *node {
		n.Namespaces = []model.Namespace{{Inode: 7, Cgroup: 1}}
		n.Containers[0].Devices = nodes
		return n.hca(model.HCA{Name: "d", Netns: 7, CharDevice: "uverbs7"})
	}
	own := func(vf, port uint64) *node {
		n := vfNode(0, vf, true).device("d", port, 0)
		h := n.HCAs[1]
		n.HCAs = n.HCAs[:1]
		return n.hca(h)
	}
	type step struct {
		node *node
		want want
	}
	for name, steps := range map[string][]step{
		"in a virtual machine": {
			{vfNode(10*4, 100, true), want{"pf  port": 40, pci + "  port": 100}},
			{vfNode(20*4, 300, true), want{"pf  port": 80, pci + "  port": 300}},
			{vfNode(30*4, 350, true), want{"pf  port": 120, pci + "  port": 300, pci + " c1 port": 50}},
		},
		"on Ethernet, where not all of it is RDMA": {
			{vfNode(0, 100, true).ethernet(), want{"pf  port": 0}},
			{vfNode(0, 300, true).ethernet(), want{"pf  port": 0}},
		},
		"unassigned": {
			{vfNode(0, 100, false), want{"pf  port": 0, pci + "  port": 100}},
			{vfNode(0, 300, false), want{"pf  port": 0, pci + "  port": 300}},
		},
		"allocated in between": {
			{vfNode(0, 100, false), want{"pf  port": 0, pci + "  port": 100}},
			{vfNode(0, 300, true), want{"pf  port": 0, pci + "  port": 300}},
			{vfNode(0, 400, true), want{"pf  port": 0, pci + "  port": 400}},
			{vfNode(0, 500, true), want{"pf  port": 0, pci + "  port": 400, pci + " c1 port": 100}},
		},
		"allocated to another pod between two readings": {
			{vfNode(0, 100, true), want{"pf  port": 0, pci + "  port": 100}},
			{vfNode(0, 100, true), want{"pf  port": 0, pci + "  port": 100}},
			{vfNode(0, 200, true), want{"pf  port": 0, pci + "  port": 200}},
			{vfNode(0, 300, true), want{"pf  port": 0, pci + "  port": 200, pci + " c1 port": 100}},
			{vfNode(0, 300, true).given(2), want{"pf  port": 0, pci + "  port": 200, pci + " c1 port": 100}},
			{vfNode(0, 300, true).given(2), want{"pf  port": 0, pci + "  port": 200, pci + " c1 port": 100}},
			{vfNode(0, 900, true).given(2), want{"pf  port": 0, pci + "  port": 800, pci + " c1 port": 100}},
			{vfNode(0, 950, true).given(2), want{"pf  port": 0, pci + "  port": 850, pci + " c1 port": 100}},
			{
				vfNode(0, 999, true).given(2),
				want{"pf  port": 0, pci + "  port": 850, pci + " c1 port": 100, pci + " c2 port": 49},
			},
		},
		"in the network namespace of a pod with its node in a container": {
			{moved(vfNode(0, 100, false), "/dev/infiniband/uverbs7"), want{"pf  port": 0, " port": 100}},
			{moved(vfNode(0, 150, false), "/dev/infiniband/uverbs7"), want{"pf  port": 0, " port": 150}},
			{moved(vfNode(0, 160, false), "/dev/infiniband/uverbs7"), want{"pf  port": 0, " port": 150, "c1 port": 10}},
		},
		"in the network namespace of a pod without its node": {
			{moved(vfNode(0, 100, false)), want{"pf  port": 0, " port": 100}},
			{moved(vfNode(0, 150, false)), want{"pf  port": 0, " port": 150}},
			{moved(vfNode(0, 160, false)), want{"pf  port": 0, " port": 150, "ns/p1 port": 10}},
		},
		"in the network namespace of a pod with its node in two containers": {
			{moved(vfNode(0, 100, false).other(), "/dev/infiniband/uverbs7"), want{"pf  port": 0, " port": 100}},
			{moved(vfNode(0, 150, false).other(), "/dev/infiniband/uverbs7"), want{"pf  port": 0, " port": 150}},
			{
				moved(vfNode(0, 160, false).other(), "/dev/infiniband/uverbs7"),
				want{"pf  port": 0, " port": 150, "ns/p1 port": 10},
			},
		},
		"used by another": {
			{moved(vfNode(0, 100, false)), want{"pf  port": 0, " port": 100}},
			{moved(vfNode(0, 150, false)), want{"pf  port": 0, " port": 150}},
			{moved(vfNode(0, 160, false)).holds(2, "d", 1, 1), want{"pf  port": 0, " port": 160}},
		},
		"its HCA gets known, and is lost again": {
			{vfNode(0, 100, true), want{"pf  port": 0, pci + "  port": 100}},
			{vfNode(0, 120, true), want{"pf  port": 0, pci + "  port": 120}},
			{vfNode(0, 300, true), want{"pf  port": 0, pci + "  port": 120, pci + " c1 port": 180}},
			{moved(vfNode(0, 350, true)), want{"pf  port": 0, " port": 120, "c1 port": 230}},
			{vfNode(0, 400, true), want{"pf  port": 0, " port": 120, "c1 port": 280}},
		},
		"visible with its own counters, then moved": {
			{own(1000, 80).holds(1, "d", 1, 1), want{"pf  port": 0, " port": 80}},
			{own(2000, 100).holds(1, "d", 1, 1), want{"pf  port": 0, " port": 80, "c1 port": 20}},
			{moved(vfNode(0, 3000, true)), want{"pf  port": 0, " port": 80, "c1 port": 20}}, // other counters
			{moved(vfNode(0, 3500, true)), want{"pf  port": 0, " port": 80, "c1 port": 520}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l testLedger
			for i, s := range steps {
				if diff := cmp.Diff(s.want, sent(t, &l, s.node)); diff != "" {
					t.Errorf("refresh %d:\n%s", i+1, diff)
				}
			}
		})
	}
}

// TestLedgerPod: a device that is assigned to one pod and used by several of its containers belongs to the pod.
func TestLedgerPod(t *testing.T) {
	at := func(bytes uint64, given bool) *node {
		n := newNode().device("d", bytes, 0)
		e := n.Entities[1]
		e.Workload, e.Container, e.ContainerID = "ns/p1/other", "other", "c2"
		n.Entities[2] = e
		n.HCAs[0].PCIAddress = "0000:18:00.2"
		n.Containers = []model.Container{
			{ID: "c1", Name: "c", Namespace: "ns", Pod: "p1", Status: model.ContainerRunning},
			{ID: "c2", Name: "other", Namespace: "ns", Pod: "p1", Status: model.ContainerRunning},
		}
		if given {
			n.Allocations = []model.Allocation{{
				Namespace: "ns", Pod: "p1", Container: "c", Resource: "r/vf", ID: "0000:18:00.2",
			}}
		}
		return n.two()
	}
	for given, want := range map[bool]want{
		true: {" port": 40, "ns/p1 port": 60}, false: {" port": 100},
	} {
		var l testLedger
		sent(t, &l, at(40, given))
		if diff := cmp.Diff(want, sent(t, &l, at(100, given))); diff != "" {
			t.Errorf("given away %v:\n%s", given, diff)
		}
	}
}

// TestLedgerPodThenMethod: if uprobes miss a while in which the port credited bytes to a pod, they do not credit these
// bytes again to its container.
func TestLedgerPodThenMethod(t *testing.T) {
	at := func(bytes uint64, users ...uint64) *node {
		n := newNode().device("d", bytes, 0)
		e := n.Entities[1]
		e.ContainerID, e.Container = "c2", "other"
		n.Entities[2] = e
		n.HCAs[0].PCIAddress = "0000:18:00.2"
		n.Containers = []model.Container{{ID: "c1", Name: "c", Namespace: "ns", Pod: "p1", Status: model.ContainerRunning}}
		n.Allocations = []model.Allocation{{Namespace: "ns", Pod: "p1", Container: "c", Resource: "r/vf", ID: "0000:18:00.2"}}
		for _, u := range users {
			n.holds(u, "d", 1, 1)
		}
		return n
	}
	var l testLedger
	sent(t, &l, at(0, 1, 2).reports(1, "d", up, 0))
	sent(t, &l, at(100, 1, 2))
	got := sent(t, &l, at(200, 1, 2, 3).reports(1, "d", up, 200))
	if d := cmp.Diff(want{" port": 100, "ns/p1 port": 100, "c1 uprobe": 0}, got); d != "" {
		t.Error(d)
	}
}

func TestPortFigures(t *testing.T) {
	for name, tt := range map[string]struct {
		pma, driver       []string
		transmit, receive uint64
	}{
		"pma":    {pma: []string{"port_xmit_data", "port_rcv_data", "unicast_rcv_packets"}, transmit: 4, receive: 8},
		"both":   {pma: []string{"port_xmit_data"}, driver: []string{"tx_bytes", "rx_bytes"}, transmit: 4},
		"efa":    {driver: []string{"tx_bytes", "tx_pkts", "rx_bytes", "send_bytes"}, transmit: 1, receive: 3},
		"rxe":    {driver: []string{"sent_pkts", "sent_bytes", "rcvd_bytes"}, transmit: 2, receive: 3},
		"irdma":  {driver: []string{"ip4InOctets", "ip4OutOctets", "ip6InOctets", "ip6OutOctets"}, transmit: 6, receive: 4},
		"erdma":  {driver: []string{"tx_bytes_cnt", "rx_bytes_cnt"}, transmit: 1, receive: 2},
		"two":    {driver: []string{"tx_bytes_cnt", "tx_bytes"}, transmit: 2},
		"siw":    {},
		"no pma": {pma: []string{"port_xmit_wait"}, driver: []string{"rdma_tx_bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			var p model.Port
			for i, n := range tt.pma {
				p.Counters = append(p.Counters, model.Counter{Name: n, Value: uint64(i + 1)})
			}
			for i, n := range tt.driver {
				p.HWCounters = append(p.HWCounters, model.Counter{Name: n, Value: uint64(i + 1)})
			}
			var got [directions]uint64
			for _, f := range portCounters(nil, &model.HCA{Ports: []model.Port{p}}) {
				got[f.direction] += f.value
			}
			if want := [directions]uint64{tt.transmit, tt.receive}; got != want {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

func TestIsMLX5(t *testing.T) {
	for typ, want := range map[string]bool{"MT4129": true, "MT4113": true, "MT4103": false, "": false, "MT": false} {
		if got := (&device{hca: &model.HCA{Type: typ}}).isMLX5(); got != want {
			t.Errorf("%q: %v", typ, got)
		}
	}
}

func TestFill(t *testing.T) {
	const most = math.MaxUint64
	for _, tt := range []struct {
		n          uint64
		want, got  []uint64
		left, rest uint64 // of n, and of the wants
	}{
		{n: 10, want: []uint64{3, 0, 4}, got: []uint64{3, 0, 4}, left: 3},
		{n: 7, want: []uint64{3, 0, 4}, got: []uint64{3, 0, 4}},
		{n: 10, want: []uint64{9, 8}, got: []uint64{5, 5}, rest: 7},
		{n: 11, want: []uint64{9, 9}, got: []uint64{5, 6}, rest: 7},
		{n: 10, want: []uint64{most, 2, 6, most - 8}, got: []uint64{3, 2, 2, 3}, rest: most},
		{n: 0, want: []uint64{5}, got: []uint64{0}, rest: 5},
		{n: 5, left: 5},
	} {
		var accounts []*account
		for _, n := range tt.want {
			accounts = append(accounts, &account{report: n})
		}
		left := fill(tt.n, accounts, func(a *account) *uint64 { return &a.report })
		sum, rest := left, uint64(0)
		for i, a := range accounts {
			sum += a.credited
			rest = plus(rest, a.report)
			if a.credited+a.report != tt.want[i] || len(tt.got) > 0 && a.credited != tt.got[i] {
				t.Errorf("%d for %v: number %d has %d", tt.n, tt.want, i, a.credited)
			}
		}
		if sum != tt.n || left != tt.left || len(tt.got) > 0 && rest != tt.rest {
			t.Errorf("%d for %v: %d left and %d wanted, the sum is %d", tt.n, tt.want, left, rest, sum)
		}
	}
}
