// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"cmp"
	"maps"

	"github.com/accelscope/accelscope/pkg/model"
)

// Containers merges the containers that several sources list under the same id, in the order in which the ids first
// occur. If sources differ in a field, the first value wins.
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
	// Pod and container name come from one source: a runtime that knows no pods names a container after its id.
	if a.Pod == "" && b.Pod != "" {
		a.Namespace, a.Pod, a.Name, a.Sandbox = b.Namespace, b.Pod, b.Name, b.Sandbox
	}
	a.Runtime = cmp.Or(a.Runtime, b.Runtime)
	a.Name = cmp.Or(a.Name, b.Name)
	a.PodUID = cmp.Or(a.PodUID, b.PodUID)
	a.Image = cmp.Or(a.Image, b.Image)
	a.ImageID = cmp.Or(a.ImageID, b.ImageID)
	a.Cgroup = cmp.Or(a.Cgroup, b.Cgroup)
	a.Status = cmp.Or(a.Status, b.Status)
	a.Health = cmp.Or(a.Health, b.Health)
	a.PID = cmp.Or(a.PID, b.PID)
	if a.Restarts == nil || b.Restarts != nil && *b.Restarts > *a.Restarts {
		a.Restarts = b.Restarts // the kubelet goes on counting when the runtime has forgotten earlier containers, as after a reboot
	}
	a.ExitCode = cmp.Or(a.ExitCode, b.ExitCode)
	a.AllDevices = a.AllDevices || b.AllDevices
	a.NoCgroup = a.NoCgroup || b.NoCgroup
	a.Labels = union(b.Labels, a.Labels)
	if a.Devices == nil {
		a.Devices = b.Devices
	}
	if a.GPURequests == nil {
		a.GPURequests = b.GPURequests
	}
	a.Created = cmp.Or(a.Created, b.Created)
	a.Started = cmp.Or(a.Started, b.Started)
	a.Finished = cmp.Or(a.Finished, b.Finished)
	return a
}

// union returns both sets of labels. If both have a label, the second set wins.
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
