// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const (
	// maxProcesses bounds the processes of one device or part. Further processes are ignored.
	maxProcesses = 4096
	// noInstance stands for no instance, and for an unknown instance.
	noInstance = math.MaxUint32
)

// A sampler lists the processes of one device and the usage of its engines since the last listing. It is not safe for
// concurrent use.
type sampler struct {
	l      *Library
	root   string // root of the node
	cursor cursor
	usage  engineUsage
	gpm    gpm
	rates  []model.Figure  // rates of GPM at the last listing
	parts  map[string]*gpm // by UUID of the part
	uses   map[int]use     // of processes, also ended ones, before the last listing; nil if unknown
}

func newSampler(l *Library, root string) *sampler {
	return &sampler{l: l, root: root, gpm: gpm{l: l}, parts: make(map[string]*gpm)}
}

// close frees the sampler's memory in the library, which must still be open.
func (s *sampler) close() {
	s.gpm.close()
	for uuid := range s.parts {
		s.forget(uuid)
	}
}

func (s *sampler) forget(uuid string) {
	s.parts[uuid].close()
	delete(s.parts, uuid)
}

// list returns the processes of the device, or of its parts, sorted by GPU and PID, and the usage of the device's
// engines. Processes are nil if no list is supported, or if the list would lack processes (ProcessesListed). They have
// engines from the second listing on. Clients of MPS never have engines: the driver samples their server. On parts and
// on virtual GPUs the driver does not sample processes. The error wraps a nvml.Return.
func (s *sampler) list(
	d nvml.Device, uuid string, parts []part, now time.Time,
) (processes []model.GPUProcess, engines []model.Figure, err error) {
	engines = s.whole(d)
	s.uses = nil
	if wire.ProcessesListed(s.root) != nil {
		return nil, engines, nil
	}
	if len(parts) == 0 {
		s.uses = s.sample(d, now)
	}
	found, err := s.running(d, uuid, parts)
	if err != nil || found == nil {
		return nil, engines, err
	}
	processes = make([]model.GPUProcess, 0, len(found))
	for _, p := range found {
		if u, ran := s.uses[p.PID]; ran {
			p.Engines = u.figures()
		} else if s.uses != nil && !p.MPS { // the samples count the work of MPS clients for the server
			p.Engines = []model.Figure{}
		}
		processes = append(processes, *p)
	}
	slices.SortFunc(processes, func(a, b model.GPUProcess) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.PID, b.PID))
	})
	return processes, engines, nil
}

func (s *sampler) whole(d nvml.Device) []model.Figure {
	counters := s.gpm.read(d, d.GpmSampleGet)
	s.rates = counters.rates
	return append(s.usage.read(d), counters.engines...)
}

// engines returns the GPM counters of each part, by UUID. The driver has no other engine usage of parts. GPM has no
// counters of parts that share a GPU instance.
func (s *sampler) engines(d nvml.Device, parts []part) map[string][]model.Figure {
	all := make(map[string][]model.Figure)
	for _, p := range parts {
		if p.gpuInstance < 0 || !sole(p, parts) {
			continue
		}
		if s.parts[p.uuid] == nil {
			s.parts[p.uuid] = &gpm{l: s.l}
		}
		take := func(g nvml.GpmSample) nvml.Return { return d.GpmMigSampleGet(p.gpuInstance, g) }
		all[p.uuid] = s.parts[p.uuid].read(d, take).engines
	}
	for uuid := range s.parts {
		if _, there := all[uuid]; !there {
			s.forget(uuid)
		}
	}
	return all
}

type user struct {
	gpu string
	pid int
}

// running merges the lists of the device. The list of a device with parts has all processes with their instances, if
// the caller has permission. If some instances are unknown, running reads the lists of the parts. It returns nil if no
// list is supported.
func (s *sampler) running(d nvml.Device, uuid string, parts []part) (map[user]*model.GPUProcess, error) {
	if len(parts) == 0 {
		return s.merge(d, func(nvml.ProcessInfo) (string, bool) { return uuid, true })
	}
	lost := false
	found, err := s.merge(d, func(p nvml.ProcessInfo) (string, bool) {
		for _, part := range parts {
			if p.GpuInstanceId == uint32(part.gpuInstance) &&
				(p.ComputeInstanceId == uint32(part.computeInstance) ||
					p.ComputeInstanceId == noInstance && sole(part, parts)) {
				return part.uuid, true
			}
		}
		lost = true
		return "", false
	})
	if err == nil && found != nil && !lost {
		return found, nil
	}
	for _, part := range parts {
		more, err := s.merge(part.handle, func(nvml.ProcessInfo) (string, bool) { return part.uuid, true })
		if err != nil {
			return nil, err
		}
		if found == nil {
			found = more
		}
		maps.Copy(found, more)
	}
	return found, nil
}

// sole reports whether no other part shares the GPU instance of p.
func sole(p part, parts []part) bool {
	return !slices.ContainsFunc(parts, func(o part) bool {
		return o.gpuInstance == p.gpuInstance && o.computeInstance != p.computeInstance
	})
}

// merge reads the compute, graphics and MPS lists of a device. A process can be in several lists, with the same memory
// in each.
func (s *sampler) merge(
	d nvml.Device, gpuOf func(nvml.ProcessInfo) (string, bool),
) (map[user]*model.GPUProcess, error) {
	var found map[user]*model.GPUProcess
	for _, kind := range []struct {
		name string
		list func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
		mps  bool
	}{
		{"nvmlDeviceGetComputeRunningProcesses", nvml.Device.GetComputeRunningProcesses, false},
		{"nvmlDeviceGetGraphicsRunningProcesses", nvml.Device.GetGraphicsRunningProcesses, false},
		{"nvmlDeviceGetMPSComputeRunningProcesses", nvml.Device.GetMPSComputeRunningProcesses, true},
	} {
		listed, ret := kind.list(d)
		if ret != nvml.SUCCESS {
			if valueOnly(ret) {
				continue
			}
			return nil, fmt.Errorf("%s: %w", kind.name, ret)
		}
		if found == nil {
			found = make(map[user]*model.GPUProcess)
		}
		for _, l := range listed {
			gpu, ok := gpuOf(l)
			if !ok || l.Pid == 0 || l.Pid > math.MaxInt32 {
				continue
			}
			u := user{gpu, int(l.Pid)}
			p := found[u]
			if p == nil {
				if len(found) >= maxProcesses {
					continue
				}
				p = &model.GPUProcess{GPU: gpu, PID: u.pid}
				found[u] = p
			}
			p.MPS = p.MPS || kind.mps
			if l.UsedGpuMemory != math.MaxUint64 && (!p.Memory.Known || float64(l.UsedGpuMemory) > p.Memory.Value) {
				p.Memory = model.Some(float64(l.UsedGpuMemory))
			}
		}
	}
	return found, nil
}

// sample returns the usage per process since the last call (nvmlDeviceGetProcessUtilization);
// nil if unknown.
func (s *sampler) sample(d nvml.Device, now time.Time) map[int]use {
	samples, ret := processUtilization(d, s.cursor.stamp)
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND:
		return s.cursor.next(samples, now)
	}
	return nil
}

// processUtilization calls nvmlDeviceGetProcessUtilization. It recovers from a panic in go-nvml: if the driver adds
// samples between go-nvml's two calls, go-nvml slices its buffer beyond its end.
func processUtilization(d nvml.Device, after uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		if recover() != nil {
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	for range 3 {
		if samples, ret = d.GetProcessUtilization(after); ret != nvml.ERROR_INSUFFICIENT_SIZE {
			break
		}
	}
	if ret == nvml.ERROR_INSUFFICIENT_SIZE && len(samples) == 0 { // an empty list
		return nil, nvml.ERROR_NOT_FOUND
	}
	return samples, ret
}
