// SPDX-License-Identifier: Apache-2.0

package identity

import "github.com/accelscope/accelscope/pkg/model"

// Of returns the owner of a cgroup.
func (t *Table) Of(id model.CgroupID) OwnerID {
	if c := t.cgroups[id]; c != nil {
		return c.owner
	}
	return Unattributed
}

// Path returns the path of the cgroup of the workload, or "" for an unresolved cgroup.
func (t *Table) Path(id model.CgroupID) model.CgroupPath {
	if c := t.cgroups[id]; c != nil {
		return c.Path
	}
	return ""
}

// PodOf returns the owner of the pod of a cgroup. For a cgroup outside of pods it returns the cgroup's owner.
func (t *Table) PodOf(id model.CgroupID) OwnerID {
	c := t.cgroups[id]
	if c == nil || c.Pod == "" && c.PodUID == "" {
		return t.Of(id)
	}
	n := c.pod()
	return t.find(&n)
}

// OfContainer returns the owner of a container.
func (t *Table) OfContainer(c *model.Container) OwnerID {
	n := ofContainer(c, name{})
	return t.find(&n)
}

// OfPod returns the owner of a pod. The uid may be empty.
func (t *Table) OfPod(namespace, pod, uid string) OwnerID {
	return t.find(&name{Owner: podOwner(namespace, pod), PodUID: uid})
}

// OfNames returns the owner of a container from its names only.
func (t *Table) OfNames(namespace, pod, container string) OwnerID {
	o := podOwner(namespace, pod)
	o.Container = valid(container)
	o.Workload += "/" + o.Container
	return t.find(&name{Owner: o})
}

func (t *Table) find(n *name) OwnerID {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.init()
	id := t.place(n, false)
	t.see(id, n)
	return id
}

// Owner returns the labels of an owner.
func (t *Table) Owner(id OwnerID) *Owner { return &t.owner(id).labels }

// Info returns the info of an owner: data in addition to its labels.
func (t *Table) Info(id OwnerID) *Info { return &t.owner(id).info }

// Round returns the number of calls of Resolve.
func (t *Table) Round() uint64 { return t.round }

// Inherited returns the last round in which an owner took over figures that an earlier round showed under other labels:
// its own former labels, or another owner's. It returns 0 if this never happened.
func (t *Table) Inherited(id OwnerID) uint64 { return t.owner(id).inherited }

// HasCgroup reports whether the owner has a known cgroup.
func (t *Table) HasCgroup(id OwnerID) bool { return t.owner(id).cgroups > 0 }

// SamePod reports whether two owners belong to one pod.
func (t *Table) SamePod(a, b OwnerID) bool {
	x, y := t.Owner(a), t.Owner(b)
	return x.Pod != "" && x.Pod == y.Pod && x.Namespace == y.Namespace
}

// Workload returns the label workload of a cgroup, and whether the cgroup has an owner. It
// may be called at any time.
func (t *Table) Workload(id model.CgroupID) (workload string, known bool) {
	o := t.OwnerOf(id)
	return o.Workload, o.Workload != ""
}

// LabelOf returns a label or annotation of the owner of a cgroup, and whether the labels of the owner are known. It may be called at any
// time.
func (t *Table) LabelOf(id model.CgroupID, name string) (value string, known bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id := t.Of(id); id != Unattributed {
		return t.owners[id].reported[name], t.owners[id].isReported
	}
	return "", false
}

// OwnerOf returns the labels of the owner of a cgroup. It may be called at any time.
func (t *Table) OwnerOf(id model.CgroupID) Owner {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id := t.Of(id); id != Unattributed {
		return t.owners[id].labels
	}
	return Owner{}
}

// Label adds the labels of the containers and pods of s to the infos of their owners, and the jobs of pods. A container
// also gets the labels of its pod, and a pod the labels of its sandbox. It is called when the owners of the refresh are
// known.
func (t *Table) Label(s *model.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pods := podsByUID(s.Pods)
	add := func(o Owner, labels map[string]string, all bool) {
		if id, ok := t.byLabels[o]; ok {
			owner := t.owners[id]
			owner.info.Labels = union(labels, owner.info.Labels)
			owner.reported, owner.isReported = owner.info.Labels, owner.isReported || all
		}
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		n := ofContainer(c, name{})
		add(n.Owner, c.Labels, !c.LacksPod())
		if p := pods[c.PodUID]; p != nil {
			add(n.Owner, p.Labels, true)
		}
		if c.Sandbox {
			add(podOwner(c.Namespace, c.Pod), c.Labels, true)
		}
	}
	for i := range s.Pods {
		add(podOwner(s.Pods[i].Namespace, s.Pods[i].Name), s.Pods[i].Labels, true)
	}
	t.addJobs(pods, s.Ranks)
}

// addJobs adds the jobs of pods. An owner keeps its job when the kubelet no longer lists the pod. A claimed cgroup has no
// job: its user could add to the figures of another user's job. Ranks from environments replace ranks from controllers,
// because they number processes.
func (t *Table) addJobs(pods map[string]*model.Pod, ranks []model.Ranks) {
	for _, o := range t.owners {
		if o == nil || o.claimed || o.info.PodUID == "" {
			continue
		}
		if p := pods[o.info.PodUID]; p != nil {
			o.info.Job = p.Job
		}
	}
	for _, r := range ranks {
		if id := t.Of(r.Cgroup); id != Unattributed {
			t.owners[id].info.Job.Rank = r.Ranks
		}
	}
}
