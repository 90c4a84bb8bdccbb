// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// kubeletUnits lists the services that start the kubelet, some with a runtime of their own. As
// below the services of runtimes, only root creates cgroups below them.
var kubeletUnits = []string{
	"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
}

// isRuntimeUnit reports whether only runtimes of root create cgroups below a service.
func isRuntimeUnit(unit string) bool {
	return slices.Contains(kubeletUnits, unit) ||
		slices.ContainsFunc(model.Runtimes, func(r model.Runtime) bool { return r.Unit == unit })
}

// runtimeOf returns the runtime that places containers without a pod into a directory with the
// cgroupfs driver: dockerd, and the CRI plugin of containerd. It returns "" for other
// directories.
func runtimeOf(dir string) string {
	for _, r := range model.Runtimes {
		if r.Parent != "" && r.Parent == dir {
			return r.Name
		}
	}
	return ""
}

// scope splits the cgroup name of a container into runtime and id. Both are empty for other
// names and for the monitor process of a container.
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
