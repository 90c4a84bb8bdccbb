// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// A lister lists the processes that use AMD GPUs, from KFD (compute) and from fdinfo (all
// users of a node). It keeps the counters of the last listing. It reads some files for each
// process and is not safe for concurrent use.
//
// Compute memory is in both: in KFD's vram_* if it was allocated through KFD, and in fdinfo
// because it is mapped in the address space of the render node, which every compute process
// opens. Neither is complete: fdinfo lacks memory shared with the CPU (SVM) and requires Linux
// 5.14; KFD lacks graphics. And fdinfo counts for this GPU the memory of others that is mapped
// in the address space: in an XGMI hive, with peer access, the memory of all GPUs, and memory
// exported by other processes. So the memory of a process with KFD memory is KFD's value, and
// the memory of others fdinfo's value; graphics memory of the former is unattributed. KFD's value
// may be of memory in GTT: see pools.
//
// Engines have fdinfo's names, with decoder and encoder for dec and enc; sdma is the busy
// ratio of the copy queues of compute, divided by the number of SDMA engines; cu is the ratio
// of compute units that is occupied at the moment of the listing: a sample, not a ratio of
// time. The kernel does not report how long the other compute queues were busy.
type lister struct {
	o       Options
	kfd     *kfd
	timeout time.Duration // for all processes together

	// Calls by process: of KFD, which reads the memory of the process, and of fdinfo. A
	// process that hangs KFD does not use a slot of fdinfo.
	compute                    hang.Group[int, []computeUse]
	clients                    hang.Group[int, map[uint32][]client]
	computeLimit, clientsLimit time.Duration
	counters                   drm.Counters
	started                    time.Time // of the first listing

	// Of the last listing.
	pools    pools
	activity map[drm.Use]model.Optional
}

func newLister(o Options) *lister {
	return &lister{
		o: o, kfd: newKFD(o.Sysfs), timeout: drm.ListTimeout,
		computeLimit: drm.ProcessLimit, clientsLimit: drm.ProcessLimit,
	}
}

// list returns the processes that have memory of a GPU of cards or have used its engines,
// sorted. A client that several processes have is credited to the one that computes, else to
// the lowest PID, which is usually the one that opened it. A process that ends during the
// listing may be missing. An error comes with the readable part.
func (l *lister) list(cards []model.GPU, now time.Time) ([]model.GPUProcess, error) {
	at := locate(cards)
	nodes, err := l.kfd.topology()
	computing, err2 := l.kfd.processes()
	pids, err3 := l.candidates(computing)
	problems := []error{err, err2, err3}

	if l.started.IsZero() {
		l.started = now
	}
	l.counters.Begin()
	scan := usageScan{
		counters: &l.counters, now: now.Sub(l.started), usages: map[drm.Use]*usage{},
		pools: findPools(cards, nodes, at, l.pools),
	}
	owned := map[drm.Key]bool{}
	deadline := time.Now().Add(l.timeout)
	hanging, full := 0, false
	for i, pid := range pids {
		if time.Now().After(deadline) {
			problems = append(problems, drm.Timeout(i, len(pids), l.timeout))
			break
		}
		var compute []computeUse
		if i < len(computing) {
			compute = l.kfd.uses(pid, nodes, at)
		}
		measured, computeErr := l.measure(pid, compute)
		for _, c := range measured {
			scan.compute(pid, c)
		}
		if computeErr != nil {
			for _, c := range compute {
				scan.memory(pid, c.gpu, c.memory)
			}
		}
		clients, clientsErr := l.clients.Do(context.Background(), pid, l.clientsLimit, func() (map[uint32][]client, error) {
			return drm.Clients(l.o.Procfs, pid, at.hasNode, parseFdinfo), nil
		})
		if computeErr != nil || clientsErr != nil {
			hanging++
		}
		for minor, list := range clients {
			for _, c := range list {
				k := drm.Key{GPU: at.minors[int(minor)], ID: c.id}
				if owned[k] {
					continue
				}
				if full = len(owned) >= drm.MaxClients; full {
					continue
				}
				owned[k] = true
				scan.client(pid, k, c)
			}
		}
	}
	if full {
		problems = append(problems, drm.TooMany())
	}
	if hanging > 0 {
		problems = append(problems,
			fmt.Errorf("reading of %d processes hangs in the driver: their engines are %w", hanging, drm.ErrBounded))
	}
	l.pools = scan.pools
	l.pools.observe(scan.usages, at.totals)
	return l.processes(scan.usages), errors.Join(problems...)
}

// measure reads the values of a process that may hang.
func (l *lister) measure(pid int, compute []computeUse) ([]computeUse, error) {
	if len(compute) == 0 {
		return nil, nil
	}
	return l.compute.Do(context.Background(), pid, l.computeLimit, func() ([]computeUse, error) {
		measured := slices.Clone(compute)
		for i := range measured {
			measured[i].measure()
		}
		return measured, nil
	})
}

// candidates returns the processes to read, KFD's processes first, then by PID.
func (l *lister) candidates(computing []int) ([]int, error) {
	slices.Sort(computing)
	others, err := drm.Processes(l.o.Procfs, l.o.Holders)
	others = slices.DeleteFunc(others, func(pid int) bool {
		_, found := slices.BinarySearch(computing, pid)
		return found
	})
	return slices.Concat(computing, others), err
}

// processes converts usages to the model.
func (l *lister) processes(usages map[drm.Use]*usage) []model.GPUProcess {
	computes := map[int]bool{}
	for k, u := range usages {
		computes[k.PID] = computes[k.PID] || u.compute > 0
	}
	l.activity = make(map[drm.Use]model.Optional, len(usages))
	return drm.GPUProcesses(usages, l.o.CgroupOf, func(p *model.GPUProcess, u *usage) {
		l.activity[drm.Use{GPU: p.GPU, PID: p.PID}] = u.activity()
		p.Memory, p.GTT = u.memory(computes[p.PID], l.pools.gtt[p.GPU])
		p.Engines = u.engines.Figures()
	})
}
