// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// Domains are the protection domains on one HCA of processes, or of one module of the kernel. Each queue pair that sends has one.
type Domains struct {
	Device string
	Module string // the module that allocated them, as it names itself: ib_core, nvme_rdma; empty for those of processes
	Count  uint64
	Used   uint64 // those that have objects, such as queue pairs
}

// managers are the modules of the kernel with queue pairs that move no bytes of users: those for management datagrams, and those with which
// mlx4 and mlx5 register memory.
var managers = []string{"ib_core", "mlx4_ib", "mlx5_ib"}

// IsConsumer reports whether they are those of a consumer in the kernel that may move bytes: NVMe-oF, NFS, SMB, SRP and others.
func (d *Domains) IsConsumer() bool {
	return d.Used > 0 && d.Module != "" && d.Module != IPoIBModule && !slices.Contains(managers, d.Module)
}

// IPoIBModule is the module of IPoIB interfaces. Each interface has one protection domain.
const IPoIBModule = "ib_ipoib"

// IPoIB is a network interface over InfiniBand.
type IPoIB struct {
	Name    string
	Packets uint64 // sent and received
}
