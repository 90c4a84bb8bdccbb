// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"

	"golang.org/x/arch/x86/x86asm"
)

// errNoPoint means that a function cannot be probed safely.
var errNoPoint = errors.New("no instruction to probe")

const (
	// maxPrologue is the maximum distance of a probe from the function's entry.
	maxPrologue = 64
	// maxFunction is the number of bytes of a function that are read.
	maxFunction = 64 << 10
)

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// choosePoint chooses where a function is probed: at the first instruction that the
// kernel emulates, if the instructions before it change neither the stack, nor
// memory, nor arguments; otherwise at the first instruction, which the kernel
// single-steps. In the first prologue bytes of the code the return address is on
// top of the stack. arguments is the number of arguments in registers that the programs read.
func choosePoint(machine elf.Machine, code []byte, prologue uint64, arguments int) (offset uint64, stepped bool, err error) {
	if machine != elf.EM_X86_64 {
		if len(code) < 4 {
			return 0, false, fmt.Errorf("%w: no code", errNoPoint)
		}
		return 0, true, nil // arm64 emulates few instructions, and none at a function's entry
	}
	head := code[:min(uint64(len(code)), prologue, maxPrologue)]
	for at := 0; at < len(head); {
		rest := head[at:]
		if emulated(rest) || (branches(rest) && at > 0 && !loops(code, at)) {
			return uint64(at), false, nil
		}
		n, ok := harmless(rest, arguments)
		if !ok {
			break
		}
		at += n
	}
	if err := steppable(head); err != nil {
		return 0, false, err
	}
	return 0, true, nil
}

// emulated reports whether x86 kernels since 4.20 emulate an instruction
// (arch/x86/kernel/uprobes.c, push_setup_xol_ops and branch_setup_xol_ops).
// Conditional branches are left to branches. Calls are emulated too, but some
// kernels ignore the shadow stack then; longer nops only by newer kernels.
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

// branches reports whether an instruction is a conditional branch, which the kernel
// emulates.
func branches(code []byte) bool {
	return (len(code) >= 2 && code[0]&^15 == 0x70) || (len(code) >= 6 && code[0] == 0x0f && code[1]&^15 == 0x80)
}

// loops reports whether a function may jump back to an instruction after the first
// one, up to the offset, so that a probe there is hit more than once per call.
func loops(code []byte, offset int) bool {
	for at := 0; at < len(code); {
		n := len(endbr64)
		if !bytes.HasPrefix(code[at:], endbr64) {
			inst, err := instructionAt(code[at:])
			if err != nil {
				return true // unknown
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
	if err == nil && (inst.Op == 0 || inst.Len <= 0) { // an incomplete instruction
		err = x86asm.ErrTruncated
	}
	return inst, err
}

// harmless returns the length of an instruction and whether a probe after it finds
// the same stack, memory and arguments as one before it.
func harmless(code []byte, arguments int) (n int, ok bool) {
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
		return inst.Len, isScratch(inst.Args[0], arguments)
	}
	return inst.Len, false
}

// isScratch reports whether an operand is a register that contains none of the
// first arguments, which the programs read: at least four. A function need not keep it.
func isScratch(arg x86asm.Arg, arguments int) bool {
	switch arg {
	case x86asm.R8B, x86asm.R8W, x86asm.R8L, x86asm.R8:
		return arguments < 5
	case x86asm.R9B, x86asm.R9W, x86asm.R9L, x86asm.R9:
		return arguments < 6
	case x86asm.AL, x86asm.AX, x86asm.EAX, x86asm.RAX,
		x86asm.R10B, x86asm.R10W, x86asm.R10L, x86asm.R10,
		x86asm.R11B, x86asm.R11W, x86asm.R11L, x86asm.R11:
		return true
	}
	return false
}

// steppable returns an error if the first instruction may not work when the kernel
// executes a copy of it elsewhere. A call would push the wrong address. Only
// instructions that functions of real providers begin with are allowed.
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
	return fmt.Errorf("%w: the code begins with %v", errNoPoint, inst.Op)
}
