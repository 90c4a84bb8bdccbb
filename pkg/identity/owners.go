// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// ownerSet is the owners of a Table: by number, by labels and by anchor.
type ownerSet struct {
	owners   []*owner // by number; nil where the number is free
	free     []OwnerID
	freed    []OwnerID // in this round; free from the next one on
	byLabels map[Owner]OwnerID
	byAnchor map[anchor]OwnerID
	round    uint64 // counts calls of Resolve
}

type owner struct {
	labels Owner
	info   Info
	// reported are the labels that runtimes and the kubelet gave last, if they did: a round has none in info.Labels until Label adds them.
	reported   map[string]string
	isReported bool
	anchors    []anchor
	claimed    bool // it has or had a claimed cgroup
	cgroups    int  // number of its cgroups
	seen       uint64
	missed     int // consecutive calls of Expire while absent
	expired    bool
	// added is the round since which it exists, inherited the last one in which it took over what an earlier round had under other
	// labels; 0 if it never did.
	added, inherited uint64
}

// anchor is the id of a container, the UID of a pod, or the path of a job, whose number may be found later than its cgroups.
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

// begin begins a round.
func (s *ownerSet) begin() {
	s.round++
	s.free = append(s.free, s.freed...)
	s.freed = s.freed[:0]
}

// noOwner is the owner of an unknown number. Nothing changes it.
var noOwner owner

// owner returns an owner, or noOwner for an unknown number.
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

// rename gives an owner other labels.
func (s *ownerSet) rename(id OwnerID, labels Owner) {
	delete(s.byLabels, s.owners[id].labels)
	s.inherit(id, id)
	s.owners[id].labels = labels
	s.byLabels[labels] = id
}

// claim records that an owner has a claimed cgroup.
func (s *ownerSet) claim(id OwnerID) {
	if o := s.owners[id]; !o.claimed {
		o.claimed = true
		s.dropAnchors(id)
	}
}

// inherit records that an owner takes over what was shown under the labels of another one, or its own ones before. What is of this
// round was not shown.
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

// see adds the data of a cgroup or container of this round to the info of its owner.
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
