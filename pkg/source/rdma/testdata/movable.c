// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// Lets a Soft-RoCE device be moved to another network namespace, and be removed while processes have it open, for tests in
// the guest (TestGuest/Namespaces; datapath reset of TestNode): ib_core and ib_uverbs ask that the driver has a
// disassociate_ucontext, and rdma_rxe of the guest's kernels has none. All else is the kernel's own.
// BuildModule of package tests/machines/vm builds it.

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <rdma/ib_verbs.h>

static char *dev = "rxe0";
module_param(dev, charp, 0444);

// A mapping that outlives its device: the memory stays until the process ends, and nothing is called.
static const struct vm_operations_struct left = {};

/*
 * Called before the context is freed. rxe's own functions of the mappings of its queues would use the context and the device
 * when the process unmaps them. The queues' memory is never freed.
 */
static void disassociate(struct ib_ucontext *context)
{
	struct mm_struct *mm = context->res.task ? get_task_mm(context->res.task) : NULL;
	struct vm_area_struct *vma;

	if (!mm)
		return;
	mmap_write_lock(mm);
	{
		VMA_ITERATOR(i, mm, 0);
		for_each_vma(i, vma)
			if (vma->vm_file && vma->vm_file->private_data == context->ufile)
				vma->vm_ops = &left;
	}
	mmap_write_unlock(mm);
	mmput(mm);
}

static int __init movable_init(void)
{
	struct ib_device *d = ib_device_get_by_name(dev, RDMA_DRIVER_UNKNOWN);

	if (!d)
		return -ENODEV;
	d->ops.disassociate_ucontext = disassociate;
	ib_device_put(d);
	return 0;
}

static void __exit movable_exit(void) {}

module_init(movable_init);
module_exit(movable_exit);
MODULE_DESCRIPTION("makes an RDMA device movable between network namespaces, and removable while it is open");
MODULE_LICENSE("GPL");
