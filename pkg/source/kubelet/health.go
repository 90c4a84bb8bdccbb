// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// resourceJSON is a ResourceStatus: the health of a container's devices, as the device plugin or the driver of the
// claim reports it (KEP-4680, default in Kubernetes 1.36).
type resourceJSON struct {
	Name    string `json:"name"` // of the resource, or claim:NAME, or claim:NAME/REQUEST
	Devices []struct {
		ID     string `json:"resourceID"`
		Health string `json:"health"` // Healthy, Unhealthy, Unknown
	} `json:"resources"`
}

// containerDevice is a device of a container, by the id in the status of the pod: the plugin's id after the resource;
// for a claimed device the first CDI name, or DRIVER/POOL/DEVICE.
type containerDevice struct{ namespace, pod, container, id string }

func (p *podJSON) addUnhealthy(f *facts) {
	for _, list := range [][]containerJSON{p.Status.Init, p.Status.Containers, p.Status.Ephemeral} {
		for i := range list {
			for _, r := range list[i].Resources {
				for _, d := range r.Devices {
					if d.Health != "Unhealthy" {
						continue
					}
					if !strings.HasPrefix(r.Name, "claim:") {
						d.ID = r.Name + "/" + d.ID
					}
					if f.unhealthy == nil {
						f.unhealthy = map[containerDevice]struct{}{}
					}
					f.unhealthy[containerDevice{p.Metadata.Namespace, p.Metadata.Name, list[i].Name, d.ID}] = struct{}{}
				}
			}
		}
	}
}

// withHealth returns the allocations, with the unhealthy devices marked. ids are the device ids in the status of the
// pod.
func withHealth(all []model.Allocation, ids []string, unhealthy map[containerDevice]struct{}) []model.Allocation {
	if len(unhealthy) == 0 {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		a := &all[i]
		_, a.Unhealthy = unhealthy[containerDevice{a.Namespace, a.Pod, a.Container, ids[i]}]
	}
	return all
}
