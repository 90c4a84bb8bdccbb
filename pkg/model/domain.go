// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
)

// Domains are the protection domains on an HCA of processes, or of a kernel module. Each sending queue pair has a
// protection domain.
type Domains struct {
	Device string
	Module string // the kernel's name of the module: ib_core, nvme_rdma; empty for processes
	Count  uint64
	Used   uint64 // domains with objects, such as queue pairs
}

// managers are the kernel modules whose queue pairs move no bytes of users: ib_core sends management datagrams, mlx4
// and mlx5 register memory.
var managers = []string{"ib_core", "mlx4_ib", "mlx5_ib"}

// IsConsumer reports whether the domains belong to a kernel consumer that may move bytes: NVMe-oF, NFS, SMB, SRP and
// others.
func (d *Domains) IsConsumer() bool {
	return d.Used > 0 && d.Module != "" && d.Module != IPoIBModule && !slices.Contains(managers, d.Module)
}

// KernelID is a connection manager id of a kernel module. The kernel lists it with its queue pair, without a query of the
// firmware.
type KernelID struct {
	Device string
	Module string
	Port   uint32
	QPN    uint32     // 0: a listener, or not connected yet
	QPType uint8      // see QPTypeName
	Remote netip.Addr // invalid: not known
}

// IPoIBModule is the module of IPoIB interfaces, which have one protection domain each.
const IPoIBModule = "ib_ipoib"

// IPoIB is a network interface over InfiniBand.
type IPoIB struct {
	Name    string
	Packets uint64 // sent and received
}
