// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// names finds the containers and pods of a refresh by the ids and paths of cgroups.
type names struct {
	byID     map[string]*model.Container
	byCgroup map[string]*model.Container
	pods     map[string]*model.Pod
}

func newNames(s *model.Snapshot) *names {
	n := &names{
		byID:     make(map[string]*model.Container, len(s.Containers)),
		byCgroup: map[string]*model.Container{},
		pods:     podsByUID(s.Pods),
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		n.byID[c.ID] = c
		if c.Cgroup != "" && n.byCgroup[c.Cgroup] == nil { // exited containers are listed last
			n.byCgroup[c.Cgroup] = c
		}
		if p := n.pods[c.PodUID]; p == nil && c.PodUID != "" && c.Pod != "" {
			n.pods[c.PodUID] = &model.Pod{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
		}
	}
	return n
}

// podsByUID indexes pods by both UIDs.
func podsByUID(list []model.Pod) map[string]*model.Pod {
	pods := make(map[string]*model.Pod, len(list))
	for i := range list {
		p := &list[i]
		pods[p.UID] = p
		if p.StaticUID != "" {
			pods[p.StaticUID] = p
		}
	}
	return pods
}

func (n *names) refine(cgroup *model.Cgroup) (refined name, listed bool) {
	e := ofCgroup(cgroup)
	if c := n.container(cgroup); c != nil {
		e.Claimed = false
		return ofContainer(c, e), true
	}
	p := n.pods[cgroup.PodUID]
	if cgroup.PodUID == "" || p == nil {
		return e, false
	}
	id := e.ContainerID
	e.Owner = podOwner(p.Namespace, p.Name)
	if id == "" {
		return e, true
	}
	// The container is not listed yet.
	e.ContainerID = id
	e.Workload += "/" + id[:min(shortID, len(id))]
	return e, false
}

// container finds the container of a cgroup by its id, or by the path of the cgroup or of a parent. A path counts only
// if it contains no other identity, or if the runtime lists the path with the container id that it contains: a user
// cannot forge the runtime's list.
func (n *names) container(c *model.Cgroup) *model.Container {
	if at := n.byCgroup[string(c.Path)]; at != nil && len(at.ID) == fullID && strings.Contains(string(c.Path), at.ID) {
		return at
	}
	if c.Claimed {
		return nil
	}
	if c.ContainerID != "" {
		return n.byID[c.ContainerID]
	}
	if !strings.HasPrefix(c.Workload, "cgroup:") || len(n.byCgroup) == 0 {
		return nil
	}
	for path := string(c.Path); path != ""; path = path[:max(strings.LastIndexByte(path, '/'), 0)] {
		if c := n.byCgroup[path]; c != nil {
			return c
		}
	}
	return nil
}

// holds reports whether the last name of a cgroup still applies although no runtime lists it anymore: the path is the
// same, and the new name does not add the pod.
func (last *name) holds(c *model.Cgroup, now *name) bool {
	samePath := c.Path == last.Path && (valid(c.ContainerID) == last.ContainerID || c.ContainerID == "")
	return samePath && (last.Pod != "" || now.Pod == "")
}
