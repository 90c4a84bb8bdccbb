// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// errNoPoint says that a function cannot be probed without harm.
var errNoPoint = errors.New("no instruction to probe")

const (
	// maxPrologue is how far from its beginning a function is probed at most.
	maxPrologue = 64
	// maxFunction is how many bytes of a function are looked at: one that is longer
	// is taken for cut off.
	maxFunction = 64 << 10
)

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// point chooses where a function is probed: on the first instruction that the
// kernel emulates, as long as what is before it leaves the stack, the memory and
// the arguments alone; else on the first one, which is then stepped. code is that
// of the function, of which prologue bytes are before the return address is no
// longer on top of the stack.
func point(machine elf.Machine, code []byte, prologue uint64) (offset uint64, stepped bool, err error) {
	if machine != elf.EM_X86_64 {
		if len(code) < 4 {
			return 0, false, fmt.Errorf("%w: no code", errNoPoint)
		}
		return 0, true, nil // arm64 emulates few, and none that functions begin with
	}
	head := code[:min(uint64(len(code)), prologue, maxPrologue)]
	for at := 0; at < len(head); {
		rest := head[at:]
		if emulated(rest) || (branches(rest) && at > 0 && !loops(code, at)) {
			return uint64(at), false, nil
		}
		n, harmless := pass(rest)
		if !harmless {
			break
		}
		at += n
	}
	if err := steppable(head); err != nil {
		return 0, false, err
	}
	return 0, true, nil
}

// emulated says whether x86 kernels (arch/x86/kernel/uprobes.c, push_setup_xol_ops
// and branch_setup_xol_ops, since 4.20) emulate an instruction, of those that
// nothing jumps back to. Calls are emulated as well, but some kernels forget the
// shadow stack then; longer nops only by newer ones.
func emulated(code []byte) bool {
	nop := bytes.TrimLeft(code, "\x66")
	switch {
	case len(code) >= 1 && code[0]&^7 == 0x50: // push
		return true
	case len(code) >= 2 && code[0] == 0x41 && code[1]&^7 == 0x50: // push r8 to r15
		return true
	case len(code) >= 2 && code[0] == 0xeb, len(code) >= 5 && code[0] == 0xe9: // jmp
		return true
	}
	return len(nop) > 0 && nop[0] == 0x90 && len(code)-len(nop) <= 8
}

// branches says whether an instruction is a conditional branch, which is emulated,
// too.
func branches(code []byte) bool {
	return (len(code) >= 2 && code[0]&^15 == 0x70) || (len(code) >= 6 && code[0] == 0x0f && code[1]&^15 == 0x80)
}

// loops says whether anything in a function may jump back to what is between its
// first instruction and the one at an offset, so that this is met more than once a
// call.
func loops(code []byte, offset int) bool {
	for at := 0; at < len(code); {
		n := len(endbr64)
		if !bytes.HasPrefix(code[at:], endbr64) {
			inst, err := instructionAt(code[at:])
			if err != nil {
				return true // who knows
			}
			n = inst.Len
			target, relative := inst.Args[0].(x86asm.Rel)
			if to := at + n + int(target); relative && inst.Op != x86asm.CALL && 0 < to && to <= offset {
				return true
			}
		}
		at += n
	}
	return false
}

// instructionAt decodes the first instruction of code.
func instructionAt(code []byte) (x86asm.Inst, error) {
	inst, err := x86asm.Decode(code, 64)
	if err == nil && (inst.Op == 0 || inst.Len <= 0) { // what is left is no whole instruction
		err = x86asm.ErrTruncated
	}
	return inst, err
}

// pass gives the length of an instruction, and whether a probe after it sees what
// one before it would.
func pass(code []byte) (n int, harmless bool) {
	if bytes.HasPrefix(code, endbr64) {
		return len(endbr64), true
	}
	inst, err := instructionAt(code)
	if err != nil {
		return 0, false
	}
	switch inst.Op {
	case x86asm.NOP, x86asm.TEST, x86asm.CMP:
		return inst.Len, true
	case x86asm.MOV, x86asm.MOVZX, x86asm.MOVSX, x86asm.MOVSXD, x86asm.LEA,
		x86asm.XOR, x86asm.AND, x86asm.OR, x86asm.ADD, x86asm.SUB, x86asm.SHL, x86asm.SHR, x86asm.SAR:
		return inst.Len, free(inst.Args[0])
	}
	return inst.Len, false
}

// free says whether an operand is a register that holds neither one of the first
// four arguments, which are all that is read, nor what a function must keep.
func free(arg x86asm.Arg) bool {
	switch arg {
	case x86asm.AL, x86asm.AX, x86asm.EAX, x86asm.RAX,
		x86asm.R8B, x86asm.R8W, x86asm.R8L, x86asm.R8,
		x86asm.R9B, x86asm.R9W, x86asm.R9L, x86asm.R9,
		x86asm.R10B, x86asm.R10W, x86asm.R10L, x86asm.R10,
		x86asm.R11B, x86asm.R11W, x86asm.R11L, x86asm.R11:
		return true
	}
	return false
}

// steppable refuses a first instruction whose copy elsewhere is not sure to do the
// same: a call pushes the wrong address, and none that a function does not begin
// with was ever tried.
func steppable(code []byte) error {
	if bytes.HasPrefix(code, endbr64) {
		return nil
	}
	inst, err := instructionAt(code)
	if err != nil {
		return fmt.Errorf("%w: % x: %w", errNoPoint, code[:min(len(code), 8)], err)
	}
	switch inst.Op {
	case x86asm.MOV, x86asm.MOVZX, x86asm.MOVSX, x86asm.MOVSXD, x86asm.MOVAPS, x86asm.MOVUPS, x86asm.MOVDQA, x86asm.MOVDQU,
		x86asm.MOVQ, x86asm.MOVD, x86asm.LEA, x86asm.XOR, x86asm.AND, x86asm.OR, x86asm.ADD, x86asm.SUB, x86asm.SHL,
		x86asm.SHR, x86asm.SAR, x86asm.TEST, x86asm.CMP, x86asm.NOP, x86asm.INC, x86asm.DEC, x86asm.NEG, x86asm.NOT,
		x86asm.PXOR, x86asm.XORPS, x86asm.RET, x86asm.PREFETCHT0, x86asm.BT, x86asm.IMUL:
		return nil
	}
	return fmt.Errorf("%w: it begins with %v", errNoPoint, inst.Op)
}
