// SPDX-License-Identifier: Apache-2.0

// Package bpf serves tests of BPF programs. It runs programs of tracing hooks without the hooks, on a copy of the
// kernel's structures in the memory of a map, and makes compiled objects that the kernel refuses in part.
package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Memory is the map whose value is the memory: an array with one element.
const Memory = "memory"

// AddMemory adds the map.
func AddMemory(spec *ebpf.CollectionSpec, size int) {
	spec.Maps[Memory] = &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: 1}
}

// AddressOf returns the address of the memory in the kernel.
func AddressOf(t testing.TB, memory *ebpf.Map) (at uint64) {
	t.Helper()
	found, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close() //nolint:errcheck // nothing was written
	locate, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapValue(asm.R1, memory.FD(), 0),
			asm.LoadMapValue(asm.R2, found.FD(), 0),
			asm.StoreMem(asm.R2, 0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer locate.Close() //nolint:errcheck // nothing was written
	if _, err := locate.Run(&ebpf.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := found.Lookup(uint32(0), &at); err != nil {
		t.Fatal(err)
	}
	return at
}
