// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// DeviceKind is the kind of a device in the inventory of the node.
type DeviceKind string

// The kinds.
const (
	KindGPU    DeviceKind = "gpu"
	KindHCA    DeviceKind = "hca"
	KindModule DeviceKind = "module" // the transceiver or cable in a port of an HCA
)

// MissingDevice is a device that the node had and that no source lists any more, or a GPU that the kernel lists without a driver.
type MissingDevice struct {
	Kind DeviceKind
	// ID is the UUID of a GPU, the node GUID of an HCA, or the PCI address of a device that never had either; of a module, its slot and
	// serial number.
	ID     string
	Slot   string // its PCI address, or the name of an HCA that is no PCI function; of a module, the ID of the HCA and the port: 0x1/1
	Name   string // mlx5_3, or the market name of a GPU; of a module, the name of the HCA
	Port   int    // that a module was in
	Serial string // empty if unknown
	// Seen is when a source last listed it, or a module was last read, after a restart of the sensor within an hour. Zero: no source ever
	// did.
	Seen time.Time
	// Since is when it was first found missing. Zero: it is an HCA that is left out by its name, and may be there.
	Since time.Time
	// Rebooted reports that it was last seen before the node was started.
	Rebooted bool
	// Excused reports that it is known why it is missing: somebody accepted it, it became a leg of a bond, it was given to a virtual
	// machine, or it is left out by its name.
	Excused bool
}
