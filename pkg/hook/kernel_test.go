// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/accelscope/accelscope/pkg/model"
)

// typesOf returns types in the kernel's encoding.
func typesOf(t *testing.T, types ...btf.Type) *Kernel {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return &Kernel{Types: spec}
}

func TestSubsystem(t *testing.T) {
	kernel := typesOf(t, &btf.Enum{Name: "cgroup_subsys_id", Size: 4, Values: []btf.EnumValue{
		{Name: "cpuset_cgrp_id", Value: 0},
		{Name: "cpu_cgrp_id", Value: 1},
		{Name: "memory_cgrp_id", Value: 4},
		{Name: "CGROUP_SUBSYS_COUNT", Value: 5},
	}})
	for name, want := range map[string]int32{"": -1, "cpuset": 0, "cpu": 1, "memory": 4} {
		if got, err := kernel.Subsystem(name); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"rdma", "mem", "CGROUP_SUBSYS_COUNT"} {
		if _, err := kernel.Subsystem(name); !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("%q: %v, want ErrUnsupported", name, err)
		}
	}
	without := typesOf(t, &btf.Int{Name: "int", Size: 4})
	if _, err := without.Subsystem("memory"); !errors.Is(err, btf.ErrNotFound) {
		t.Errorf("without the enum: %v", err)
	}
	if got, err := without.Subsystem(""); err != nil || got != -1 {
		t.Errorf("cgroup v2 without the enum: %d, %v", got, err)
	}
}

// TestSubsystemOfThisKernel: /proc/cgroups lists the controllers in the order of the enum.
func TestSubsystemOfThisKernel(t *testing.T) {
	root(t)
	kernel, err := ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		t.Skip(err) // a kernel without cgroup v1
	}
	last := int32(-1)
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		name := strings.Fields(line)[0]
		if name == "blkio" {
			name = "io" // its name in cgroup v2 and in the enum
		}
		got, err := kernel.Subsystem(name)
		if err != nil || got <= last {
			t.Errorf("%s: %d after %d, %v", name, got, last, err)
		}
		last = got
	}
}

func TestSymbols(t *testing.T) {
	got, err := Symbols()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) >= 3 {
			for _, prefix := range symbolPrefixes {
				if strings.HasPrefix(fields[2], string(prefix)) {
					want[fields[2]] = true
				}
			}
		}
	}
	if !want["chrdev_open"] {
		t.Fatal("this kernel has no chrdev_open")
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%d functions, want %d", len(got), len(want))
	}
}

func TestUverbs(t *testing.T) {
	sysfs := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(sysfs, "class/infiniband_verbs", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Uverbs(sysfs); err != nil || len(got) != 0 {
		t.Errorf("without the directory: %v, %v", got, err)
	}
	write("abi_version", "6\n")
	write("uverbs0/dev", "231:192\n")
	write("uverbs0/ibdev", "mlx5_0\n")
	write("uverbs1/dev", "507:1048575\n")
	write("uverbs1/ibdev", "rxe0\n")
	write("uverbs2/dev", "231:194\n") // without ibdev
	write("uverbs3/ibdev", "mlx5_3\n")
	write("uverbs4/dev", "no number\n")
	write("uverbs4/ibdev", "mlx5_4\n")
	want := map[uint32]string{231<<20 | 192: "mlx5_0", 507<<20 | 1048575: "rxe0"}
	if got, err := Uverbs(sysfs); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	file := filepath.Join(t.TempDir(), "class")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Uverbs(filepath.Dir(file)); err == nil {
		t.Error("a file is no directory, and no error")
	}
}

func testMap(t *testing.T, size uint32) *ebpf.Map {
	t.Helper()
	root(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestBatches(t *testing.T) {
	var keys []uint32
	var values []uint64
	for _, c := range []struct{ size, entries uint32 }{{4, 0}, {4, 3}, {4, 4}, {8192, 0}, {8192, 5000}, {16, 16}} {
		m := testMap(t, c.size)
		for k := range c.entries {
			if err := m.Put(k, uint64(k)*3); err != nil {
				t.Fatal(err)
			}
		}
		got := map[uint32]uint64{}
		n, err := Batches(m, &keys, &values, func(k uint32, v *uint64) {
			if _, twice := got[k]; twice {
				t.Errorf("key %d twice", k)
			}
			got[k] = *v
		})
		if err != nil || n != uint64(c.entries) || len(got) != int(c.entries) {
			t.Errorf("%+v: %d entries, %d keys, %v", c, n, len(got), err)
		}
		for k, v := range got {
			if v != uint64(k)*3 {
				t.Errorf("key %d: %d", k, v)
			}
		}
		if len(keys) > batchSize || len(values) != len(keys) {
			t.Errorf("%d keys and %d values are kept", len(keys), len(values))
		}
	}
}

// TestBatchesGrow: buffers are no larger than a map with few entries needs. A buffer for one entry is too small for
// many buckets of a full map.
func TestBatchesGrow(t *testing.T) {
	for range 10 { // the positions of the keys differ from map to map
		for _, c := range []struct{ entries, before, after int }{{firstBatch - 1, 0, firstBatch}, {1024, 1, 1024}} {
			m := testMap(t, 1024)
			for k := range uint32(c.entries) {
				if err := m.Put(k, uint64(k)); err != nil {
					t.Fatal(err)
				}
			}
			keys, values := makeBatch[uint32, uint64](c.before)
			got := map[uint32]bool{}
			n, err := Batches(m, &keys, &values, func(k uint32, _ *uint64) { got[k] = true })
			if err != nil || n != uint64(c.entries) || len(got) != c.entries || len(keys) > c.after {
				t.Errorf("from %d: %d entries, %d keys, buffers of %d, %v", c.before, n, len(got), len(keys), err)
			}
		}
	}
}

func TestBatchesOfClosedMap(t *testing.T) {
	m := testMap(t, 4)
	m.Close()
	var keys []uint32
	var values []uint64
	if _, err := Batches(m, &keys, &values, func(uint32, *uint64) {}); err == nil {
		t.Error("no error")
	}
}

func TestRemove(t *testing.T) {
	m := testMap(t, 4)
	for k := range uint32(3) {
		if err := m.Put(k, uint64(k)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(m, []uint32{0, 7, 2}); err != nil { // 7 does not exist
		t.Fatal(err)
	}
	var v uint64
	for k, want := range map[uint32]error{0: ebpf.ErrKeyNotExist, 1: nil, 2: ebpf.ErrKeyNotExist} {
		if err := m.Lookup(k, &v); !errors.Is(err, want) {
			t.Errorf("key %d: %v, want %v", k, err, want)
		}
	}
	if err := Remove(m, []uint64{1}); err == nil {
		t.Error("keys of another size, and no error")
	}
}
