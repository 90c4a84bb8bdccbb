// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func emulatedLeaf()
TEXT ·emulatedLeaf(SB), NOSPLIT|NOFRAME, $0-0
	NOOP
	RET

// func leafAddress() uintptr
TEXT ·leafAddress(SB), NOSPLIT|NOFRAME, $0-8
	MOVD $·emulatedLeaf(SB), R0
	MOVD R0, ret+0(FP)
	RET
