// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// Lets a Soft-RoCE device be moved to another network namespace, for a test in the guest (TestGuest/Namespaces):
// ib_device_set_netns_put asks that the driver has a disassociate_ucontext, and rdma_rxe of the guest's kernels has
// none. This gives it one that does nothing, so no context may be open; all else of the move is the kernel's own.
// BuildModule of package tests/vm builds it.

#include <linux/module.h>
#include <rdma/ib_verbs.h>

static char *dev = "rxe0";
module_param(dev, charp, 0444);

static void nothing(struct ib_ucontext *context) {}

static int __init movable_init(void)
{
	struct ib_device *d = ib_device_get_by_name(dev, RDMA_DRIVER_UNKNOWN);

	if (!d)
		return -ENODEV;
	d->ops.disassociate_ucontext = nothing;
	ib_device_put(d);
	return 0;
}

static void __exit movable_exit(void) {}

module_init(movable_init);
module_exit(movable_exit);
MODULE_DESCRIPTION("makes an RDMA device movable between network namespaces");
MODULE_LICENSE("GPL");
