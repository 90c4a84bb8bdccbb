// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// Makes the kernel skip kprobes of rdma_restrack_del, and count this: it calls the function in the handler of another
// kprobe, with an entry that was never added, for which the function does nothing. BuildModule of package tests/machines/vm
// builds it.

#include <linux/kprobes.h>
#include <linux/module.h>
#include <rdma/restrack.h>

static unsigned long restrack_del; // the address of rdma_restrack_del, which is not exported
module_param(restrack_del, ulong, 0444);

// A kprobe at the entry of a function uses ftrace, which does not call handlers in handlers.
void missed_place(void);

static noinline void pass(void)
{
	asm volatile(".globl missed_place\nmissed_place:\n\tnop\n\tnop\n\tnop\n\tnop\n\tnop");
}

static struct rdma_restrack_entry never_added;

static int call(struct kprobe *p, struct pt_regs *regs)
{
	int i;

	for (i = 0; i < 5; i++)
		((void (*)(struct rdma_restrack_entry *))restrack_del)(&never_added);
	return 0;
}

static struct kprobe probe = {.addr = (void *)missed_place, .pre_handler = call};

static int __init missed_init(void)
{
	int err = register_kprobe(&probe);
	if (err)
		return err;
	pass();
	unregister_kprobe(&probe);
	return 0;
}

static void __exit missed_exit(void)
{
}

module_init(missed_init);
module_exit(missed_exit);
MODULE_DESCRIPTION("Makes the kernel skip kprobes of rdma_restrack_del");
MODULE_LICENSE("Dual BSD/GPL");
