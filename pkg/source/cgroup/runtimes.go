// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// kubeletUnits are the services that start the kubelet, some of them with a runtime of their own: only root makes
// cgroups below them, as below those of the runtimes.
var kubeletUnits = []string{
	"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
}

// isRuntimeUnit reports whether a service is one below which only root's runtimes make cgroups.
func isRuntimeUnit(unit string) bool {
	return slices.Contains(kubeletUnits, unit) ||
		slices.ContainsFunc(model.Runtimes, func(r model.Runtime) bool { return r.Unit == unit })
}

// runtimeOf returns the runtime of which the cgroupfs driver puts containers without a pod into a directory: dockerd,
// and the CRI plugin of containerd. It is empty for other directories.
func runtimeOf(dir string) string {
	for _, r := range model.Runtimes {
		if r.Parent != "" && r.Parent == dir {
			return r.Name
		}
	}
	return ""
}

// scope splits the name of a container's cgroup into runtime and id. Both are empty if seg is no such name, or that of
// the monitor process of a container.
func scope(seg string) (runtime model.Runtime, id string) {
	for _, r := range model.Runtimes {
		for _, prefix := range r.Scopes {
			if id, ok := strings.CutPrefix(seg, prefix); ok {
				if strings.HasPrefix(id, "conmon-") {
					return model.Runtime{}, ""
				}
				return r, strings.TrimSuffix(id, ".scope")
			}
		}
	}
	return model.Runtime{}, ""
}
