// SPDX-License-Identifier: Apache-2.0

// Package placement compares the places of GPUs and HCAs in the tree of PCIe bridges with their users: how near a
// workload's HCAs are to its GPUs, whether it uses GPUDirect, and which HCAs near its GPUs are idle.
//
// It is pure. topology.go has the devices and the relation of each pair, use.go what each workload uses, problems.go
// its problems, and refresh.go computes all once per refresh. An unknown relation causes no problem.
package placement

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Placement is the topology of a node and what workloads use of it.
type Placement struct {
	Topology
	// Owners are the workloads that hold each of Devices, as sorted indexes into the owners of the Attribution.
	Owners [][]int
	// Workloads are the workloads that hold GPUs and use HCAs.
	Workloads []Workload
}

func of(s *model.Snapshot, a *attribution.Attribution) Placement {
	p := Placement{Topology: New(s)}
	uses := usesOf(&p.Topology, a)
	p.Owners = make([][]int, len(p.Devices))
	for _, w := range uses {
		for _, devices := range [...][]int{w.GPUs, w.HCAs} {
			for _, d := range devices {
				p.Owners[d] = append(p.Owners[d], w.Owner)
			}
		}
	}
	j := newJudge(&p)
	for _, w := range uses {
		if len(w.GPUs) == 0 || len(w.HCAs) == 0 {
			continue
		}
		w.Pairs = p.pairs(&w)
		w.Problems = j.problems(&w)
		p.Workloads = append(p.Workloads, w)
	}
	return p
}
