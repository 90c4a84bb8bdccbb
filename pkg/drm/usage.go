// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// Use identifies one process on one GPU.
type Use struct {
	GPU string // UUID
	PID int
}

// Engines are the busy ratios of the engines that a process uses on a GPU.
type Engines struct {
	Known  bool
	Ratios map[string]float64
}

// Add adds to the ratio of an engine, which then is known.
func (e *Engines) Add(name string, ratio float64) {
	if e.Ratios == nil {
		e.Ratios = map[string]float64{}
	}
	e.Known = true
	e.Ratios[name] = min(e.Ratios[name]+ratio, 1)
}

// Figures returns the ratios by name, nil if they are unknown.
func (e *Engines) Figures() []model.Figure {
	if !e.Known {
		return nil
	}
	list := make([]model.Figure, 0, len(e.Ratios))
	for _, name := range slices.Sorted(maps.Keys(e.Ratios)) {
		list = append(list, model.Figure{Name: name, Value: e.Ratios[name]})
	}
	return list
}

// GPUProcesses converts the usages of one listing to the model, sorted. fill sets memory and engines. cgroupOf may be nil. The
// cgroup is resolved now: a process that ends later keeps it.
func GPUProcesses[U any](
	usages map[Use]U, cgroupOf func(pid int) (model.CgroupID, error), fill func(p *model.GPUProcess, u U),
) []model.GPUProcess {
	list := make([]model.GPUProcess, 0, len(usages))
	cgroups := map[int]model.CgroupID{}
	for k, u := range usages {
		cgroup, known := cgroups[k.PID]
		if !known && cgroupOf != nil {
			if id, err := cgroupOf(k.PID); err == nil {
				cgroup = id
			}
			cgroups[k.PID] = cgroup
		}
		p := model.GPUProcess{GPU: k.GPU, PID: k.PID, Cgroup: cgroup}
		fill(&p, u)
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b model.GPUProcess) int {
		return cmp.Or(strings.Compare(a.GPU, b.GPU), a.PID-b.PID)
	})
	return list
}

// Clients returns the clients that a process has open, by the minor number of the node, of the wanted nodes. parse returns false
// for fdinfo of other drivers.
func Clients[C any](
	procfs string, pid int, wanted func(minor uint32) bool, parse func(fdinfo []byte) (C, bool),
) map[uint32][]C {
	var clients map[uint32][]C
	Files(procfs, pid, wanted, func(minor uint32, fdinfo []byte) {
		c, ok := parse(fdinfo)
		if !ok {
			return
		}
		if clients == nil {
			clients = map[uint32][]C{}
		}
		clients[minor] = append(clients[minor], c)
	})
	return clients
}
