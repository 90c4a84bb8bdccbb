// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// DeviceKind is the kind of a device in the inventory.
type DeviceKind string

// The kinds.
const (
	KindGPU    DeviceKind = "gpu"
	KindHCA    DeviceKind = "hca"
	KindModule DeviceKind = "module" // the transceiver or cable in a port of an HCA
)

// MissingDevice is a device that the node had and no source lists any more, or a GPU that the kernel lists without a
// driver.
type MissingDevice struct {
	Kind DeviceKind
	// ID is the UUID of a GPU, the node GUID of an HCA, or the PCI address if neither was ever known; for a module, its
	// slot and serial number.
	ID     string
	Slot   string // the PCI address, or the name of an HCA that is not a PCI function; for a module, the HCA's ID and the port: 0x1/1
	Name   string // mlx5_3, or the market name of a GPU; for a module, the name of the HCA
	Port   int    // of a module
	Serial string // empty if unknown
	// Seen is when a source last listed the device, or a module was last read, to within an hour after a restart of the
	// sensor. Zero: never.
	Seen time.Time
	// Since is when the device was first found missing. Zero: the HCA's name is left out, and it may be there.
	Since time.Time
	// Rebooted reports that the device was last seen before the node's boot.
	Rebooted bool
	// Excused reports a known reason: an operator accepted the loss, the device became a bond's leg or was given to a
	// virtual machine, or its name is left out.
	Excused bool
}
