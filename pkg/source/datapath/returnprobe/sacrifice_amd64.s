// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

#define EXIT_GROUP 231

// func callProbed(calls *systemCall, n int)
TEXT ·callProbed(SB), NOSPLIT, $0-16
	MOVQ calls+0(FP), BX
	MOVQ n+8(FP), R12
next:
	TESTQ R12, R12
	JEQ ready
	MOVQ 0(BX), AX
	MOVQ 8(BX), DI
	MOVQ 16(BX), SI
	MOVQ 24(BX), DX
	MOVQ 32(BX), R10
	MOVQ 40(BX), R8
	SYSCALL
	TESTQ AX, AX
	JNE failed
	ADDQ $48, BX
	DECQ R12
	JMP next
ready:
	CALL ·emulatedLeaf(SB)
	XORL DI, DI
	JMP exit
failed:
	MOVQ AX, DI
	NEGQ DI
exit:
	MOVL $EXIT_GROUP, AX
	SYSCALL
	INT $3
