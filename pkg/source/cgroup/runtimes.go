// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// The values of the label runtime for workloads that are not containers of a runtime.
const (
	runtimeSlurm = "slurm"
	runtimeLXC   = "lxc"
)

// kubeletUnits lists the services that start the kubelet, their own runtime, or both. Only root creates cgroups below
// them.
var kubeletUnits = []string{
	"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service",
	"k0scontroller.service", "k0sworker.service", "cri-docker.service",
	"snap.microk8s.daemon-containerd.service", "snap.microk8s.daemon-kubelite.service", "snap.microk8s.daemon-kubelet.service",
}

// podmanParent is the directory in which Podman's cgroupfs driver puts containers and pods.
const podmanParent = "libpod_parent"

// kubeletParents lists the directories in which the cgroupfs driver puts the tree of the kubelet: the usual values of
// --cgroup-root.
var kubeletParents = []string{"kubelet", "k3s"}

// isRuntimeUnit reports whether only runtimes of root create cgroups below a service.
func isRuntimeUnit(unit string) bool {
	return slices.Contains(kubeletUnits, unit) ||
		slices.ContainsFunc(model.Runtimes, func(r model.Runtime) bool { return r.Unit == unit })
}

// isParent reports whether only root's runtime or kubelet creates cgroups in a directory, including kubepods.slice,
// which the kubelet may make below another directory, and the slices in it.
func isParent(dir string) bool {
	return dir == podmanParent || dir == "kubepods" || runtimeOf(dir) != "" || slices.Contains(kubeletParents, dir) ||
		strings.HasSuffix(dir, ".slice") && strings.Contains("-"+dir, "-kubepods")
}

// runtimeOf returns the runtime that places containers without a pod into a directory with the cgroupfs driver:
// dockerd, or the CRI plugin of containerd. It returns "" for other directories.
func runtimeOf(dir string) string {
	for _, r := range model.Runtimes {
		if r.Parent != "" && r.Parent == dir {
			return r.Name
		}
	}
	return ""
}

// scope splits the cgroup name of a container into runtime and id. Both are empty for other names and for the monitor
// process of a container.
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
