// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"sync"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// PathLog holds the paths of cgroups created while hooks are attached (bpf/cgroups.bpf.c). A Source writes it. It may
// be read before the Source exists. The zero PathLog is empty.
type PathLog struct {
	mu    sync.Mutex
	paths *ebpf.Map // nil while the hooks are detached
}

// PathOf returns the path of a cgroup below the root of its hierarchy.
func (l *PathLog) PathOf(id model.CgroupID) (model.CgroupPath, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paths == nil {
		return "", false
	}
	var path gen.CgroupsCgroupPath
	if err := l.paths.Lookup(id, &path); err != nil {
		return "", false
	}
	return model.CgroupPath(cString(path.Path[:])), true
}

// set sets the map of attached hooks, or nil when they are detached.
func (l *PathLog) set(paths *ebpf.Map) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paths = paths
}
