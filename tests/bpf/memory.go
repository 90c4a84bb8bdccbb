// SPDX-License-Identifier: Apache-2.0

// Package bpf runs programs of tracing hooks for tests, without the hooks: on a copy of the kernel's structures in the memory of a map.
package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Memory is the map whose value is the memory: an array of one element.
const Memory = "memory"

const (
	address = "address"
	locate  = "locate"
)

// AddMemory adds the map, and what finds its address.
func AddMemory(spec *ebpf.CollectionSpec, size int) {
	spec.Maps[Memory] = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: 1}
	spec.Maps[address] = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	spec.Programs[locate] = &ebpf.ProgramSpec{
		Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapValue(asm.R1, 0, 0).WithReference(Memory),
			asm.LoadMapValue(asm.R2, 0, 0).WithReference(address),
			asm.StoreMem(asm.R2, 0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	}
}

// AddressOf returns the address of the memory in the kernel.
func AddressOf(t testing.TB, coll *ebpf.Collection) (at uint64) {
	t.Helper()
	if _, err := coll.Programs[locate].Run(&ebpf.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := coll.Maps[address].Lookup(uint32(0), &at); err != nil {
		t.Fatal(err)
	}
	return at
}
