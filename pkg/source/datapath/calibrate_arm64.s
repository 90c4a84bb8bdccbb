// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func emulatedLeaf()
TEXT ·emulatedLeaf(SB), NOSPLIT|NOFRAME, $0-0
	NOOP
	RET

// func steppedLeaf()
TEXT ·steppedLeaf(SB), NOSPLIT|NOFRAME, $0-0
	ADD $1, R0, R0
	RET

// func leaves() (emulated, stepped uintptr)
TEXT ·leaves(SB), NOSPLIT|NOFRAME, $0-16
	MOVD $·emulatedLeaf(SB), R0
	MOVD R0, emulated+0(FP)
	MOVD $·steppedLeaf(SB), R0
	MOVD R0, stepped+8(FP)
	RET
