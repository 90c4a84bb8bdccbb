// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func emulatedLeaf()
TEXT ·emulatedLeaf(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BP
	POPQ BP
	RET

// func leafAddress() uintptr
TEXT ·leafAddress(SB), NOSPLIT|NOFRAME, $0-8
	LEAQ ·emulatedLeaf(SB), AX
	MOVQ AX, ret+0(FP)
	RET
