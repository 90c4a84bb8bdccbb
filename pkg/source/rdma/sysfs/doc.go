// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads RDMA devices in sysfs: the attributes, ports, counters, GIDs and P_Keys of a device in
// class/infiniband, its PCI function and the IPoIB interfaces of its function.
//
// On hardware each file of counters/ is a firmware command, and state, rate and LIDs are queries of a port, which may
// hang while the network configuration is locked. So different calls read a Device and its Queries, each in one
// goroutine. Files are read by pread on descriptors that stay open. A failing file is read at growing intervals, and
// drops only its own value.
//
// The kernel and the driver write the names and values. A name that cannot be a label or a path is refused.
package sysfs
