// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func emulatedLeaf()
TEXT ·emulatedLeaf(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BP
	POPQ BP
	RET

// func steppedLeaf()
TEXT ·steppedLeaf(SB), NOSPLIT|NOFRAME, $0-0
	XORL AX, AX
	RET

// func leaves() (emulated, stepped uintptr)
TEXT ·leaves(SB), NOSPLIT|NOFRAME, $0-16
	LEAQ ·emulatedLeaf(SB), AX
	MOVQ AX, emulated+0(FP)
	LEAQ ·steppedLeaf(SB), AX
	MOVQ AX, stepped+8(FP)
	RET
