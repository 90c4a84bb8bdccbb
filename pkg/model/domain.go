// SPDX-License-Identifier: Apache-2.0

package model

// Domains are the protection domains on one HCA of processes, or of one module of the kernel. Each queue pair that sends has one.
type Domains struct {
	Device string
	Module string // the module that allocated them, as it names itself: ib_core, nvme_rdma; empty for those of processes
	Count  uint64
	Used   uint64 // those that have objects, such as queue pairs
}

// IPoIBModule is the module of IPoIB interfaces. Each interface has one protection domain.
const IPoIBModule = "ib_ipoib"

// IPoIB is a network interface over InfiniBand.
type IPoIB struct {
	Name    string
	Packets uint64 // sent and received
}
