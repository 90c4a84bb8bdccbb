// SPDX-License-Identifier: Apache-2.0

// Package nldev speaks RDMA netlink (include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c): devices,
// hardware counters, objects of processes, and counters that are bound to queue pairs.
//
// A socket is open for one read only, in the network namespace in which it was opened. Requests and parsers are
// separate functions. The parsers do not trust their input: they skip unknown attributes and return an error for
// malformed attributes.
package nldev
