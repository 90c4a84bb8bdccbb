// SPDX-License-Identifier: Apache-2.0

// Package identitytest makes the facts that name cgroups, for tests.
package identitytest

import (
	"maps"
	"slices"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Entity is a cgroup with the name that Table gives it.
type Entity struct {
	Workload, Namespace, Pod, Container, ContainerID, PodUID, Runtime, Image, User, Step, Cgroup string
	// Called is the runtime's name of a container that is in no pod.
	Called  string
	Claimed bool
}

// Facts returns the cgroups, and the containers and pods that name them.
func Facts(entities map[model.CgroupID]Entity) *model.Snapshot {
	s := &model.Snapshot{Cgroups: make([]model.Cgroup, 0, len(entities))}
	for _, id := range slices.Sorted(maps.Keys(entities)) {
		e := entities[id]
		c := model.Cgroup{
			ID: id, Path: model.CgroupPath(e.Cgroup), Workload: e.Workload, ContainerID: e.ContainerID, PodUID: e.PodUID,
			Runtime: e.Runtime, User: e.User, Step: e.Step, Claimed: e.Claimed,
		}
		switch {
		case e.ContainerID != "" && e.Pod+e.Called != "":
			s.Containers = append(s.Containers, model.Container{
				ID: e.ContainerID, Runtime: e.Runtime, Namespace: e.Namespace, Pod: e.Pod, Name: e.Container + e.Called, PodUID: e.PodUID,
				Image: e.Image, Sandbox: e.Pod != "" && e.Container == "",
			})
		case e.Pod != "":
			if c.PodUID == "" {
				c.PodUID = "uid-" + e.Pod
			}
			s.Pods = append(s.Pods, model.Pod{UID: c.PodUID, Namespace: e.Namespace, Name: e.Pod})
		}
		s.Cgroups = append(s.Cgroups, c)
	}
	return s
}

// Table returns a table with the names of the entities.
func Table(entities map[model.CgroupID]Entity) *identity.Table {
	t := &identity.Table{}
	t.Resolve(Facts(entities), nil)
	return t
}
