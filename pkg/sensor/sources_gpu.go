// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/access"
	"github.com/accelscope/accelscope/pkg/source/amdgpu"
	"github.com/accelscope/accelscope/pkg/source/collective"
	"github.com/accelscope/accelscope/pkg/source/datapath/returnprobe"
	"github.com/accelscope/accelscope/pkg/source/drm"
	"github.com/accelscope/accelscope/pkg/source/gpudriver"
	"github.com/accelscope/accelscope/pkg/source/gpumemory"
	"github.com/accelscope/accelscope/pkg/source/intel"
	"github.com/accelscope/accelscope/pkg/source/library"
	"github.com/accelscope/accelscope/pkg/source/nvidia"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// newAccess makes the source that counts opens of device nodes.
func (s *services) newAccess() engine.Registration {
	o := access.Options{
		Sysfs: s.Sysfs, Procfs: s.Procfs, Subsystem: s.subsystem(), MaxEntries: s.MapEntries, Interval: s.GPUInterval,
		Workloads: s.workloads, Hotplug: s.hotplug, Logger: s.log.Named("access"),
	}
	if s.Tier == "fentry" || s.Tier == "kprobe" {
		o.Tier = s.Tier
	}
	source, err := access.New(o)
	if err == nil {
		s.holders = source
	}
	return register("access", source, err)
}

// newGPUMemory makes the source that counts failed allocations of GPU memory.
func (s *services) newGPUMemory() engine.Registration {
	if !s.Access { // which lists the processes with an open GPU
		return register("gpumemory", nil, fmt.Errorf("%w: needs --collector.access", model.ErrUnsupported))
	}
	options, err := s.libraryOptions("gpumemory")
	if err != nil {
		return register("gpumemory", nil, err)
	}
	options.MaxEntries = s.MapEntries
	source, err := gpumemory.New(gpumemory.Options{
		Options: options,
		ReturnProbes: func(ctx context.Context) (bool, error) {
			safe := returnprobe.Try(ctx, options.Logger)
			return safe.PerProcess, safe.Refused
		},
	})
	return register("gpumemory", source, err)
}

// newCollective makes the source that counts launches of NCCL and RCCL.
func (s *services) newCollective() engine.Registration {
	if !s.Access { // which lists the processes with an open GPU
		return register("collective", nil, fmt.Errorf("%w: needs --collector.access", model.ErrUnsupported))
	}
	options, err := s.libraryOptions("collective")
	if err != nil {
		return register("collective", nil, err)
	}
	source, err := collective.New(collective.Options{
		Options: options, KeyFile: s.KeyFile, StallAfter: s.JobStall, Suspect: s.survey,
	})
	return register("collective", source, err)
}

// libraryOptions returns the options of a source that probes libraries.
func (s *services) libraryOptions(source string) (library.Options, error) {
	gate, err := s.gate()
	return library.Options{
		Procfs: s.Procfs, Subsystem: s.subsystem(), Interval: s.GPUInterval, Workloads: s.workloads,
		Holders: s.holders.Holders, CgroupOf: s.cgroupOf(), OwnerOf: s.ownerOf(), Consent: s.consent,
		Gate: gate, Logger: s.log.Named(source),
	}, err
}

// newGPUDriver makes the source that measures ioctls of GPU drivers.
func (s *services) newGPUDriver() engine.Registration {
	source, err := gpudriver.New(gpudriver.Options{
		Sysfs: s.Sysfs, Procfs: s.Procfs, Subsystem: s.subsystem(), MaxEntries: s.MapEntries, StuckAfter: s.StuckAfter,
		Workloads: s.workloads, Hotplug: s.hotplug, Logger: s.log.Named("gpudriver"),
	})
	return register("gpudriver", source, err)
}

// newGPUs makes the sources of DRM devices and of the GPUs of each vendor.
func (s *services) newGPUs() []engine.Registration {
	list := []engine.Registration{made("drm", func() engine.Registration {
		source, err := drm.New(drm.Options{Sysfs: s.Sysfs, Hotplug: s.hotplug})
		s.dri = source
		return register("drm", source, err)
	})}
	for _, c := range gpuConstructors {
		name := c.vendor.Row().Source
		list = append(list, made(name, func() engine.Registration {
			source, err := c.construct(s, s.log.Named(name))
			return register(name, source, err)
		}))
	}
	return list
}

// gpuConstructors has the constructor of each vendor's source, in the order in which the
// sources are registered.
var gpuConstructors = []struct {
	vendor    model.Vendor
	construct func(*services, *zap.Logger) (engine.Source, error)
}{
	{model.NVIDIA, newNVIDIA},
	{model.AMD, newAMD},
	{model.Intel, newIntel},
}

func newNVIDIA(s *services, log *zap.Logger) (engine.Source, error) {
	if s.Released != nil {
		return nil, s.Released
	}
	source, err := nvidia.New(nvidia.Options{
		Options:  wire.Options{Library: s.NVML, Root: s.Host, Sysfs: s.Sysfs, Procfs: s.Procfs, Interval: s.GPUInterval},
		CgroupOf: s.cgroupOf(), FirstFault: s.faults.FirstFault, Nonfatal: s.faults.Nonfatal, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	s.gpus = source
	return source, nil
}

func newAMD(s *services, log *zap.Logger) (engine.Source, error) {
	return amdgpu.New(amdgpu.Options{
		Root: s.Host, Sysfs: s.Sysfs, Procfs: s.Procfs, Interval: s.GPUInterval, SMI: s.AMDSMI,
		CgroupOf: s.cgroupOf(), Holders: s.holders.Holders, Cards: s.dri.Cards(), Logger: log,
	})
}

func newIntel(s *services, log *zap.Logger) (engine.Source, error) {
	return intel.New(intel.Options{
		Root: s.Host, Sysfs: s.Sysfs, Procfs: s.Procfs, Interval: s.GPUInterval,
		CgroupOf: s.cgroupOf(), Holders: s.holders.Holders, Cards: s.dri.Cards(), Logger: log,
	})
}
