// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"strings"
)

// Counter is one cumulative value with the driver's name for it.
type Counter struct {
	Name  string
	Value uint64
}

// HCA is one RDMA device.
type HCA struct {
	Name  string // name of the ib_device, as in /sys/class/infiniband
	Index uint32 // RDMA netlink device index; 0 is valid, and also the value without netlink

	// The following are empty if the kernel does not report them.
	Firmware     string // fw_ver
	Board        string // board_id
	Type         string // hca_type
	NodeType     string // node_type without its number: "CA"
	NodeGUID     string // node_guid; this and all GUIDs as FormatGUID formats them
	SysImageGUID string // sys_image_guid
	NodeDesc     string // node_desc
	PCIAddress   string // of its PCI function: 0000:18:00.0
	NUMANode     string // device/numa_node, empty when -1
	CharDevice   string // uverbsN
	// PF is the HCA of the physical function, VF reports whether this is a virtual one. The PF
	// may be invisible.
	VF bool
	PF string
	// Subfunction reports that it is a part of a physical function that was made by software, as mlx5_core.sf.4.
	Subfunction bool
	// Parent is the HCA of a management device (RDMA_DEVICE_TYPE_SMI): its ports are the planes of the port of that HCA, and no process can
	// open it. It is empty for other devices.
	Parent string
	// Netns is the inode of the device's network namespace; 0 for the node's.
	Netns uint64

	Ports []Port
	// IPoIB are the network interfaces over InfiniBand that the sensor's network namespace shows, by name.
	IPoIB []IPoIB
	// HWCounters are the driver's counters for the whole device.
	HWCounters []Counter
}

// ByFunction returns HCAs by the PCI address of their function, in lower case. Subfunctions have the address of their physical function:
// the function's own HCA is the one that the kernel registered first, as they exist below it.
func ByFunction(list []HCA) map[string]*HCA {
	own := make(map[string]*HCA, len(list))
	for i := range list {
		address := strings.ToLower(list[i].PCIAddress)
		if h := own[address]; address != "" && (h == nil || list[i].registeredBefore(h)) {
			own[address] = &list[i]
		}
	}
	return own
}

// registeredBefore compares indexes, which are 0 without RDMA netlink, and then names: mlx5_2 before mlx5_10.
func (h *HCA) registeredBefore(other *HCA) bool {
	return cmp.Or(cmp.Compare(h.Index, other.Index), cmp.Compare(len(h.Name), len(other.Name)), cmp.Compare(h.Name, other.Name)) < 0
}

// SMChange is the change of an InfiniBand port from one subnet manager to another.
type SMChange struct {
	Port     int
	From, To string // LIDs
}

// Port is one port of an HCA.
type Port struct {
	Number    int
	State     string // ACTIVE, DOWN, INIT, ARMED, ACTIVE_DEFER, NOP
	PhysState string // LinkUp, Disabled, Polling, …
	LinkLayer string // InfiniBand, Ethernet
	Netdev    string // network interface of a RoCE port
	LID       string // in the kernel's format: 0x1
	SMLID     string
	PortGUID  string // lower half of GID 0
	GIDs      []GID  // of the GID table, by index; read every few minutes
	// PKeys is the P_Key table of an InfiniBand port, by index; read when the port changes, and every hour. SMChanges counts the changes
	// from one subnet manager to another that were noticed.
	PKeys     []PKey
	SMChanges uint64

	// RateBits is the data rate in bits per second, Width the number of lanes and Speed the
	// name of the lane speed (SDR … XDR); empty if unknown.
	RateBits float64
	Width    int
	Speed    string

	// Counters is the PMA set (sysfs counters/), in the kernel's units: port_*_data count
	// words of four bytes. HWCounters is the driver's set (sysfs hw_counters/, RDMA netlink
	// STAT_GET).
	Counters   []Counter
	HWCounters []Counter
	// ExtCounters are the 64-bit counters of drivers for kernels before 4.5 (sysfs
	// counters_ext/), in the units of Counters.
	ExtCounters []Counter
}
