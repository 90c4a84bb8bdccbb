// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// ownerSet finds the owners of a Table by number, labels and anchor.
type ownerSet struct {
	owners   []*owner // by number; nil where the number is free
	free     []OwnerID
	freed    []OwnerID // in this round; free from the next round on
	byLabels map[Owner]OwnerID
	byAnchor map[anchor]OwnerID
	round    uint64 // counts calls of Resolve
}

type owner struct {
	labels Owner
	info   Info
	// reported are the labels that runtimes and the kubelet reported last. They bridge the time in a round before Label
	// fills info.Labels.
	reported   map[string]string
	isReported bool
	anchors    []anchor
	claimed    bool // has or had a claimed cgroup
	cgroups    int
	seen       uint64
	missed     int // consecutive calls of Expire while absent
	expired    bool
	// added is the round that added the owner. inherited is the last round in which it took over figures that an
	// earlier round showed under other labels, or 0.
	added, inherited uint64
}

// anchor is the id of a container, the UID of a pod, or the path of a job. A job's number may be found later than its
// cgroups.
type anchor struct {
	container, pod string
	job            model.CgroupPath
}

func (n *name) anchor() anchor {
	switch {
	case n.Claimed:
		return anchor{}
	case n.ContainerID != "":
		return anchor{container: n.ContainerID}
	case n.isJob():
		return anchor{job: n.Path}
	}
	return anchor{pod: n.PodUID}
}

func (s *ownerSet) begin() {
	s.round++
	s.free = append(s.free, s.freed...)
	s.freed = s.freed[:0]
}

// noOwner stands for unknown numbers. It never changes.
var noOwner owner

func (s *ownerSet) owner(id OwnerID) *owner {
	if int(id) < len(s.owners) && s.owners[id] != nil {
		return s.owners[id]
	}
	return &noOwner
}

func (s *ownerSet) add(labels Owner) OwnerID {
	id := OwnerID(len(s.owners))
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.owners = append(s.owners, nil)
	}
	s.owners[id] = &owner{labels: labels, added: s.round}
	s.byLabels[labels] = id
	return id
}

func (s *ownerSet) addAnchor(id OwnerID, a anchor) {
	if o := s.owners[id]; a != (anchor{}) && !o.claimed {
		o.anchors = append(o.anchors, a)
		s.byAnchor[a] = id
	}
}

func (s *ownerSet) dropAnchors(id OwnerID) {
	o := s.owners[id]
	for _, a := range o.anchors {
		delete(s.byAnchor, a)
	}
	o.anchors = nil
}

func (s *ownerSet) rename(id OwnerID, labels Owner) {
	delete(s.byLabels, s.owners[id].labels)
	s.inherit(id, id)
	s.owners[id].labels = labels
	s.byLabels[labels] = id
}

// claim records that an owner has a claimed cgroup, which ends its anchors.
func (s *ownerSet) claim(id OwnerID) {
	if o := s.owners[id]; !o.claimed {
		o.claimed = true
		s.dropAnchors(id)
	}
}

// inherit records that an owner takes over figures that were shown under its former labels or under another owner's
// labels. An owner that was added in this round was not shown yet.
func (s *ownerSet) inherit(from, to OwnerID) {
	if from != Unattributed && s.owners[from].added < s.round {
		s.owners[to].inherited = s.round
	}
}

func (s *ownerSet) remove(id OwnerID) {
	s.dropAnchors(id)
	delete(s.byLabels, s.owners[id].labels)
	s.owners[id] = nil
	s.freed = append(s.freed, id)
}

// see adds the data of a cgroup or container to the info of its owner, which each round collects anew.
func (s *ownerSet) see(id OwnerID, n *name) {
	if id == Unattributed {
		return
	}
	o := s.owners[id]
	if o.seen != s.round {
		o.seen = s.round
		o.info = Info{Job: o.info.Job}
	}
	o.info.add(n)
	if job, ok := strings.CutPrefix(o.labels.Workload, n.Runtime+":"); ok && jobKinds[n.Runtime] != "" {
		o.info.Job.Kind, o.info.Job.Name = jobKinds[n.Runtime], job
	}
}
