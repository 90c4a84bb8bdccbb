// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// maxProcesses bounds the processes of one device, or part. What is more belongs
	// to nobody.
	maxProcesses = 4096
	// noInstance is the instance of a process that is in none, or of which the driver
	// does not say in which it is.
	noInstance = math.MaxUint32
)

// A sampler lists the processes of one device, and what the engines did since the last
// listing. One goroutine uses it.
type sampler struct {
	l        *library
	cgroupOf func(int) (uint64, error)
	cursor   cursor
	meter    meter
	gpm      gpm
	parts    map[string]*gpm // of the parts, by UUID
}

// newSampler makes the sampler of one device; cgroupOf may be nil.
func newSampler(l *library, cgroupOf func(int) (uint64, error)) *sampler {
	return &sampler{l: l, cgroupOf: cgroupOf, meter: meter{l: l}, gpm: gpm{l: l}, parts: make(map[string]*gpm)}
}

// close gives back what the library keeps for the sampler, while it is open.
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

// list gives the processes of the device, or of its parts where it has some, by GPU and
// pid, and what the engines of the device did. Processes are nil where no list is
// supported. They have engines from the second listing on; those of parts never: the
// driver samples no processes of them, and neither on a virtual GPU. The error wraps a
// nvml.Return.
func (s *sampler) list(
	d nvml.Device, uuid string, parts []part, now time.Time,
) (processes []model.GPUProcess, engines []model.Figure, err error) {
	engines = append(s.meter.read(d), s.gpm.read(d, d.GpmSampleGet)...)
	var uses map[int]use
	if len(parts) == 0 {
		uses = s.uses(d, now)
	}
	found, err := s.running(d, uuid, parts)
	if err != nil {
		return nil, engines, err
	}
	if found == nil {
		return nil, engines, nil
	}
	processes = make([]model.GPUProcess, 0, len(found))
	for _, p := range found {
		if uses != nil {
			p.Engines = []model.Figure{}
			if u, ran := uses[p.PID]; ran {
				p.Engines = u.figures()
			}
		}
		if s.cgroupOf != nil {
			if id, err := s.cgroupOf(p.PID); err == nil {
				p.Cgroup = id
			}
		}
		processes = append(processes, *p)
	}
	slices.SortFunc(processes, func(a, b model.GPUProcess) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.PID, b.PID))
	})
	return processes, engines, nil
}

// engines gives what GPM tells of each part, by UUID: the driver tells nothing else of
// what the engines of a part do, and GPM nothing of parts that share a GPU instance.
func (s *sampler) engines(d nvml.Device, parts []part) map[string][]model.Figure {
	all := make(map[string][]model.Figure)
	for _, p := range parts {
		if p.gpuInstance < 0 || !alone(p, parts) {
			continue
		}
		if s.parts[p.uuid] == nil {
			s.parts[p.uuid] = &gpm{l: s.l}
		}
		take := func(g nvml.GpmSample) nvml.Return { return d.GpmMigSampleGet(p.gpuInstance, g) }
		all[p.uuid] = s.parts[p.uuid].read(d, take)
	}
	for uuid := range s.parts {
		if _, there := all[uuid]; !there {
			s.forget(uuid)
		}
	}
	return all
}

// user is one process on one GPU, or part of it.
type user struct {
	gpu string
	pid int
}

// running merges the lists of the device. Of a device with parts it has all processes,
// with their instances, for who may see them; where that leaves some of them in no
// part, the parts are asked. It is nil when no list is supported.
func (s *sampler) running(d nvml.Device, uuid string, parts []part) (map[user]*model.GPUProcess, error) {
	if len(parts) == 0 {
		return s.merge(d, func(nvml.ProcessInfo) (string, bool) { return uuid, true })
	}
	lost := false
	found, err := s.merge(d, func(p nvml.ProcessInfo) (string, bool) {
		for _, part := range parts {
			if p.GpuInstanceId == uint32(part.gpuInstance) &&
				(p.ComputeInstanceId == uint32(part.computeInstance) ||
					p.ComputeInstanceId == noInstance && alone(part, parts)) {
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

// alone says whether a part has its GPU instance for itself.
func alone(p part, parts []part) bool {
	return !slices.ContainsFunc(parts, func(o part) bool {
		return o.gpuInstance == p.gpuInstance && o.computeInstance != p.computeInstance
	})
}

// merge reads the compute, graphics and MPS lists of a device. A process can be in
// several of them, and is told with the same memory in each.
func (s *sampler) merge(
	d nvml.Device, gpuOf func(nvml.ProcessInfo) (string, bool),
) (map[user]*model.GPUProcess, error) {
	var found map[user]*model.GPUProcess
	for _, kind := range []struct {
		symbol string
		list   func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
		mps    bool
	}{
		{"nvmlDeviceGetComputeRunningProcesses", nvml.Device.GetComputeRunningProcesses, false},
		{"nvmlDeviceGetGraphicsRunningProcesses", nvml.Device.GetGraphicsRunningProcesses, false},
		{"nvmlDeviceGetMPSComputeRunningProcesses", nvml.Device.GetMPSComputeRunningProcesses, true},
	} {
		if !s.l.hasVersion(kind.symbol) {
			continue
		}
		listed, ret := kind.list(d)
		if ret != nvml.SUCCESS {
			if figureOnly(ret) {
				continue
			}
			return nil, fmt.Errorf("%s: %w", kind.symbol, ret)
		}
		if found == nil {
			found = make(map[user]*model.GPUProcess)
		}
		for _, l := range listed {
			gpu, ours := gpuOf(l)
			if !ours || l.Pid == 0 || l.Pid > math.MaxInt32 {
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

// uses reads the samples of the device since the last time
// (nvmlDeviceGetProcessUtilization); nil where they are not known.
func (s *sampler) uses(d nvml.Device, now time.Time) map[int]use {
	if !s.l.has("nvmlDeviceGetProcessUtilization") {
		return nil
	}
	samples, ret := processUtilization(d, s.cursor.stamp)
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_FOUND:
		return s.cursor.next(samples, now)
	}
	return nil
}

// processUtilization calls nvmlDeviceGetProcessUtilization. Between the question for
// the number of samples and the one for the samples there may be more of them: go-nvml
// then slices its buffer beyond its end.
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
	if ret == nvml.ERROR_INSUFFICIENT_SIZE && len(samples) == 0 { // a count of none
		return nil, nvml.ERROR_NOT_FOUND
	}
	return samples, ret
}

// hasVersion says whether the library has a function in any version.
func (l *library) hasVersion(symbol string) bool {
	return l.has(symbol+"_v3") || l.has(symbol+"_v2") || l.has(symbol)
}
