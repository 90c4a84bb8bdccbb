// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// Ethernet ports without hardware, in pairs: what one port sends, the other receives. A Soft-RoCE device can be added to each. The ports
// have what only drivers of real ports have: pause and FEC statistics, the reason why a link is down, the EEPROM of a module, private
// statistics, PFC and ETS. BuildModule of package tests/machines/vm builds it.
//
// A test writes all values to /sys/kernel/debug/linktest/linktestN:
//
//   carrier                                     0 or 1
//   pause/{autoneg,rx,tx,rx_frames,tx_frames,storm_events}
//   fec/{configured,active}                     bits ETHTOOL_FEC_*
//   fec/{corrected_blocks,uncorrectable_blocks,corrected_bits}/{total,lane0..lane7}
//   link/{speed,lanes,ext_state,ext_substate,down_events}
//   dcb/{pfc_enabled,requests/N,indications/N,tc/N,bandwidth/N,algorithm/N}
//   statistics                                  lines "NAME VALUE": the table of ethtool -S; a write at offset 0 removes the former lines
//   module/eeprom                               128 bytes of lower memory, then 128 bytes of each page, as in the linear layout of ethtool
//   module/{bytes_read,flag_bytes_read}         bytes that ethtool operations read; flag bytes among them
//   delay_ms/OPERATION, error/OPERATION         lets an operation sleep, with RTNL held; lets it fail
//   calls/OPERATION                             number of calls
//
// A statistic with the value 2^64-1 and an ext_state of 2^32-1 are not reported. As in real modules, a read of a latched flag of the EEPROM
// clears it.

#include <linux/dcbnl.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <linux/rtnetlink.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <net/dcbnl.h>

enum { HALF = 128, EEPROM_SIZE = HALF * 257, STATISTICS = 1024, TEXT_SIZE = 64 << 10, MAX_PORTS = 64, PRIORITIES = 8 };

enum operation { DO_PAUSE, DO_FEC, DO_LINK_STATE, DO_SETTINGS, DO_MODULE, DO_STATISTICS, DO_DCB, OPERATIONS };
static const char *const operations[OPERATIONS] = {"pause", "fec", "link_state", "settings", "module", "statistics", "dcb"};

static int ports = 2;
module_param(ports, int, 0444);
static char *driver = "linktest";
module_param(driver, charp, 0444); // the name that ethtool -i and sysfs have

struct fec_counter {
	u64 total, lanes[ETHTOOL_MAX_LANES];
};

struct port {
	struct net_device *dev, *peer;
	struct platform_device *device;
	struct dentry *dir;
	bool carrier;
	u32 delay_ms[OPERATIONS], error[OPERATIONS];
	u64 calls[OPERATIONS];
	struct { u32 autoneg, rx, tx; u64 rx_frames, tx_frames, storm_events; } pause;
	struct {
		u32 configured, active;
		struct fec_counter corrected_blocks, uncorrectable_blocks, corrected_bits;
	} fec;
	struct { u32 speed, lanes, ext_state, ext_substate; u64 down_events; } link;
	struct {
		u8 pfc_enabled, tc[PRIORITIES], bandwidth[PRIORITIES], algorithm[PRIORITIES];
		u64 requests[PRIORITIES], indications[PRIORITIES];
	} dcb;
	// RTNL, which all operations hold, protects these.
	u64 bytes_read, flag_bytes_read;
	unsigned int statistics;
	char names[STATISTICS][ETH_GSTRING_LEN];
	u64 values[STATISTICS];
	u8 eeprom[EEPROM_SIZE];
};

static struct port *all[MAX_PORTS];
static struct dentry *root;

// begin counts a call, sleeps as long as the operation's delay says, also if that is changed meanwhile, and returns its error.
static int begin(struct port *port, enum operation operation)
{
	unsigned long start = jiffies;

	port->calls[operation]++;
	while (time_before(jiffies, start + msecs_to_jiffies(READ_ONCE(port->delay_ms[operation]))))
		msleep(10);
	return -(int)port->error[operation];
}

// The device.

static void update_carrier(struct port *port)
{
	if (port->carrier && netif_running(port->dev))
		netif_carrier_on(port->dev);
	else
		netif_carrier_off(port->dev);
}

static int linktest_open(struct net_device *dev)
{
	update_carrier(netdev_priv(dev));
	netif_start_queue(dev);
	return 0;
}

static int linktest_stop(struct net_device *dev)
{
	netif_stop_queue(dev);
	netif_carrier_off(dev);
	return 0;
}

static netdev_tx_t linktest_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct port *port = netdev_priv(dev);
	unsigned int length = skb->len;

	if (dev_forward_skb(port->peer, skb) != NET_RX_SUCCESS) {
		dev->stats.tx_dropped++;
		return NETDEV_TX_OK;
	}
	dev->stats.tx_packets++;
	dev->stats.tx_bytes += length;
	port->peer->stats.rx_packets++;
	port->peer->stats.rx_bytes += length;
	return NETDEV_TX_OK;
}

static const struct net_device_ops device_ops = {
	.ndo_open = linktest_open,
	.ndo_stop = linktest_stop,
	.ndo_start_xmit = linktest_xmit,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_mac_address = eth_mac_addr,
};

// ethtool.

static void get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, driver, sizeof(info->driver));
}

static int get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	struct port *port = netdev_priv(dev);
	int err = begin(port, DO_SETTINGS);

	if (err)
		return err;
	ethtool_link_ksettings_zero_link_mode(settings, supported);
	ethtool_link_ksettings_add_link_mode(settings, supported, FIBRE);
	settings->base.speed = netif_carrier_ok(dev) ? port->link.speed : SPEED_UNKNOWN;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_FIBRE;
	settings->lanes = port->link.lanes;
	return 0;
}

static void get_pauseparam(struct net_device *dev, struct ethtool_pauseparam *parameters)
{
	struct port *port = netdev_priv(dev);

	begin(port, DO_PAUSE);
	parameters->autoneg = port->pause.autoneg;
	parameters->rx_pause = port->pause.rx;
	parameters->tx_pause = port->pause.tx;
}

static void get_pause_stats(struct net_device *dev, struct ethtool_pause_stats *stats)
{
	struct port *port = netdev_priv(dev);

	stats->rx_pause_frames = port->pause.rx_frames;
	stats->tx_pause_frames = port->pause.tx_frames;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 2, 0)
	stats->tx_pause_storm_events = port->pause.storm_events;
#endif
}

static int get_fecparam(struct net_device *dev, struct ethtool_fecparam *parameters)
{
	struct port *port = netdev_priv(dev);

	parameters->fec = port->fec.configured;
	parameters->active_fec = port->fec.active;
	return begin(port, DO_FEC);
}

static void report_fec(struct ethtool_fec_stat *to, const struct fec_counter *from)
{
	to->total = from->total;
	memcpy(to->lanes, from->lanes, sizeof(to->lanes));
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
static void get_fec_stats(struct net_device *dev, struct ethtool_fec_stats *stats, struct ethtool_fec_hist *histogram)
#else
static void get_fec_stats(struct net_device *dev, struct ethtool_fec_stats *stats)
#endif
{
	struct port *port = netdev_priv(dev);

	report_fec(&stats->corrected_blocks, &port->fec.corrected_blocks);
	report_fec(&stats->uncorrectable_blocks, &port->fec.uncorrectable_blocks);
	report_fec(&stats->corrected_bits, &port->fec.corrected_bits);
}

static int get_link_ext_state(struct net_device *dev, struct ethtool_link_ext_state_info *info)
{
	struct port *port = netdev_priv(dev);
	int err = begin(port, DO_LINK_STATE);

	if (err)
		return err;
	if (netif_carrier_ok(dev) || port->link.ext_state == U32_MAX)
		return -ENODATA;
	info->link_ext_state = port->link.ext_state;
	info->__link_ext_substate = port->link.ext_substate;
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static void get_link_ext_stats(struct net_device *dev, struct ethtool_link_ext_stats *stats)
{
	struct port *port = netdev_priv(dev);

	stats->link_down_events = port->link.down_events;
}
#endif

// Latched flags by the map of the module's memory: offsets as in the file eeprom.
static const struct latched {
	bool cmis;
	unsigned int from, to;
} latched[] = {
	{false, 3, 21}, // SFF-8636: interrupt flags
	{true, 8, 13}, // CMIS: flags of the module
	{true, 0x11 * HALF + 134, 0x11 * HALF + 153}, // CMIS: flags of lanes
};

// read_flags clears the latched flags of a range that was read.
static void read_flags(struct port *port, unsigned int from, unsigned int to)
{
	bool cmis = port->eeprom[0] >= 0x18;
	unsigned int i, at;

	for (i = 0; i < ARRAY_SIZE(latched); i++) {
		if (latched[i].cmis != cmis)
			continue;
		for (at = max(from, latched[i].from); at <= min(to, latched[i].to); at++) {
			port->eeprom[at] = 0;
			port->flag_bytes_read++;
		}
	}
}

static int get_module_eeprom_by_page(struct net_device *dev, const struct ethtool_module_eeprom *page, struct netlink_ext_ack *extack)
{
	struct port *port = netdev_priv(dev);
	unsigned int at = page->page * HALF + page->offset;
	int err = begin(port, DO_MODULE);

	if (err)
		return err;
	if (page->bank || page->i2c_address != 0x50 || !page->length || at + page->length > EEPROM_SIZE)
		return -EINVAL;
	memcpy(page->data, port->eeprom + at, page->length);
	port->bytes_read += page->length;
	read_flags(port, at, at + page->length - 1);
	return page->length;
}

static int get_sset_count(struct net_device *dev, int set)
{
	struct port *port = netdev_priv(dev);

	return set == ETH_SS_STATS ? port->statistics : -EOPNOTSUPP;
}

static void get_strings(struct net_device *dev, u32 set, u8 *names)
{
	struct port *port = netdev_priv(dev);

	if (set == ETH_SS_STATS)
		memcpy(names, port->names, port->statistics * ETH_GSTRING_LEN);
}

static void get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *values)
{
	struct port *port = netdev_priv(dev);

	begin(port, DO_STATISTICS);
	memcpy(values, port->values, port->statistics * sizeof(*values));
}

static const struct ethtool_ops ethtool = {
	.get_drvinfo = get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = get_link_ksettings,
	.get_pauseparam = get_pauseparam,
	.get_pause_stats = get_pause_stats,
	.get_fecparam = get_fecparam,
	.get_fec_stats = get_fec_stats,
	.get_link_ext_state = get_link_ext_state,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.get_link_ext_stats = get_link_ext_stats,
#endif
	.get_module_eeprom_by_page = get_module_eeprom_by_page,
	.get_sset_count = get_sset_count,
	.get_strings = get_strings,
	.get_ethtool_stats = get_ethtool_stats,
};

// DCB.

static int ieee_getpfc(struct net_device *dev, struct ieee_pfc *pfc)
{
	struct port *port = netdev_priv(dev);

	pfc->pfc_cap = PRIORITIES;
	pfc->pfc_en = port->dcb.pfc_enabled;
	memcpy(pfc->requests, port->dcb.requests, sizeof(pfc->requests));
	memcpy(pfc->indications, port->dcb.indications, sizeof(pfc->indications));
	return begin(port, DO_DCB);
}

static int ieee_getets(struct net_device *dev, struct ieee_ets *ets)
{
	struct port *port = netdev_priv(dev);

	ets->ets_cap = PRIORITIES;
	memcpy(ets->prio_tc, port->dcb.tc, sizeof(ets->prio_tc));
	memcpy(ets->tc_tx_bw, port->dcb.bandwidth, sizeof(ets->tc_tx_bw));
	memcpy(ets->tc_tsa, port->dcb.algorithm, sizeof(ets->tc_tsa));
	return 0;
}

static u8 getdcbx(struct net_device *dev)
{
	return DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE;
}

static const struct dcbnl_rtnl_ops dcb = {
	.ieee_getpfc = ieee_getpfc,
	.ieee_getets = ieee_getets,
	.getdcbx = getdcbx,
};

// Files.

static int get_carrier(void *data, u64 *value)
{
	*value = ((struct port *)data)->carrier;
	return 0;
}

static int set_carrier(void *data, u64 value)
{
	struct port *port = data;

	rtnl_lock();
	port->carrier = value;
	update_carrier(port);
	rtnl_unlock();
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(carrier_file, get_carrier, set_carrier, "%llu\n");

static ssize_t read_eeprom(struct file *file, char __user *to, size_t size, loff_t *offset)
{
	struct port *port = file->private_data;

	return simple_read_from_buffer(to, size, offset, port->eeprom, EEPROM_SIZE);
}

static ssize_t write_eeprom(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	struct port *port = file->private_data;
	ssize_t written;

	rtnl_lock();
	written = simple_write_to_buffer(port->eeprom, EEPROM_SIZE, offset, from, size);
	rtnl_unlock();
	return written;
}

static const struct file_operations eeprom_file = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = read_eeprom,
	.write = write_eeprom,
	.llseek = default_llseek,
};

static int add_statistics(struct port *port, char *text)
{
	unsigned int count = port->statistics;
	char *line, *name;

	while ((line = strsep(&text, "\n"))) {
		if (!*line)
			continue;
		name = strsep(&line, " ");
		if (!line || count == STATISTICS || strlen(name) >= ETH_GSTRING_LEN || kstrtou64(line, 10, &port->values[count]))
			return -EINVAL;
		strscpy_pad(port->names[count++], name, ETH_GSTRING_LEN);
	}
	port->statistics = count;
	return 0;
}

static ssize_t write_statistics(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	struct port *port = ((struct seq_file *)file->private_data)->private;
	char *text;
	int err;

	if (size > TEXT_SIZE)
		return -EFBIG;
	text = memdup_user_nul(from, size);
	if (IS_ERR(text))
		return PTR_ERR(text);
	rtnl_lock();
	if (!*offset)
		port->statistics = 0;
	err = add_statistics(port, text);
	rtnl_unlock();
	kfree(text);
	if (err)
		return err;
	*offset += size;
	return size;
}

static int show_statistics(struct seq_file *file, void *data)
{
	struct port *port = file->private;
	unsigned int i;

	rtnl_lock();
	for (i = 0; i < port->statistics; i++)
		seq_printf(file, "%s %llu\n", port->names[i], port->values[i]);
	rtnl_unlock();
	return 0;
}

static int open_statistics(struct inode *inode, struct file *file)
{
	return single_open(file, show_statistics, inode->i_private);
}

static const struct file_operations statistics_file = {
	.owner = THIS_MODULE,
	.open = open_statistics,
	.read = seq_read,
	.write = write_statistics,
	.llseek = seq_lseek,
	.release = single_release,
};

static void u64s(struct dentry *parent, const char *name, u64 *values, bool total)
{
	struct dentry *dir = debugfs_create_dir(name, parent);
	char file[8];
	int i;

	if (total)
		debugfs_create_u64("total", 0600, dir, values++);
	for (i = 0; i < 8; i++) {
		snprintf(file, sizeof(file), total ? "lane%d" : "%d", i);
		debugfs_create_u64(file, 0600, dir, &values[i]);
	}
}

static void u8s(struct dentry *parent, const char *name, u8 *values)
{
	struct dentry *dir = debugfs_create_dir(name, parent);
	char file[8];
	int i;

	for (i = 0; i < PRIORITIES; i++) {
		snprintf(file, sizeof(file), "%d", i);
		debugfs_create_u8(file, 0600, dir, &values[i]);
	}
}

static void create_files(struct port *port)
{
	struct dentry *dir, *delay, *error, *calls;
	int i;

	port->dir = debugfs_create_dir(port->dev->name, root);
	debugfs_create_file_unsafe("carrier", 0600, port->dir, port, &carrier_file);
	debugfs_create_file("statistics", 0600, port->dir, port, &statistics_file);

	dir = debugfs_create_dir("pause", port->dir);
	debugfs_create_u32("autoneg", 0600, dir, &port->pause.autoneg);
	debugfs_create_u32("rx", 0600, dir, &port->pause.rx);
	debugfs_create_u32("tx", 0600, dir, &port->pause.tx);
	debugfs_create_u64("rx_frames", 0600, dir, &port->pause.rx_frames);
	debugfs_create_u64("tx_frames", 0600, dir, &port->pause.tx_frames);
	debugfs_create_u64("storm_events", 0600, dir, &port->pause.storm_events);

	dir = debugfs_create_dir("fec", port->dir);
	debugfs_create_u32("configured", 0600, dir, &port->fec.configured);
	debugfs_create_u32("active", 0600, dir, &port->fec.active);
	u64s(dir, "corrected_blocks", &port->fec.corrected_blocks.total, true);
	u64s(dir, "uncorrectable_blocks", &port->fec.uncorrectable_blocks.total, true);
	u64s(dir, "corrected_bits", &port->fec.corrected_bits.total, true);

	dir = debugfs_create_dir("link", port->dir);
	debugfs_create_u32("speed", 0600, dir, &port->link.speed);
	debugfs_create_u32("lanes", 0600, dir, &port->link.lanes);
	debugfs_create_u32("ext_state", 0600, dir, &port->link.ext_state);
	debugfs_create_u32("ext_substate", 0600, dir, &port->link.ext_substate);
	debugfs_create_u64("down_events", 0600, dir, &port->link.down_events);

	dir = debugfs_create_dir("dcb", port->dir);
	debugfs_create_u8("pfc_enabled", 0600, dir, &port->dcb.pfc_enabled);
	u64s(dir, "requests", port->dcb.requests, false);
	u64s(dir, "indications", port->dcb.indications, false);
	u8s(dir, "tc", port->dcb.tc);
	u8s(dir, "bandwidth", port->dcb.bandwidth);
	u8s(dir, "algorithm", port->dcb.algorithm);

	dir = debugfs_create_dir("module", port->dir);
	debugfs_create_file("eeprom", 0600, dir, port, &eeprom_file);
	debugfs_create_u64("bytes_read", 0400, dir, &port->bytes_read);
	debugfs_create_u64("flag_bytes_read", 0400, dir, &port->flag_bytes_read);

	delay = debugfs_create_dir("delay_ms", port->dir);
	error = debugfs_create_dir("error", port->dir);
	calls = debugfs_create_dir("calls", port->dir);
	for (i = 0; i < OPERATIONS; i++) {
		debugfs_create_u32(operations[i], 0600, delay, &port->delay_ms[i]);
		debugfs_create_u32(operations[i], 0600, error, &port->error[i]);
		debugfs_create_u64(operations[i], 0400, calls, &port->calls[i]);
	}
}

// Life.

// The names of mlx5 for a port with PFC on priority 3.
static char initial_statistics[] =
	"rx_prio3_pause 0\nrx_prio3_pause_duration 0\nrx_prio3_pause_transition 0\n"
	"tx_prio3_pause 0\ntx_prio3_pause_duration 0\ntx_prio3_pause_transition 0\n"
	"rx_prio3_buf_discard 0\nrx_prio3_cong_discard 0\nrx_prio3_marked 0\n"
	"tx_pause_storm_warning_events 0\ntx_pause_storm_error_events 0\n"
	"rx_corrected_bits_phy 0\nrx_pcs_symbol_err_phy 0\nlink_down_events_phy 0\n";

static void set_initial(struct port *port)
{
	char *text = kstrdup(initial_statistics, GFP_KERNEL);

	port->carrier = true;
	port->pause.rx = port->pause.tx = 1;
	port->fec.configured = ETHTOOL_FEC_AUTO;
	port->fec.active = ETHTOOL_FEC_RS;
	memset(&port->fec.corrected_blocks, 0xff, sizeof(port->fec.corrected_blocks));
	memset(&port->fec.uncorrectable_blocks, 0xff, sizeof(port->fec.uncorrectable_blocks));
	memset(&port->fec.corrected_bits, 0xff, sizeof(port->fec.corrected_bits));
	port->link.speed = SPEED_100000;
	port->link.lanes = 4;
	port->link.ext_state = U32_MAX;
	port->dcb.pfc_enabled = 1 << 3;
	if (text)
		add_statistics(port, text);
	kfree(text);
}

static struct platform_driver platform;

static struct port *create(int number)
{
	struct net_device *dev = alloc_etherdev(sizeof(struct port));
	struct port *port;

	if (!dev)
		return NULL;
	port = netdev_priv(dev);
	port->dev = dev;
	strscpy(dev->name, "linktest%d", sizeof(dev->name));
	dev->netdev_ops = &device_ops;
	dev->ethtool_ops = &ethtool;
	dev->dcbnl_ops = &dcb;
	dev->max_mtu = ETH_MAX_MTU;
	eth_hw_addr_random(dev);
	netif_carrier_off(dev);
	set_initial(port);
	port->device = platform_device_register_simple(driver, number, NULL, 0); // to which platform is bound
	if (IS_ERR(port->device)) {
		free_netdev(dev);
		return NULL;
	}
	SET_NETDEV_DEV(dev, &port->device->dev);
	return port;
}

static void remove_all(void)
{
	int i;

	debugfs_remove_recursive(root);
	for (i = 0; i < ports; i++)
		if (all[i] && all[i]->dev->reg_state == NETREG_REGISTERED)
			unregister_netdev(all[i]->dev);
	for (i = 0; i < ports; i++) { // only now does no port send to another
		struct platform_device *device;

		if (!all[i])
			continue;
		device = all[i]->device;
		free_netdev(all[i]->dev);
		platform_device_unregister(device);
	}
	platform_driver_unregister(&platform);
}

static int __init linktest_init(void)
{
	int i, err;

	if (ports < 2 || ports > MAX_PORTS || ports % 2)
		return -EINVAL;
	platform.driver.name = driver;
	err = platform_driver_register(&platform);
	if (err)
		return err;
	err = -ENOMEM;
	root = debugfs_create_dir("linktest", NULL);
	for (i = 0; i < ports; i++) {
		all[i] = create(i);
		if (!all[i])
			goto failed;
	}
	for (i = 0; i < ports; i++) {
		all[i]->peer = all[i ^ 1]->dev;
		err = register_netdev(all[i]->dev);
		if (err)
			goto failed;
		create_files(all[i]);
	}
	return 0;
failed:
	remove_all();
	return err;
}

static void __exit linktest_exit(void)
{
	remove_all();
}

module_init(linktest_init);
module_exit(linktest_exit);
MODULE_DESCRIPTION("Ethernet ports without hardware, with values that tests set");
MODULE_LICENSE("GPL");
