// SPDX-License-Identifier: Apache-2.0

package model

import (
	"regexp"
	"slices"
)

// The kernel writes the domain with four digits, or more if needed: 10000 is the first domain behind Intel's VMD.
var pciAddress = regexp.MustCompile(
	`^(?:[[:xdigit:]]{4}|[1-9a-fA-F][[:xdigit:]]{4,7}):[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[[:xdigit:]]$`)

// IsPCIAddress reports whether s is the address of a PCI function: 0000:18:00.2.
func IsPCIAddress(s string) bool { return pciAddress.MatchString(s) }

// PCIFunction is a PCI function of a network controller, an HCA or a GPU, including HCAs' Data Direct functions,
// without virtual functions, which have no link of their own.
type PCIFunction struct {
	Address string // 0000:18:00.0
	PCIEnd
	ID    string // vendor and device: 15b3:101b
	Class string // 0x020700
	// Driver is the bound driver: mlx5_core; empty without a driver.
	Driver string
	// NUMANode is empty if unknown to the kernel.
	NUMANode string
	// Path is the host bridge (pci0000:15), the addresses of the bridges below it, and the function's address.
	Path []string
	// Bridges are the bridges of Path, the root port first.
	Bridges []PCIBridge
	// IOMMUGroup is the number of the function's IOMMU group; NoIOMMUGroup if it has no group; empty if unknown.
	IOMMUGroup string
	// VPD is read from Data Direct functions that DataDirectDriver drives and, while the node has such a function, from
	// mlx5_core's.
	VPD VPD
	// Upstream is the port above the function, of a switch or a root port: the other end of the link. Its address is
	// empty in a virtual machine that hides the port.
	Upstream PCIUpstream
}

// PCIUpstream is the port at the other end of the link of a PCI function.
type PCIUpstream struct {
	Address string
	PCIEnd
	SlotPower Optional // limit of the slot, in watts
}

// NoIOMMUGroup is the IOMMUGroup of a function without an IOMMU group: all functions, while no IOMMU is in use.
const NoIOMMUGroup = "none"

// VPD is the Vital Product Data of a function.
type VPD struct {
	UUID string // of the card: the keyword V3 of NVIDIA's HCAs
	// Missing is why UUID is empty; empty if the VPD was not to be read.
	Missing string
}

// PCIEnd is one end of a PCIe link.
type PCIEnd struct {
	Link PCILink
	// AER are the errors that this end detected, by severity; nil if it does not count errors or the firmware handles
	// them.
	AER []AERErrors
}

// PCILink is a PCIe link as one end reports it. Unreported values are 0.
type PCILink struct {
	Speed, MaxSpeed float64 // transfers per second
	Width, MaxWidth int     // lanes
}

// AERErrors are the errors of a severity that a PCI function detected (Advanced Error Reporting).
type AERErrors struct {
	Severity string // correctable, nonfatal, fatal
	// Total is the kernel's total, which may differ from the sum of Types. Types are the types that occurred, by the
	// kernel's names.
	Total uint64
	Types []Counter
}

// dataDirect is the function through which a ConnectX-8 accesses GPU memory (drivers/infiniband/hw/mlx5/data_direct.c).
const dataDirect = "15b3:2100"

// DataDirectDriver is the driver of Data Direct functions: the module of data_direct.c.
const DataDirectDriver = "mlx5_ib"

// IsDataDirect reports whether the function is an HCA's additional function for GPU memory. The HCA has the same
// VPD.UUID.
func (f *PCIFunction) IsDataDirect() bool { return f.ID == dataDirect }

// Possible returns the highest speed and width that both ends of the link support, 0 if the function does not report
// them.
func (f *PCIFunction) Possible() (speed float64, width int) {
	speed, width = f.Link.MaxSpeed, f.Link.MaxWidth
	if up := f.Upstream.Link; up.MaxSpeed > 0 {
		speed = min(speed, up.MaxSpeed)
	}
	if up := f.Upstream.Link; up.MaxWidth > 0 {
		width = min(width, up.MaxWidth)
	}
	return speed, width
}

// Errors appends to sums, which is empty, the errors that both ends of the link detected, by severity. Each end counts its
// own events.
func (f *PCIFunction) Errors(sums []Counter) []Counter {
	for _, end := range [...]PCIEnd{f.PCIEnd, f.Upstream.PCIEnd} {
		for _, e := range end.AER {
			i := slices.IndexFunc(sums, func(c Counter) bool { return c.Name == e.Severity })
			if i < 0 {
				sums = append(sums, Counter{Name: e.Severity})
				i = len(sums) - 1
			}
			sums[i].Value += e.Total
		}
	}
	return sums
}
