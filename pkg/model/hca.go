// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"strings"
)

// Counter is a cumulative value with the driver's name.
type Counter struct {
	Name  string
	Value uint64
}

// HCA is one RDMA device.
type HCA struct {
	Name  string // name of the ib_device, as in /sys/class/infiniband
	Index uint32 // index in RDMA netlink; 0 is valid, and also means no netlink

	// The following are empty if the kernel does not report them.
	Firmware     string // fw_ver
	Board        string // board_id
	Type         string // hca_type
	NodeType     string // node_type without its number: "CA"
	NodeGUID     string // node_guid; FormatGUID formats all GUIDs
	SysImageGUID string // sys_image_guid
	NodeDesc     string // node_desc
	PCIAddress   string // of its PCI function: 0000:18:00.0
	NUMANode     string // device/numa_node, empty when -1
	CharDevice   string // uverbsN
	// PF is the HCA of the physical function, which may be invisible. VF reports that this is a virtual function.
	VF bool
	PF string
	// Subfunction reports that software created this part of a physical function, such as mlx5_core.sf.4.
	Subfunction bool
	// Parent is the HCA of a management device (RDMA_DEVICE_TYPE_SMI), whose ports are the planes of the HCA's port and
	// which no process can open. Empty for other devices.
	Parent string
	// Netns is the inode of the device's network namespace; 0 for the node's.
	Netns uint64

	Ports []Port
	// IPoIB are the interfaces over InfiniBand in the sensor's network namespace, by name.
	IPoIB      []IPoIB
	HWCounters []Counter
}

// ByFunction returns HCAs by the PCI address of their function, in lower case. Subfunctions have the address of their
// physical function. The function's own HCA is the first that the kernel registered.
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

// registeredBefore compares indexes (0 without RDMA netlink), then names: mlx5_2 before mlx5_10.
func (h *HCA) registeredBefore(other *HCA) bool {
	return cmp.Or(cmp.Compare(h.Index, other.Index), cmp.Compare(len(h.Name), len(other.Name)), cmp.Compare(h.Name, other.Name)) < 0
}

// SMChange is the change of an InfiniBand port to another subnet manager.
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
	GIDs      []GID  // the GID table, by index; read every few minutes
	// PKeys is the P_Key table of an InfiniBand port, by index; read when the port changes, and every hour. SMChanges
	// counts the observed changes of the subnet manager.
	PKeys     []PKey
	SMChanges uint64

	// RateBits is the data rate in bits per second, Width the number of lanes, Speed the name of the lane speed (SDR …
	// XDR); empty if unknown.
	RateBits float64
	Width    int
	Speed    string

	// Counters are sysfs counters/ (PMA) in the kernel's units: port_*_data are words of four bytes. HWCounters are the
	// driver's counters (sysfs hw_counters/, RDMA netlink STAT_GET).
	Counters   []Counter
	HWCounters []Counter
	// ExtCounters are the 64-bit counters of drivers for kernels before 4.5 (sysfs counters_ext/), in the units of
	// Counters.
	ExtCounters []Counter
}
