// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// RDMA devices that belong to PCI functions: pcihca0 to that of the first address in the parameter functions, and so on. They have a port that
// is up and nothing else. The functions may be of any kind, so that those that QEMU emulates stand for HCAs: their links, their places and
// their errors are the kernel's own. BuildModule of package tests/vm builds it.

#include <linux/module.h>
#include <linux/pci.h>
#include <rdma/ib_verbs.h>

enum { MOST = 8 };

static char *functions[MOST];
static int count;
module_param_array(functions, charp, &count, 0444);

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
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = 1,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, hca_context, ib),
};

static struct hca *hcas[MOST];
static struct device *parents[MOST];

static void unregister(void)
{
	int i;

	for (i = 0; i < count; i++) {
		if (hcas[i]) {
			ib_unregister_device(&hcas[i]->ib);
			ib_dealloc_device(&hcas[i]->ib);
		}
		put_device(parents[i]); // NULL is fine
	}
}

static int add(int i)
{
	struct hca *hca;
	int err;

	parents[i] = bus_find_device_by_name(&pci_bus_type, NULL, functions[i]);
	if (!parents[i])
		return -ENODEV;
	hca = ib_alloc_device(hca, ib);
	if (!hca)
		return -ENOMEM;
	hca->ib.node_type = RDMA_NODE_USNIC;
	hca->ib.phys_port_cnt = 1;
	hca->ib.num_comp_vectors = 1;
	hca->ib.dev.parent = parents[i];
	ib_set_device_ops(&hca->ib, &ops);
	err = ib_register_device(&hca->ib, "pcihca%d", NULL);
	if (err) {
		ib_dealloc_device(&hca->ib);
		return err;
	}
	hcas[i] = hca;
	return 0;
}

static int __init pcihca_init(void)
{
	int i, err;

	for (i = 0; i < count; i++) {
		err = add(i);
		if (err) {
			unregister();
			return err;
		}
	}
	return 0;
}

module_init(pcihca_init);
module_exit(unregister);
MODULE_DESCRIPTION("RDMA devices of PCI functions");
MODULE_LICENSE("GPL");
