// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"maps"

	"github.com/accelscope/accelscope/pkg/model"
)

// Containers merges the containers that several sources list under the same id. Of two values
// for one field it keeps the first. The order is that of the first occurrence.
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
	// The pod name and the container name come from one source, as a runtime without pods
	// would name the container after its id.
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

// union returns both sets of labels. The second set wins for a label in both.
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
