// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"sync"
	"testing"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestOnce: concurrent readers get the same value. A further read allocates nothing, so it computes nothing.
func TestOnce(t *testing.T) {
	s := dgxA100.facts()
	r := NewRefresh(s, attributed(s, job{gpus: []int{0}, hcas: []int{5}}))
	var wg sync.WaitGroup
	var read [3]*Workload
	for i := range read {
		wg.Go(func() { read[i] = &r.Workloads()[0] })
	}
	wg.Wait()
	for _, w := range read {
		if w != &r.Placement().Workloads[0] {
			t.Error("the placement was computed again")
		}
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = r.Workloads(), r.Placement() }); n != 0 {
		t.Errorf("reading it again makes %v allocations", n)
	}
}

// TestNothingToPlace: without GPUs or HCAs, Workloads does not compute the topology, which still lists the devices.
func TestNothingToPlace(t *testing.T) {
	all := dgxA100.facts()
	for _, s := range []*model.Snapshot{{HCAs: all.HCAs, PCI: all.PCI}, {GPUs: all.GPUs, PCI: all.PCI}, {}} {
		r := NewRefresh(s, &attribution.Attribution{})
		if n := testing.AllocsPerRun(1, func() { r.Workloads() }); n != 0 || r.placement.Devices != nil {
			t.Errorf("%d HCAs, %d GPUs: %v allocations, %d devices", len(s.HCAs), len(s.GPUs), n, len(r.placement.Devices))
		}
		if got := len(r.Placement().Devices); got != len(s.HCAs)+len(s.GPUs) {
			t.Errorf("%d devices of %d HCAs and %d GPUs", got, len(s.HCAs), len(s.GPUs))
		}
	}
	var none *Refresh
	if none.Workloads() != nil || len(none.Placement().Devices) != 0 {
		t.Error("no refresh has devices")
	}
}

// BenchmarkRefresh measures the placement of a fully used DGX A100, computed for each reader, and once.
func BenchmarkRefresh(b *testing.B) {
	s := dgxA100.facts()
	jobs := make([]job, 8)
	for i := range jobs {
		jobs[i] = job{gpus: []int{i}, hcas: []int{0, 1, 2, 3, 6, 7, 8, 9}}
	}
	a := attributed(s, jobs...)
	const readers = 3
	b.Run("each", func(b *testing.B) {
		for b.Loop() {
			for range readers {
				NewRefresh(s, a).Workloads()
			}
		}
	})
	b.Run("once", func(b *testing.B) {
		for b.Loop() {
			r := NewRefresh(s, a)
			for range readers {
				r.Workloads()
			}
		}
	})
}

// BenchmarkCrowded measures the placement of 1,000 workloads on a DGX A100 with 128 virtual functions. Each workload has
// a GPU and an HCA; every other one has an HCA of another NUMA node.
func BenchmarkCrowded(b *testing.B) {
	s := dgxA100.facts()
	for i := range 128 {
		pf := &s.HCAs[i%10]
		s.HCAs = append(s.HCAs, model.HCA{Name: fmt.Sprint("mlx5_", 12+i), VF: true, PF: pf.Name, Ports: pf.Ports})
	}
	jobs := make([]job, 1000)
	rails := [...]int{0, 1, 2, 3, 6, 7, 8, 9}
	for i := range jobs {
		jobs[i] = job{gpus: []int{i % 8}, hcas: []int{rails[(i+i%2*4)%8]}, memory: map[model.Memory]uint64{model.GPUMemory: 1}}
	}
	a := attributed(s, jobs...)
	b.ReportAllocs()
	for b.Loop() {
		NewRefresh(s, a).Workloads()
	}
}
