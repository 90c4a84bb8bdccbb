// SPDX-License-Identifier: Apache-2.0

package model

import (
	"context"
	"time"
)

// The following interfaces are used between sources.

// CgroupResolver returns the current cgroup of a process.
type CgroupResolver interface {
	CgroupOf(pid int) (CgroupID, error)
}

// WorkloadMarker passes to the programs which cgroups belong together. Without a marked cgroup above it, a cgroup is counted by
// itself.
type WorkloadMarker interface {
	// Mark marks an existing cgroup: those below it are counted as one workload, or each with one share of the maps. It fails
	// if there is no room.
	Mark(id CgroupID, workload bool) error
	// Unmark removes the mark of a cgroup that has ended.
	Unmark(id CgroupID)
}

// OwnerResolver returns for whom the programs count what a cgroup does: the cgroup of its workload, and the cgroup in whose share
// of the maps it is.
type OwnerResolver interface {
	OwnerOf(id CgroupID) (workload, share CgroupID)
}

// ObjectLister lists the RDMA objects of all devices.
type ObjectLister interface {
	// Objects lists the objects of some types, or of all if none is given.
	Objects(ctx context.Context, types ...ObjectType) ([]Object, error)
	// ObjectCounts returns the number of objects, kernel objects included. With an error,
	// devices are missing.
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

// DeviceHolders returns the processes that have a device node of a GPU open, and false if they
// are unknown.
type DeviceHolders interface {
	Holders() ([]int, bool)
}

// PathLog returns the path of a cgroup that was recorded when the cgroup was created.
type PathLog interface {
	PathOf(id CgroupID) (CgroupPath, bool)
}

// WorkloadNamer returns the label workload of a cgroup, and whether it has an owner.
type WorkloadNamer interface {
	Workload(id CgroupID) (workload string, known bool)
}

// FaultLog lists the faults that drivers have logged.
type FaultLog interface {
	// FirstFault returns the device for which a driver has first logged one of the codes since a time, and false if there is none.
	FirstFault(driver FaultDriver, codes []string, since time.Time) (pciAddress string, ok bool)
	// Nonfatal reports whether a device had a fault with a code since a time, and the driver said each time that it is not fatal.
	Nonfatal(driver FaultDriver, pciAddress, code string, since time.Time) bool
}
