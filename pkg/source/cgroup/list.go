// SPDX-License-Identifier: Apache-2.0

package cgroup

import "github.com/accelscope/accelscope/pkg/model"

// Workloads returns, by id, the paths below the mount of the cgroups of current containers and jobs, without the
// cgroups below them.
func (s *Source) Workloads() map[model.CgroupID]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watcher.drain()
	return s.workloads()
}

// workloads is Workloads. It needs s.mu.
func (s *Source) workloads() map[model.CgroupID]string {
	paths := map[model.CgroupID]string{}
	for path, g := range s.table.byPath {
		if path == g.top && (g.fact.ContainerID != "" || isJob(g.fact.Runtime)) {
			paths[g.id] = path
		}
	}
	return paths
}
