// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
)

var defaults = Options{MaxEntries: minMaxEntries, MaxObjects: minMaxObjects}

// TestMapMemory limits the memory of the maps on a large node, as bpf/README.md states, and more with pages larger than
// 4 KiB. Maps that grow need the additional memory only when they are full.
func TestMapMemory(t *testing.T) {
	for _, c := range []struct {
		devices, limit int
		growing        bool
	}{
		{1, 33, false},
		{10, 63, false},
		{1000, 63, false},
		{1, 60, true},
		{10, 101, true},
		{1000, 101, true},
	} {
		if os.Getpagesize() > 4<<10 {
			c.limit += 3
		}
		got, err := totalMemory(Options{}.sized(256, c.devices), c.growing, 256)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("256 CPUs, %d HCAs, growing %v: %.1f MiB", c.devices, c.growing, float64(got)/(1<<20))
		if got > uint64(c.limit)<<20 {
			t.Errorf("the maps take %d bytes on 256 CPUs with %d HCAs (growing %v), want at most %d MiB", got, c.devices, c.growing, c.limit)
		}
	}
	large, err := totalMemory(defaults, false, 256)
	if err != nil {
		t.Fatal(err)
	}
	small, err := totalMemory(defaults, false, 1)
	if err != nil {
		t.Fatal(err)
	}
	if large-small > 5<<18 {
		t.Errorf("255 more CPUs take %d bytes more", large-small)
	}
}

// TestSizes: the limits grow with the node, and the share of an owner has room for all verbs of all devices.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		cpus, devices          int
		option, entries, share uint32
		objects                uint32
	}{
		{2, 1, 0, 8192, 2048, 65536},
		{64, 6, 0, 8192, 2048, 98304},
		{128, 8, 0, 16384, 4096, 131072},
		{256, 10, 0, 32768, 8192, 131072},
		{8192, 138, 0, 32768, 8192, 131072},
		{2, 60, 0, 8192, 2340, 65536},
		{2, 138, 0, 8192, 2730, 70656},
		{256, 10, 100, 100, 33, 131072},
		{256, 1, 1000, 1000, 250, 65536},
	} {
		o := Options{MaxEntries: c.option}.sized(c.cpus, c.devices)
		if share := o.entriesShare(); o.MaxEntries != c.entries || share != c.share || o.MaxObjects != c.objects {
			t.Errorf("%+v: %d entries, share %d; %d objects", c, o.MaxEntries, share, o.MaxObjects)
		}
	}
	if o := (Options{MaxObjects: 5}).sized(256, 10); o.MaxObjects != 5 {
		t.Errorf("%d objects, want the option", o.MaxObjects)
	}
}

// kernelLayout holds the sizes of a kernel's structures, from its BTF, and the function that computes the memory of a
// map as fdinfo reports it.
type kernelLayout struct {
	name                 string
	array, hash, storage uint64
	usage                func(l kernelLayout, m *ebpf.MapSpec, cpus, page uint64) uint64
}

var kernelLayouts = []kernelLayout{
	{name: "5.10", array: 320, usage: charged},
	{name: "6.1", usage: footprint},
	// 6.1 allocates what the formula of 6.4 gives for the structures of 6.1.
	{name: "6.1 allocated", array: 320, hash: 832, storage: 320, usage: memUsage},
	{name: "6.13", array: 296, hash: 896, storage: 296, usage: memUsage},
	{name: "6.18", array: 312, hash: 832, storage: 448, usage: memUsage},
}

// pow2 and align are the kernel's roundup_pow_of_two and round_up.
func pow2(n uint64) uint64 {
	p := uint64(1)
	for p < n {
		p += p
	}
	return p
}

func align(n, to uint64) uint64 {
	for n%to != 0 {
		n++
	}
	return n
}

// memUsage is the kernel's bpf_map_ops.map_mem_usage, since 6.4: array_map_mem_usage, htab_map_mem_usage and
// bpf_local_storage_map_mem_usage.
func memUsage(l kernelLayout, m *ebpf.MapSpec, cpus, page uint64) uint64 {
	entries, value := uint64(m.MaxEntries), align(uint64(m.ValueSize), 8)
	element := 48 + align(uint64(m.KeySize), 8) + value
	switch m.Type {
	case ebpf.Array:
		if m.Flags&unix.BPF_F_MMAPABLE != 0 {
			return align(l.array, page) + align(entries*value, page)
		}
		return l.array + entries*value
	case ebpf.PerCPUArray:
		return l.array + entries*8 + entries*value*cpus
	case ebpf.Hash:
		return l.hash + 16*pow2(entries) + 4*cpus*8 + element*(entries+cpus) + 8*cpus
	case ebpf.LRUHash:
		return l.hash + 16*pow2(entries) + 4*cpus*8 + element*entries
	case ebpf.TaskStorage:
		return l.storage + 16*pow2(max(2, cpus))
	}
	panic("no formula for " + m.Type.String())
}

// footprint is the kernel's bpf_map_memory_footprint, 5.11 to 6.3.
func footprint(_ kernelLayout, m *ebpf.MapSpec, cpus, page uint64) uint64 {
	value := uint64(m.ValueSize)
	if m.Type == ebpf.PerCPUArray {
		value = align(value, 8) * cpus
	}
	return align(uint64(m.MaxEntries)*align(uint64(m.KeySize)+value, 8), page)
}

// charged returns the cost that the map_alloc functions of 5.10 pass to bpf_map_charge_init.
func charged(l kernelLayout, m *ebpf.MapSpec, cpus, page uint64) uint64 {
	entries, value := uint64(m.MaxEntries), align(uint64(m.ValueSize), 8)
	element := 48 + align(uint64(m.KeySize), 8) + value
	var cost uint64
	switch m.Type {
	case ebpf.Array:
		cost = l.array + entries*value
		if m.Flags&unix.BPF_F_MMAPABLE != 0 {
			cost = align(l.array, page) + align(entries*value, page)
		}
	case ebpf.PerCPUArray:
		cost = l.array + entries*8 + entries*value*cpus
	case ebpf.Hash, ebpf.LRUHash:
		cost = 16*pow2(entries) + element*entries + element*cpus
	case ebpf.TaskStorage: // since 5.11
		return 0
	default:
		panic("no formula for " + m.Type.String())
	}
	return align(cost, page)
}

// TestMapMemoryOfKernels compares the bound of each map with the formulas of several kernels, written independently of
// mapmemory_test.go, for any number of CPUs. With pages of 4 KiB and up to 256 CPUs, the sum of the bounds is at most 2
// % above what the kernel allocates.
func TestMapMemoryOfKernels(t *testing.T) {
	compiled, err := compile(defaults, false)
	if err != nil {
		t.Fatal(err)
	}
	var maps []*ebpf.MapSpec
	for _, spec := range compiled {
		for _, m := range spec.Maps {
			maps = append(maps, m)
			if m.Type == ebpf.Array && m.Flags&unix.BPF_F_MMAPABLE == 0 {
				m = m.Copy()
				m.Flags |= unix.BPF_F_MMAPABLE
				maps = append(maps, m)
			}
		}
	}
	for _, cpus := range []uint64{1, 2, 3, 4, 16, 255, 256, 8192} {
		for _, page := range []uint64{4 << 10, 64 << 10} {
			for _, l := range kernelLayouts {
				t.Run(fmt.Sprintf("%s/%d CPUs/pages of %d", l.name, cpus, page), func(t *testing.T) {
					var bounds, sum uint64
					// The elements and buckets of this map fill whole pages, so that rounding up cannot hide a part
					// that the bound lacks.
					full := &ebpf.MapSpec{Name: "full", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 32768 - uint32(cpus)}
					for _, m := range append(maps, full) {
						bound, err := mapMemory(m, cpus, page)
						if err != nil {
							t.Fatal(err)
						}
						size := l.usage(l, m, cpus, page)
						if size > bound {
							t.Errorf("%s takes %d bytes, the bound is %d", m.Name, size, bound)
						}
						bounds, sum = bounds+bound, sum+size
					}
					if l.hash > 0 && cpus <= 256 && page == 4<<10 && bounds > sum+sum/50 {
						t.Errorf("all maps take %d bytes, the bound is %d", sum, bounds)
					}
				})
			}
		}
	}
}

// TestMapMemoryWithoutBound: mapMemory returns an error for a map type that it does not know.
func TestMapMemoryWithoutBound(t *testing.T) {
	for _, m := range []ebpf.MapSpec{
		{Type: ebpf.RingBuf, MaxEntries: 4096},
		{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 4, MaxEntries: 1},
	} {
		if n, err := mapMemory(&m, 1, 4096); err == nil {
			t.Errorf("%s with flags %#x takes %d bytes, want an error", m.Type, m.Flags, n)
		}
	}
}

// TestKernelStructures compares the sizes in mapmemory_test.go with the running kernel's BTF.
func TestKernelStructures(t *testing.T) {
	root(t)
	kernel, err := hook.ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	for name, bound := range map[string]uint32{
		"bpf_array": arraySize, "bpf_htab": hashSize, "htab_elem": elementSize, "bucket": bucketSize,
		"bpf_mem_cache": cacheSize, "bpf_local_storage_map": storageSize, "bpf_local_storage_map_bucket": bucketSize,
		"pcpu_freelist_head": freeListSize, "bpf_lru_locallist": localListSize,
	} {
		var s *btf.Struct
		if err := kernel.Types.TypeByName(name, &s); err != nil {
			t.Errorf("struct %s: %v", name, err)
			continue
		}
		if s.Size > bound {
			t.Errorf("struct %s has %d bytes, more than %d", name, s.Size, bound)
		}
	}
}

// TestMapMemoryOfKernel compares the bound with the size that the running kernel reports for each map. All maps are
// empty.
func TestMapMemoryOfKernel(t *testing.T) {
	root(t)
	kernel, err := hook.ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	var whole uint64
	specs := defaults.specs()
	for _, s := range specs.all() {
		spec, err := s.Compile(kernel)
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := hook.Open(*s, noHooks)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		for name, m := range o.Coll.Maps {
			info, err := m.Info()
			if err != nil {
				t.Fatal(err)
			}
			size, ok := info.Memlock()
			if !ok {
				t.Errorf("the kernel reports no size of %s", name)
				continue
			}
			bound, err := mapMemory(spec.Maps[name], uint64(cpus), uint64(os.Getpagesize()))
			if err != nil {
				t.Fatal(err)
			}
			whole += size
			t.Logf("%-12s %9d bytes, bound %9d", name, size, bound)
			if size > bound {
				t.Errorf("%s takes %d bytes, the bound is %d", name, size, bound)
			}
		}
	}
	if limit := uint64(14 << 20); kernel.GrowingMaps() && cpus <= 16 && whole > limit {
		t.Errorf("empty maps take %d bytes, want at most %d", whole, limit)
	}
}
