// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"github.com/cilium/ebpf"
)

// MapMemory is an upper bound of the kernel memory of all maps, in bytes, on a
// machine with so many possible CPUs. What grows with the CPUs are the free
// lists and one scratch buffer of 512 bytes: no counter is per CPU.
func MapMemory(opts Options, cpus int) (uint64, error) {
	compiled, err := sizedSpecs(opts)
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, spec := range compiled.all() {
		for _, m := range spec.Maps {
			sum += mapMemory(m, uint64(cpus))
		}
	}
	return sum, nil
}

// kernel/bpf/hashtab.c, generously: struct htab_elem is 48 bytes, a bucket 16,
// and a preallocated map has an extra element for each CPU.
const (
	element = 48
	bucket  = 16
	perCPU  = 64
)

func mapMemory(m *ebpf.MapSpec, cpus uint64) uint64 {
	keyValue := uint64(m.KeySize+7)/8*8 + uint64(m.ValueSize+7)/8*8
	entries := uint64(m.MaxEntries)
	switch m.Type {
	case ebpf.Hash, ebpf.LRUHash:
		buckets := uint64(1)
		for buckets < entries {
			buckets *= 2
		}
		return (entries+cpus)*(element+keyValue) + buckets*bucket + cpus*perCPU
	case ebpf.PerCPUArray:
		return entries * keyValue * cpus
	case ebpf.TaskStorage:
		// Allocated with the first verbs call of a thread and freed with the
		// thread: not bounded here, 128 bytes for each thread that uses RDMA.
		return 0
	default:
		return entries * keyValue
	}
}
