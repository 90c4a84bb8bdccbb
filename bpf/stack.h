/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The stack of uprobe programs, and the stack pointer of the probed function. */
#ifndef ACCELSCOPE_STACK_H
#define ACCELSCOPE_STACK_H

#include "kernel.h"

/*
 * A uprobe program can be preempted while another thread on the CPU runs the same program. Since 6.13 (arm64: 6.17)
 * a kprobe program with a stack of 64 bytes or more uses a stack of the CPU, so threads would overwrite each
 * other's variables, pointers included. Programs with a tail call keep their own stack, even if the verifier
 * removes an unreachable tail call.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} nowhere SEC(".maps");
static const volatile __u8 never;

#define STACK_OF_THREAD(ctx)                                                                                           \
	do {                                                                                                           \
		if (never)                                                                                             \
			bpf_tail_call(ctx, &nowhere, 0);                                                               \
	} while (0)

/* The stack pointer at the entry of the function, computed at its return. */
#if defined(__TARGET_ARCH_x86)
#define SP_AT_RETURN(ctx) (PT_REGS_SP(ctx) - 8)
#else
#define SP_AT_RETURN(ctx) PT_REGS_SP(ctx)
#endif

#endif
