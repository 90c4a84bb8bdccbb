// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"debug/elf"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The bytes are those of compilers, most of them of rdma-core's in Debian.
func TestPoint(t *testing.T) {
	for _, c := range []struct {
		name, code string
		prologue   uint64
		offset     uint64
		stepped    bool
		refused    bool
	}{
		{name: "push rbp", code: "55 48 89 e5"},
		{name: "push r15", code: "41 57 41 56 48 83 ec 68"},
		{name: "push rsp", code: "54 c3"},
		{name: "endbr64, push r14", code: "f3 0f 1e fa 41 56 41 55", offset: 4},
		{name: "patchable entry", code: "90 90 90 90 90 48 89 fa"},
		{name: "endbr64, xchg ax,ax", code: "f3 0f 1e fa 66 90 48 89 fa", offset: 4},
		{name: "jmp first", code: "e9 10 00 00 00"},
		{name: "short jmp first", code: "eb 10"},
		{name: "mov eax,[rdi]; jmp", code: "8b 07 e9 10 00 00 00", offset: 2},
		{name: "mov rax,[rdi+1a8]; push rbx", code: "48 8b 87 a8 01 00 00 53", offset: 7},
		{name: "test rdx,rdx; push rbx", code: "48 85 d2 53", offset: 3},
		{name: "lea r10,[rsp+8]; push", code: "4c 8d 54 24 08 55", offset: 5},
		{name: "nopl, push", code: "0f 1f 40 00 55", offset: 4},
		{name: "xor eax,eax; push", code: "31 c0 55", offset: 2},

		{name: "sub rsp, push", code: "48 83 ec 08 55", stepped: true},
		{name: "endbr64, sub rsp, push", code: "f3 0f 1e fa 48 83 ec 08 55", stepped: true},
		{name: "and rsp", code: "48 83 e4 f0 55", stepped: true},
		{name: "mov r8,rdi; push: copies an argument", code: "49 89 f8 55", offset: 3},
		{name: "mov r9d,[rdi]; push", code: "44 8b 0f 41 57", offset: 3},
		{name: "mov rdx,rdi", code: "48 89 fa 8b bf c4 01 00 00 55", stepped: true},
		{name: "mov edi,..: half of an argument", code: "8b bf c4 01 00 00 55", stepped: true},
		{name: "mov sil,1: a byte of one", code: "40 b6 01 55", stepped: true},
		{name: "xor ecx,ecx: length of an SGE", code: "31 c9 55", stepped: true},
		{name: "mov rbx,rdi: not ours to pass", code: "48 89 fb 55", stepped: true},
		{name: "mov [rdx],0: writes", code: "48 c7 02 00 00 00 00 55", stepped: true},
		{name: "jne is reached before push", code: "8b 87 c8 01 00 00 85 c0 75 01 55 c3", offset: 8},
		{name: "far jne", code: "44 8b 87 50 02 00 00 45 85 c0 0f 85 01 00 00 00 90 c3", offset: 10},
		{name: "jne that a loop comes back to", code: "8b 07 85 c0 75 03 c3 eb f9", stepped: true},
		{name: "jne that a loop comes back to, after endbr64", code: "f3 0f 1e fa 85 c0 75 02 ff c8 eb f8 c3", stepped: true},
		{name: "jne that a loop comes back to alone", code: "8b 07 85 c0 75 05 ff c8 eb fa c3", stepped: true},
		{name: "jne where the rest is not understood", code: "85 c0 75 01 06", stepped: true},
		{name: "jne whose function ends early", code: "85 c0 75 01 0f", stepped: true},
		{name: "test, call, push: beyond a call", code: "85 c0 e8 00 00 00 00 55", stepped: true},
		{name: "push beyond the prologue", code: "8b 07 55", prologue: 2, stepped: true},
		{name: "mov, call: beyond a call", code: "8b 07 e8 00 00 00 00 55", stepped: true},
		{name: "xchg r8,rax is no nop", code: "f3 0f 1e fa 49 90 55", stepped: true},
		{name: "xchg r8d,eax, which kernels take for one", code: "f3 0f 1e fa 41 90 55", stepped: true},
		{name: "pause is no nop here", code: "f3 0f 1e fa f3 90 55", stepped: true},
		{name: "ret", code: "c3", stepped: true},
		{name: "add rdi; jmp", code: "48 81 c7 b0 01 00 00 e9 24 fc ff ff", stepped: true},
		{name: "truncated push r15 after mov", code: "8b 07 41", stepped: true},
		{name: "64 bytes of nopl", code: strings.Repeat("0f1f4000", 20) + "55", stepped: true},

		{name: "call first", code: "e8 00 00 00 00 55", refused: true},
		{name: "indirect jmp, as in a PLT", code: "ff 25 00 00 00 00", refused: true},
		{name: "jcc first", code: "75 10 55", refused: true},
		{name: "syscall first", code: "0f 05", refused: true},
		{name: "int3 first", code: "cc", refused: true},
		{name: "pop first", code: "58 50", refused: true},
		{name: "truncated endbr64", code: "f3 0f 1e", refused: true},
		{name: "truncated", code: "48", refused: true},
		{name: "nothing", code: "", refused: true},
	} {
		code := unhex(t, c.code)
		prologue := uint64(len(code))
		if c.prologue != 0 {
			prologue = c.prologue
		}
		offset, stepped, err := choosePoint(elf.EM_X86_64, code, prologue)
		if c.refused != errors.Is(err, errNoPoint) || offset != c.offset || stepped != c.stepped {
			t.Errorf("%s: offset %d, stepped %v, %v; want %d, %v, refused %v", c.name, offset, stepped, err, c.offset, c.stepped, c.refused)
		}
	}
	offset, stepped, err := choosePoint(elf.EM_AARCH64, unhex(t, "3f2303d5 fd7bbea9"), 8) // paciasp; stp x29, x30
	if offset != 0 || !stepped || err != nil {
		t.Errorf("arm64: %d, %v, %v; want the entry", offset, stepped, err)
	}
}

func FuzzPoint(f *testing.F) {
	for _, s := range []string{"55", "4157", "f30f1efa4156", "488b87a801000053", "e910000000", "c5f877c3", "62f17c48"} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		offset, stepped, err := choosePoint(elf.EM_X86_64, code, uint64(len(code)))
		switch {
		case err != nil:
			if offset != 0 || stepped {
				t.Errorf("% x: a point and an error: %v", code, err)
			}
		case stepped && offset != 0:
			t.Errorf("% x: stepped at %d", code, offset)
		case offset >= uint64(len(code)) || offset >= maxPrologue:
			t.Errorf("% x: point at %d", code, offset)
		case !stepped && !emulated(code[offset:]) && !branches(code[offset:]):
			t.Errorf("% x: not emulated at %d", code, offset)
		}
	})
}
