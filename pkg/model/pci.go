// SPDX-License-Identifier: Apache-2.0

package model

import (
	"regexp"
	"slices"
)

// The kernel writes the domain with four digits, and with more if it has more: 10000 is the first behind Intel's VMD.
var pciAddress = regexp.MustCompile(
	`^(?:[[:xdigit:]]{4}|[1-9a-fA-F][[:xdigit:]]{4,7}):[[:xdigit:]]{2}:[[:xdigit:]]{2}\.[[:xdigit:]]$`)

// IsPCIAddress reports whether s is the address of a PCI function: 0000:18:00.2.
func IsPCIAddress(s string) bool { return pciAddress.MatchString(s) }

// PCIFunction is a PCI function of a network controller, an HCA or a GPU, but no virtual one: a VF has no link of its own. Data Direct
// functions of HCAs are among them.
type PCIFunction struct {
	Address string // 0000:18:00.0
	PCIEnd
	ID    string // vendor and device: 15b3:101b
	Class string // 0x020700
	// Driver is the name of the driver that is bound to it: mlx5_core; empty if none is.
	Driver string
	// NUMANode is empty if the kernel does not know it.
	NUMANode string
	// Path is where the function is: the host bridge, pci0000:15, the addresses of the bridges below it, and that of the function.
	Path []string
	// Bridges are the bridges of Path, the root port first.
	Bridges []PCIBridge
	// IOMMUGroup is the number of the function's IOMMU group; NoIOMMUGroup if the kernel has it in none; empty if that is not known.
	IOMMUGroup string
	// VPD is read of Data Direct functions that DataDirectDriver drives and, while the node has one, of those that mlx5_core drives.
	VPD VPD
	// Upstream is the port above the function: of a switch, or a root port. Its link is the same, seen from the other end. It has no
	// address in a virtual machine that hides it.
	Upstream PCIUpstream
}

// PCIUpstream is the port at the other end of the link of a PCI function.
type PCIUpstream struct {
	Address string
	PCIEnd
	SlotPower Optional // limit of the slot, in watts
}

// NoIOMMUGroup is the IOMMUGroup of a function that is in no IOMMU group, as no function is while no IOMMU is in use.
const NoIOMMUGroup = "none"

// VPD is what the Vital Product Data of a function says.
type VPD struct {
	UUID string // of the card: the keyword V3 of NVIDIA's HCAs
	// Missing is why UUID is empty; itself empty if the VPD was not to be read.
	Missing string
}

// PCIEnd is one end of a PCIe link.
type PCIEnd struct {
	Link PCILink
	// AER are the errors that this end detected, by severity; nil if it does not count them or the firmware handles them.
	AER []AERErrors
}

// PCILink is a PCIe link as one of its ends reports it. What the end does not report is 0.
type PCILink struct {
	Speed, MaxSpeed float64 // transfers per second
	Width, MaxWidth int     // lanes
}

// AERErrors are the errors of one severity that a PCI function detected (Advanced Error Reporting).
type AERErrors struct {
	Severity string // correctable, nonfatal, fatal
	// Total is the kernel's own total, which may differ from the sum of Types. Types are those that occurred, under the kernel's names.
	Total uint64
	Types []Counter
}

// dataDirect is the function through which a ConnectX-8 reads and writes the memory of GPUs (drivers/infiniband/hw/mlx5/data_direct.c).
const dataDirect = "15b3:2100"

// DataDirectDriver is the driver of Data Direct functions: the name of the module of data_direct.c.
const DataDirectDriver = "mlx5_ib"

// IsDataDirect reports whether the function is an additional one of an HCA, for the memory of GPUs. The HCA has the same VPD.UUID.
func (f *PCIFunction) IsDataDirect() bool { return f.ID == dataDirect }

// Possible returns the highest speed and width that both ends of the function's link support, 0 if the function does not report it.
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

// Errors returns the errors that both ends of the function's link detected, by severity. The events are different ones: each end
// counts what it detects.
func (f *PCIFunction) Errors() []Counter {
	sums := make([]Counter, 0, 3) // correctable, nonfatal, fatal
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
