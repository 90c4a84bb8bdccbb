// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// A network interface, vfs0, whose parent has three virtual functions with GUIDs and figures, for a test in the
// guest (TestGuest/VFs) and what was recorded there: no kernel of the guest has a driver for virtual functions that
// works without hardware. All that is told of them to RTM_GETLINK is written by the kernel itself.
// BuildModule of package tests/machines/vm builds it.

#include <linux/etherdevice.h>
#include <linux/if_link.h>
#include <linux/module.h>
#include <linux/netdevice.h>

static int vfs_num(struct device *dev)
{
	return 3;
}

static struct bus_type vfs_bus = {
	.name = "vfs",
	.num_vf = vfs_num,
};

static void vfs_release(struct device *dev) {}

static struct device vfs_parent = {
	.init_name = "vfs",
	.bus = &vfs_bus,
	.release = vfs_release,
};

static netdev_tx_t vfs_xmit(struct sk_buff *skb, struct net_device *dev)
{
	kfree_skb(skb);
	return NETDEV_TX_OK;
}

static int vfs_config(struct net_device *dev, int vf, struct ifla_vf_info *ivi)
{
	ivi->vf = vf;
	return 0;
}

static int vfs_guid(struct net_device *dev, int vf, struct ifla_vf_guid *node, struct ifla_vf_guid *port)
{
	node->guid = 0xa088c20300000100 + vf;
	port->guid = 0xa088c20300000200 + vf;
	return 0;
}

static int vfs_stats(struct net_device *dev, int vf, struct ifla_vf_stats *s)
{
	s->rx_packets = 10 + vf;
	s->tx_packets = 20 + vf;
	s->rx_bytes = (1ull << 40) + vf;
	s->tx_bytes = (1ull << 41) + vf;
	return 0;
}

static const struct net_device_ops vfs_ops = {
	.ndo_start_xmit = vfs_xmit,
	.ndo_get_vf_config = vfs_config,
	.ndo_get_vf_guid = vfs_guid,
	.ndo_get_vf_stats = vfs_stats,
};

static struct net_device *vfs_dev;

static int __init vfs_init(void)
{
	int err = bus_register(&vfs_bus);

	if (err)
		return err;
	err = device_register(&vfs_parent);
	if (err) {
		put_device(&vfs_parent);
		goto bus;
	}
	err = -ENOMEM;
	vfs_dev = alloc_netdev(0, "vfs0", NET_NAME_USER, ether_setup);
	if (!vfs_dev)
		goto parent;
	eth_hw_addr_random(vfs_dev);
	vfs_dev->netdev_ops = &vfs_ops;
	SET_NETDEV_DEV(vfs_dev, &vfs_parent);
	err = register_netdev(vfs_dev);
	if (!err)
		return 0;
	free_netdev(vfs_dev);
parent:
	device_unregister(&vfs_parent);
bus:
	bus_unregister(&vfs_bus);
	return err;
}

static void __exit vfs_exit(void)
{
	unregister_netdev(vfs_dev);
	free_netdev(vfs_dev);
	device_unregister(&vfs_parent);
	bus_unregister(&vfs_bus);
}

module_init(vfs_init);
module_exit(vfs_exit);
MODULE_DESCRIPTION("an interface with virtual functions");
MODULE_LICENSE("GPL");
