/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#ifndef ACCELSCOPE_REGISTERS_H
#define ACCELSCOPE_REGISTERS_H

#include "kernel.h"

/* Size of a kernel stack, for kernels without bpf_task_pt_regs(). User space sets it. */
const volatile __u32 stack_size = 16384;

#if defined(__TARGET_ARCH_x86)
/* arch/x86/include/asm/thread_info.h */
#define TS_COMPAT 2
#else
/* arch/arm64/include/uapi/asm/ptrace.h */
#define PSR_MODE32_BIT 0x10
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info___registers {
	__u32 status; /* x86 */
};

struct task_struct___registers {
	struct thread_info___registers thread_info;
	void *stack;
	__u32 flags;
};

struct pt_regs___entry {
#if defined(__TARGET_ARCH_x86)
	unsigned long orig_ax, si, cx;
#else
	__u64 regs[31];
	__u64 pstate;
	__s32 syscallno;
#endif
};

#pragma clang attribute pop

/* The registers with which the current thread entered the kernel. */
static __always_inline struct pt_regs___entry *entry_registers(struct task_struct___registers *task)
{
	/* 5.15 and later. From 6.9 on, x86 stores more than the registers there. */
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	return BPF_CORE_READ(task, stack) + stack_size - bpf_core_type_size(struct pt_regs___entry);
}

/* Returns whether the thread's system call comes from a 32-bit program, if the thread is in a system call. */
static __always_inline bool is_compat(struct task_struct___registers *task, struct pt_regs___entry *regs)
{
#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread_info.status) & TS_COMPAT;
#else
	return BPF_CORE_READ(regs, pstate) & PSR_MODE32_BIT;
#endif
}

#endif
