// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// RDMA devices that belong to PCI functions: pcihca0 to the function of the first address in the parameter functions,
// and so on. They have only a port that is up. The functions may be of any kind, so QEMU's functions stand for HCAs:
// their links, places and errors are the kernel's own. BuildModule of package tests/machines/vm builds it.

#include <linux/pci.h>

#define HCA_DRIVER RDMA_DRIVER_UNKNOWN
#include "hca.h"

enum { MOST = 8 };

static char *functions[MOST];
static int count;
module_param_array(functions, charp, &count, 0444);

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
	hca = alloc_hca();
	if (!hca)
		return -ENOMEM;
	hca->ib.dev.parent = parents[i];
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
