// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/kernellog"
)

// newKernelLog makes the source of errors in the kernel log.
func (s *services) newKernelLog() engine.Registration {
	source, err := kernellog.New(kernellog.Options{
		Path: s.onNode("dev/kmsg"), Procfs: s.Procfs, CgroupOf: s.cgroupOf(), LastCgroupOf: s.lastCgroupOf,
		Logger: s.log.Named("kernellog"),
	})
	if err == nil {
		s.faults = source
	}
	return register("kernellog", source, err)
}

// lastCgroupOf returns the cgroup of a process that used a GPU in the last refresh. The process may have ended since.
func (s *services) lastCgroupOf(pid int) (model.CgroupID, bool) {
	for _, p := range s.engine.Last().Facts.GPUProcesses {
		if p.PID == pid {
			return p.Cgroup, p.Cgroup != 0
		}
	}
	return 0, false
}
