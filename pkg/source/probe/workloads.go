// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// NewWorkloads makes the maps of the cgroups that belong together, for all sources whose programs count by owner.
func NewWorkloads() (*hook.Workloads, error) {
	if err := hook.Usable(); err != nil {
		return nil, err
	}
	spec, err := gen.LoadVerbs()
	if err != nil {
		return nil, err
	}
	return hook.NewWorkloads(spec)
}

// ownerOf returns the owner for which the programs count a cgroup, and the owner of the share.
func (o *Options) ownerOf(id model.CgroupID) (workload, share uint64) {
	if o.OwnerOf == nil {
		return uint64(id), uint64(id)
	}
	cgroup, of := o.OwnerOf(id)
	return uint64(cgroup), uint64(of)
}
