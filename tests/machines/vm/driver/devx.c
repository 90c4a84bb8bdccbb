// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// An RDMA device, devx0, that claims mlx5 as its driver and has only DEVX objects, which are as empty as the device:
// Soft-RoCE lacks them. Their life is real: the uobject layer makes and removes them by the ids of mlx5's interface.
// BuildModule of package tests/machines/vm builds it.

#define HCA_DRIVER RDMA_DRIVER_MLX5
#include "hca.h"
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/uverbs_types.h>

#define UVERBS_MODULE_NAME devx
#include <rdma/uverbs_named_ioctl.h>

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_OBJ_CREATE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_uobject *object = uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE);

	object->object = THIS_MODULE; // nothing to destroy, but not NULL
	return 0;
}

static int nothing(struct ib_uobject *object, enum rdma_remove_reason why, struct uverbs_attr_bundle *attrs)
{
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_OBJ_CREATE,
			    UVERBS_ATTR_IDR(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, MLX5_IB_OBJECT_DEVX_OBJ,
					    UVERBS_ACCESS_NEW, UA_MANDATORY));
DECLARE_UVERBS_NAMED_METHOD_DESTROY(MLX5_IB_METHOD_DEVX_OBJ_DESTROY,
				    UVERBS_ATTR_IDR(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, MLX5_IB_OBJECT_DEVX_OBJ,
						    UVERBS_ACCESS_DESTROY, UA_MANDATORY));
DECLARE_UVERBS_NAMED_OBJECT(MLX5_IB_OBJECT_DEVX_OBJ, UVERBS_TYPE_ALLOC_IDR(nothing),
			    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_CREATE),
			    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_DESTROY));

static const struct uapi_definition objects[] = {
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_DEVX_OBJ),
	{},
};

static struct hca *devx;

static int __init devx_init(void)
{
	int err;

	devx = alloc_hca();
	if (!devx)
		return -ENOMEM;
	devx->ib.driver_def = objects;
	err = ib_register_device(&devx->ib, "devx0", NULL);
	if (err)
		ib_dealloc_device(&devx->ib);
	return err;
}

static void __exit devx_exit(void)
{
	ib_unregister_device(&devx->ib);
	ib_dealloc_device(&devx->ib);
}

module_init(devx_init);
module_exit(devx_exit);
MODULE_DESCRIPTION("an RDMA device with DEVX objects");
MODULE_LICENSE("GPL");
