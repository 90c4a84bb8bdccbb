// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"time"
)

// Interfaces between sources.

// CgroupResolver returns the current cgroup of a process.
type CgroupResolver interface {
	CgroupOf(pid int) (CgroupID, error)
}

// WorkloadMarker marks in the kernel which cgroups belong together. Without a marked ancestor, a cgroup is counted by
// itself.
type WorkloadMarker interface {
	// Mark marks an existing cgroup. The cgroups below it are counted as one workload, or each with one share of the
	// maps. Mark fails if there is no room.
	Mark(id CgroupID, workload bool) error
	Unmark(id CgroupID)
}

// OwnerResolver returns for which cgroups the programs count what a cgroup does: its workload's cgroup, and the cgroup
// with its share of the maps.
type OwnerResolver interface {
	OwnerOf(id CgroupID) (workload, share CgroupID)
}

// ObjectLister lists the RDMA objects of all devices.
type ObjectLister interface {
	// Objects lists the objects of the types, or of all types.
	Objects(ctx context.Context, types ...ObjectType) ([]Object, error)
	// ObjectCounts returns the number of objects, including the kernel's. With an error, devices are missing.
	ObjectCounts(ctx context.Context) (map[ObjectTable]uint64, error)
}

// DeviceNamer returns the names of RDMA devices by their netlink index.
type DeviceNamer interface {
	DeviceNames(ctx context.Context) (map[uint32]string, error)
}

// ObjectCounter reports whether objects are counted in the kernel.
type ObjectCounter interface {
	Counting() bool
}

// NamespaceLister lists the network namespaces that containers are in.
type NamespaceLister interface {
	Namespaces() []Namespace
}

// DeviceHolders returns the processes that have a GPU's device node open, and false if they are unknown.
type DeviceHolders interface {
	Holders() ([]int, bool)
}

// PathLog returns the path of a cgroup that was recorded at the cgroup's creation.
type PathLog interface {
	PathOf(id CgroupID) (CgroupPath, bool)
}

// WorkloadNamer returns the label workload of a cgroup, and whether the cgroup has an owner.
type WorkloadNamer interface {
	Workload(id CgroupID) (workload string, known bool)
}

// FaultLog lists the faults that drivers have logged.
type FaultLog interface {
	// FirstFault returns the first device for which a driver has logged one of the codes since a time.
	FirstFault(driver FaultDriver, codes []string, since time.Time) (pciAddress string, ok bool)
	// Nonfatal reports whether a device had a fault with the code since a time, and the driver always reported it as
	// nonfatal.
	Nonfatal(driver FaultDriver, pciAddress, code string, since time.Time) bool
}
