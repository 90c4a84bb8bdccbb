// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/amdgpu"
	"github.com/accelscope/accelscope/pkg/source/nvidia"
)

// gpuOptions are what the sources of GPUs are made from.
type gpuOptions struct {
	flags    sensorFlags
	cgroupOf func(pid int) (uint64, error) // nil if cgroups are not read
	holders  func() ([]int, bool)          // processes that have GPU nodes open; nil if opens are not counted
	log      *zap.Logger
}

// gpuConstructors has the constructor of each vendor's source, in the order in which the sources are registered.
var gpuConstructors = []struct {
	vendor model.Vendor
	make   func(gpuOptions) (engine.Source, error)
}{
	{model.NVIDIA, newNVIDIA},
	{model.AMD, newAMD},
}

func newNVIDIA(o gpuOptions) (engine.Source, error) {
	f := o.flags
	return nvidia.New(nvidia.Options{
		Library: f.NVML, Root: f.Host, Sysfs: f.Sysfs, Procfs: f.Procfs, Interval: f.GPUInterval, CgroupOf: o.cgroupOf, Logger: o.log,
	})
}

func newAMD(o gpuOptions) (engine.Source, error) {
	f := o.flags
	return amdgpu.New(amdgpu.Options{
		Root: f.Host, Sysfs: f.Sysfs, Procfs: f.Procfs, Interval: f.GPUInterval, SMI: f.AMDSMI,
		CgroupOf: o.cgroupOf, Holders: o.holders, Logger: o.log,
	})
}
