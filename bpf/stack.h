/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What programs of uprobes need of stacks: one of their own, and the stack pointer of the function.
 */
#ifndef ACCELSCOPE_STACK_H
#define ACCELSCOPE_STACK_H

#include "kernel.h"

/*
 * A uprobe program can be preempted, and another thread on the same CPU can then run the same program. Since 6.13 (arm64:
 * 6.17) a kprobe program with a stack of 64 bytes or more uses a stack of the CPU: each thread would overwrite the variables
 * of the other one, pointers included. The kernel excepts programs with a tail call, even if the tail call is never reached;
 * the verifier removes it.
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

/* The stack pointer that the function had at its entry, computed at its return. */
#if defined(__TARGET_ARCH_x86)
#define SP_AT_RETURN(ctx) (PT_REGS_SP(ctx) - 8)
#else
#define SP_AT_RETURN(ctx) PT_REGS_SP(ctx)
#endif

#endif
