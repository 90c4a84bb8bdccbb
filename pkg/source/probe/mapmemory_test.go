// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"math/bits"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// totalMemory returns an upper bound in bytes of the kernel memory of all maps, on a machine with that many possible
// CPUs. The bound leaves out the values of task storage: 128 bytes per thread that uses RDMA.
func totalMemory(opts Options, growing bool, cpus int) (uint64, error) {
	compiled, err := compile(opts, growing)
	if err != nil {
		return 0, err
	}
	var sum uint64
	seen := map[string]bool{}
	for _, spec := range compiled {
		for name, m := range spec.Maps {
			// The objects share these.
			if name == gen.VerbsMapMarkedCgroups || name == gen.VerbsMapWorkloadOf {
				if seen[name] {
					continue
				}
				seen[name] = true
			}
			n, err := mapMemory(m, uint64(cpus), uint64(os.Getpagesize()))
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// Sizes of kernel structures in bytes: the largest of Linux 5.10 to 6.18 on 64-bit machines, without lock debugging and
// without PREEMPT_RT, which make every lock larger. TestKernelStructures compares them with BTF.
const (
	arraySize   = 512  // struct bpf_array, kernel/bpf/arraymap.c
	hashSize    = 1024 // struct bpf_htab, kernel/bpf/hashtab.c
	storageSize = 512  // struct bpf_local_storage_map
	elementSize = 48   // struct htab_elem, without key and value
	bucketSize  = 16   // struct bucket and struct bpf_local_storage_map_bucket
	pointerSize = 8

	freeListSize  = 16  // struct pcpu_freelist_head, per CPU of a hash map
	localListSize = 40  // struct bpf_lru_locallist, per CPU of an LRU hash map
	locksSize     = 32  // bpf_htab.map_locked: HASHTAB_MAP_LOCK_COUNT counters per CPU
	counterSize   = 8   // bpf_map.elem_count, since 6.6
	cacheSize     = 512 // struct bpf_mem_cache, per CPU of a hash map that grows
)

// mapMemory returns an upper bound of the memory that the kernel allocates for a map, and of the size that it reports
// in fdinfo. It adds up what array_map_alloc, htab_map_alloc or bpf_local_storage_map_alloc allocate, without page
// tables and vmalloc descriptors.
func mapMemory(m *ebpf.MapSpec, cpus, page uint64) (uint64, error) {
	entries := uint64(m.MaxEntries)
	value := roundUp(uint64(m.ValueSize), 8)
	switch {
	case m.Type == ebpf.Array:
		// Without CAP_PERFMON, array_map_alloc rounds the entries up to a power of two. In a map that processes can
		// map, the structure has its own page.
		return area(arraySize, page) + area(powerOfTwo(entries)*value, page), nil
	case m.Type == ebpf.PerCPUArray:
		entries = powerOfTwo(entries)
		return area(arraySize+entries*pointerSize, page) + entries*value*cpus, nil
	case (m.Type == ebpf.Hash || m.Type == ebpf.LRUHash) && m.Flags&unix.BPF_F_NO_PREALLOC == 0:
		// prealloc_init adds an element per CPU to a hash map. 5.10 charges an LRU hash map for these elements too, in
		// htab_map_alloc.
		elements := (entries + cpus) * (elementSize + roundUp(uint64(m.KeySize), 8) + value)
		perCPU := uint64(max(freeListSize+pointerSize, localListSize) + locksSize + counterSize)
		return area(hashSize, page) + area(powerOfTwo(entries)*bucketSize, page) + area(elements, page) + cpus*perCPU, nil
	case m.Type == ebpf.Hash:
		// Elements with a pointer come from kmalloc through a list per CPU (bpf_mem_alloc_init), which keeps freed
		// elements up to its high_watermark. Deleted elements are freed after a grace period.
		element := kmalloc(elementSize + roundUp(uint64(m.KeySize), 8) + value + pointerSize)
		elements := entries + cpus*max(96*256/max(element, 256), 3)
		return area(hashSize, page) + area(powerOfTwo(entries)*bucketSize, page) + elements*element + cpus*(cacheSize+locksSize+counterSize), nil
	case m.Type == ebpf.TaskStorage:
		// bpf_local_storage_map_alloc makes a bucket per CPU, at least two.
		return area(storageSize, page) + area(powerOfTwo(max(cpus, 2))*bucketSize, page), nil
	default:
		return 0, fmt.Errorf("memory of map %s: type %s with flags %#x has no bound", m.Name, m.Type, m.Flags)
	}
}

// kmalloc returns the size of the slab object for size bytes.
func kmalloc(size uint64) uint64 {
	for _, between := range []uint64{96, 192} {
		if size <= between && size > powerOfTwo(size)/2 && between < powerOfTwo(size) {
			return between
		}
	}
	return powerOfTwo(size)
}

// area returns an upper bound of the memory that bpf_map_area_alloc allocates for size bytes. kmalloc rounds up to a
// power of two and serves areas of up to 8 pages (PAGE_ALLOC_COSTLY_ORDER). vmalloc rounds up to whole pages.
func area(size, page uint64) uint64 {
	if size <= page<<3 {
		return max(powerOfTwo(size), page)
	}
	return roundUp(size, page)
}

// powerOfTwo rounds n up to a power of two, as roundup_pow_of_two does.
func powerOfTwo(n uint64) uint64 {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len64(n-1)
}

func roundUp(n, multiple uint64) uint64 {
	return (n + multiple - 1) / multiple * multiple
}

// compile returns the compiled objects for a kernel whose maps grow, or do not.
func compile(o Options, growing bool) (all []*ebpf.CollectionSpec, err error) {
	table := &btf.Struct{Name: "bpf_htab"}
	if growing {
		table.Members = []btf.Member{{Name: "ma", Type: &btf.Int{Size: 4}}}
	}
	b, err := btf.NewBuilder([]btf.Type{table}, nil)
	if err != nil {
		return nil, err
	}
	types, err := b.Spec()
	if err != nil {
		return nil, err
	}
	specs := o.specs()
	for _, s := range specs.all() {
		compiled, err := s.Compile(&hook.Kernel{Types: types})
		if err != nil {
			return nil, err
		}
		all = append(all, compiled)
	}
	return all, nil
}
