// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// An RDMA device with a port that is up and nothing else.

#include <linux/module.h>
#include <rdma/ib_verbs.h>

struct hca {
	struct ib_device ib;
};

struct hca_context {
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
	.driver_id = HCA_DRIVER, // defined by the module
	.uverbs_abi_ver = 1,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, hca_context, ib),
};

static struct hca *alloc_hca(void)
{
	struct hca *hca = ib_alloc_device(hca, ib);

	if (hca) {
		hca->ib.node_type = RDMA_NODE_USNIC;
		hca->ib.phys_port_cnt = 1;
		hca->ib.num_comp_vectors = 1;
		ib_set_device_ops(&hca->ib, &ops);
	}
	return hca;
}
