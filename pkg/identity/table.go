// SPDX-License-Identifier: Apache-2.0

// Package identity finds the owners of cgroups and containers and gives each a number that
// stays as long as the owner exists.
//
// The path of a cgroup contains an id or a unit. Runtimes and the kubelet add names, often
// later. Both are facts of a refresh: the package has no clock and no I/O.
package identity

import (
	"cmp"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
)

// Table holds the owners of all known cgroups. One goroutine calls its methods; only Workload, OwnerOf and LabelOf may
// be called concurrently. The zero Table is ready.
//
// An owner is recognized by its anchors: the id of its container, the UID of its pod, or the path of its job. A new
// name with the same anchor changes the labels and not the number. Owners with equal labels are one owner. A container
// id that a user could have claimed (model.Cgroup.Claimed) is not an anchor, and an owner that ever had a claimed
// cgroup has no anchors: a claimed cgroup never follows another cgroup's name.
type Table struct {
	mu sync.RWMutex // against Workload, OwnerOf and LabelOf
	ownerSet
	cgroups map[model.CgroupID]*cgroup
	merges  []Merge
	left    []Merge // owners that cgroups left in this round; To is Unattributed if the cgroups went to several owners
}

// Merge states that everything of the owner From now belongs to the owner To.
type Merge struct{ From, To OwnerID }

type cgroup struct {
	name
	owner OwnerID
	seen  uint64 // the last round that listed the cgroup
}

// Resolve assigns the cgroups of s to owners (Cgroups, Containers, Pods). ids are the cgroups that occur in s: if s
// does not name a cgroup, it keeps its last name. Resolve returns the owners that became part of others: an owner whose
// labels equal another owner's, and an owner without an anchor whose cgroups now all belong to another owner.
func (t *Table) Resolve(s *model.Snapshot, ids []model.CgroupID) []Merge {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.init()
	t.begin()
	t.merges, t.left = nil, t.left[:0]
	if len(s.Cgroups) > 0 {
		names := newNames(s)
		for i := range s.Cgroups {
			t.resolve(names, &s.Cgroups[i])
		}
	}
	for _, id := range ids {
		if c := t.cgroups[id]; c != nil && c.seen != t.round {
			t.see(c.owner, &c.name)
		}
	}
	for i := range s.Containers {
		n := ofContainer(&s.Containers[i], name{})
		t.see(t.place(&n, true), &n)
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, uid := range []string{p.UID, p.StaticUID} {
			if _, known := t.byAnchor[anchor{pod: uid}]; known && uid != "" {
				t.place(&name{Owner: podOwner(p.Namespace, p.Name), PodUID: uid}, true)
			}
		}
	}
	for _, m := range t.left {
		if o := t.owners[m.From]; o != nil && o.cgroups == 0 && !o.claimed && len(o.anchors) == 0 && m.To != Unattributed {
			t.merge(m.From, m.To)
		}
	}
	return t.merges
}

func (t *Table) init() {
	if t.cgroups == nil {
		t.cgroups = map[model.CgroupID]*cgroup{}
		t.ownerSet = ownerSet{owners: []*owner{{}}, byLabels: map[Owner]OwnerID{}, byAnchor: map[anchor]OwnerID{}}
	}
}

// resolve assigns one cgroup to an owner. The last name applies until a runtime lists another name, or the pod becomes
// known.
func (t *Table) resolve(names *names, fact *model.Cgroup) {
	now, listed := names.refine(fact)
	if now.Workload == "" {
		return
	}
	c, known := t.cgroups[fact.ID]
	if !known {
		c = &cgroup{}
		t.cgroups[fact.ID] = c
	}
	switch {
	case now.isJob(): // runtimes do not list jobs
		listed = true
		now.User = cmp.Or(now.User, c.User)
	case !known:
	case !listed && c.holds(fact, &now):
		now = c.name
	case !listed:
		listed = c.Pod == "" && now.Pod != ""
	}
	c.name, c.seen = now, t.round
	owner := t.place(&now, listed)
	if owner != c.owner {
		t.leave(c.owner, owner)
		t.inherit(c.owner, owner)
		c.owner = owner
		t.owners[owner].cgroups++
	}
	if now.Claimed {
		t.claim(owner)
	}
	t.see(owner, &now)
}

// place returns the owner of a name, and adds the owner if it is new. A listed name sets the labels of the owner.
func (t *Table) place(n *name, listed bool) OwnerID {
	if n.Workload == "" {
		return Unattributed
	}
	a := n.anchor()
	anchored, ok := t.byAnchor[a]
	if a == (anchor{}) {
		ok = false
	}
	labeled, known := t.byLabels[n.Owner]
	switch {
	case ok && (!listed || known && labeled == anchored):
		return anchored
	case ok && known:
		t.merge(anchored, labeled)
		return labeled
	case ok:
		t.rename(anchored, n.Owner)
		return anchored
	case !known:
		labeled = t.add(n.Owner)
	}
	t.addAnchor(labeled, a)
	return labeled
}

func (t *Table) leave(from, to OwnerID) {
	if from == Unattributed {
		return
	}
	t.owners[from].cgroups--
	for i := range t.left {
		if m := &t.left[i]; m.From == from {
			if m.To != to {
				m.To = Unattributed
			}
			return
		}
	}
	t.left = append(t.left, Merge{from, to})
}

// merge makes the owner from a part of the owner to.
func (t *Table) merge(from, to OwnerID) {
	for _, c := range t.cgroups {
		if c.owner == from {
			c.owner = to
			t.owners[to].cgroups++
		}
	}
	for i := range t.left {
		if t.left[i].To == from {
			t.left[i].To = to
		}
	}
	t.inherit(from, to)
	o := t.owners[from]
	anchors := o.anchors
	t.remove(from)
	if o.claimed {
		t.claim(to)
	}
	for _, a := range anchors {
		t.addAnchor(to, a)
	}
	t.merges = append(t.merges, Merge{from, to})
}
