// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// An RDMA device, devx0, that says that its driver is mlx5 and has nothing but DEVX objects, which are as empty as the device: Soft-RoCE
// has none. Their life is the kernel's own: the uobject layer makes and removes them by the ids of mlx5's interface. BuildModule of
// package tests/vm builds it.

#include <linux/module.h>
#include <rdma/ib_verbs.h>
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

struct devx_device {
	struct ib_device ib;
};

struct devx_context {
	struct ib_ucontext ib;
};

static int query_device(struct ib_device *device, struct ib_device_attr *attr, struct ib_udata *udata)
{
	memset(attr, 0, sizeof(*attr));
	return 0;
}

static int query_port(struct ib_device *device, u32 port, struct ib_port_attr *attr)
{
	attr->state = IB_PORT_ACTIVE;
	attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attr->active_speed = IB_SPEED_SDR;
	attr->active_width = IB_WIDTH_1X;
	return 0;
}

static int get_port_immutable(struct ib_device *device, u32 port, struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_USNIC;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *device, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void dealloc_ucontext(struct ib_ucontext *context)
{
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_MLX5,
	.uverbs_abi_ver = 1,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, devx_context, ib),
};

static struct devx_device *devx;

static int __init devx_init(void)
{
	int err;

	devx = ib_alloc_device(devx_device, ib);
	if (!devx)
		return -ENOMEM;
	devx->ib.node_type = RDMA_NODE_USNIC;
	devx->ib.phys_port_cnt = 1;
	devx->ib.num_comp_vectors = 1;
	devx->ib.driver_def = objects;
	ib_set_device_ops(&devx->ib, &ops);
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
