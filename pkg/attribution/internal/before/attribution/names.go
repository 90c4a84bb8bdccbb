// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"maps"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// Containers joins what several sources tell of the same container. Of two
// that tell the same the earlier one is believed; the order is that of the first
// mention.
func Containers(facts []model.Container) []model.Container {
	if facts == nil {
		return nil
	}
	out := make([]model.Container, 0, len(facts))
	at := make(map[string]int, len(facts))
	for i := range facts {
		c := &facts[i]
		n, ok := at[c.ID]
		if !ok || c.ID == "" {
			at[c.ID] = len(out)
			out = append(out, *c)
			continue
		}
		out[n] = joinContainers(out[n], c)
	}
	return out
}

func joinContainers(a model.Container, b *model.Container) model.Container {
	fill := func(dst *string, src string) {
		if *dst == "" {
			*dst = src
		}
	}
	// A pod's name and that of its container come together, or a runtime that
	// does not know pods would name the container after its id.
	if a.Pod == "" && b.Pod != "" {
		a.Namespace, a.Pod, a.Name, a.Sandbox = b.Namespace, b.Pod, b.Name, b.Sandbox
	}
	fill(&a.Runtime, b.Runtime)
	fill(&a.Name, b.Name)
	fill(&a.PodUID, b.PodUID)
	fill(&a.Image, b.Image)
	fill(&a.ImageID, b.ImageID)
	fill(&a.Cgroup, b.Cgroup)
	fill((*string)(&a.Status), string(b.Status))
	fill(&a.Health, b.Health)
	a.Labels = union(b.Labels, a.Labels)
	if a.PID == 0 {
		a.PID = b.PID
	}
	if a.Devices == nil {
		a.Devices = b.Devices
	}
	if a.GPURequests == nil {
		a.GPURequests = b.GPURequests
	}
	a.AllDevices = a.AllDevices || b.AllDevices
	if a.Restarts == nil {
		a.Restarts = b.Restarts
	}
	if a.ExitCode == nil {
		a.ExitCode = b.ExitCode
	}
	if a.Created.IsZero() {
		a.Created = b.Created
	}
	if a.Started.IsZero() {
		a.Started = b.Started
	}
	if a.Finished.IsZero() {
		a.Finished = b.Finished
	}
	return a
}

// union is both sets of labels; of the same one the second's.
func union(a, b map[string]string) map[string]string {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

// Name gives the entities of s, known by their cgroup paths, the names that
// runtimes and the kubelet tell, and returns them as a new map. A name that was
// told once holds for as long as the cgroup does: before has the names told
// so far.
func Name(s *model.Snapshot, before map[uint64]model.Entity) map[uint64]model.Entity {
	n := newNames(s)
	out := make(map[uint64]model.Entity, len(s.Entities))
	for id, e := range s.Entities {
		named, ok := n.name(e)
		old, known := before[id]
		if better := old.Pod == "" && named.Pod != ""; !ok && known && sameCgroup(e, old) && !better {
			user := cmp.Or(e.User, old.User)
			named = old
			named.User = user
		}
		out[id] = named
	}
	return out
}

// sameCgroup says whether two entities were read of the same path.
func sameCgroup(path, named model.Entity) bool {
	return path.Cgroup == named.Cgroup && (path.ContainerID == named.ContainerID || path.ContainerID == "")
}

// names finds containers and pods by what cgroup paths tell.
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
		if c.Cgroup != "" && n.byCgroup[c.Cgroup] == nil { // the dead are told last
			n.byCgroup[c.Cgroup] = c
		}
		if p := n.pods[c.PodUID]; p == nil && c.PodUID != "" && c.Pod != "" {
			n.pods[c.PodUID] = &model.Pod{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
		}
	}
	return n
}

// podsByUID finds pods by either UID.
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

// name refines e and says whether it found more than the path told.
func (n *names) name(e model.Entity) (model.Entity, bool) {
	if c := n.container(e); c != nil {
		return entityOf(c, e), true
	}
	p := n.pods[e.PodUID]
	if e.PodUID == "" || p == nil {
		return e, false
	}
	e.Namespace, e.Pod = p.Namespace, p.Name
	e.Workload = p.Namespace + "/" + p.Name
	if e.ContainerID != "" { // of a container that nobody has told of yet
		e.Workload += "/" + e.ContainerID[:min(12, len(e.ContainerID))]
		return e, false
	}
	return e, true
}

// container finds the container of a cgroup by its id, or by the path of the
// cgroup or of one above it: only a path that nothing else is known of may
// belong to a container without its id.
func (n *names) container(e model.Entity) *model.Container {
	if e.Claimed {
		return nil
	}
	if e.ContainerID != "" {
		return n.byID[e.ContainerID]
	}
	if !strings.HasPrefix(e.Workload, "cgroup:") || len(n.byCgroup) == 0 {
		return nil
	}
	for path := e.Cgroup; path != ""; path = path[:max(strings.LastIndexByte(path, '/'), 0)] {
		if c := n.byCgroup[path]; c != nil {
			return c
		}
	}
	return nil
}

// entityOf is the entity of a container. Its identity comes from the container
// alone, so that it is the same whatever cgroup it was found by.
func entityOf(c *model.Container, e model.Entity) model.Entity {
	e.ContainerID, e.Image = c.ID, c.Image
	if e.Runtime == "" {
		e.Runtime = c.Runtime
	}
	if e.Cgroup == "" {
		e.Cgroup = c.Cgroup
	}
	switch {
	case c.Pod == "" && c.Name == "":
		e.Workload = c.Runtime + ":" + c.ID[:min(12, len(c.ID))]
	case c.Pod == "":
		e.Workload = c.Runtime + ":" + c.Name
	case c.Sandbox:
		e.Namespace, e.Pod, e.Container = c.Namespace, c.Pod, ""
		e.Workload = c.Namespace + "/" + c.Pod
	default:
		e.Namespace, e.Pod, e.Container = c.Namespace, c.Pod, c.Name
		e.Workload = c.Namespace + "/" + c.Pod + "/" + c.Name
	}
	if e.PodUID == "" {
		e.PodUID = c.PodUID
	}
	return e
}
