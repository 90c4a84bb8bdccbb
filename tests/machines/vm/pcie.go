// SPDX-License-Identifier: Apache-2.0

package vm

import "strings"

// pcieArgs returns QEMU's options for PCI functions in a tree of bridges with two NUMA nodes. All functions report errors (AER). Network
// adapters (8086:10d3) stand for HCAs, display controllers of ATI (1002:5046) for GPUs:
//
//	host bridge of NUMA node 0, bus 0x40: root port - switch - adapter, display controller; root port - adapter
//	host bridge of NUMA node 1, bus 0x80: root port - adapter; root port - display controller
//
// SeaBIOS reserves a 2048th of the physical addresses below each bridge (pci_pad_mem64), and stops without a word where the sum exceeds its
// room below 4 GiB. So the CPU has 36 bits of physical addresses. The kernel warns of a socket with two NUMA nodes.
func pcieArgs() []string {
	return strings.Fields(`
		-global max-x86_64-cpu.phys-bits=36 -smp 2,sockets=2
		-object memory-backend-ram,id=memory0,size=1536M -object memory-backend-ram,id=memory1,size=1536M
		-numa node,nodeid=0,cpus=0,memdev=memory0 -numa node,nodeid=1,cpus=1,memdev=memory1
		-device pxb-pcie,id=host0,bus_nr=64,numa_node=0,bus=pcie.0
		-device pcie-root-port,id=port0,chassis=1,slot=1,bus=host0 -device x3130-upstream,id=switch0,bus=port0
		-device xio3130-downstream,id=down0,bus=switch0,chassis=2,slot=0 -device e1000e,bus=down0,romfile=
		-device xio3130-downstream,id=down1,bus=switch0,chassis=3,slot=1 -device ati-vga,bus=down1,romfile=
		-device pcie-root-port,id=port1,chassis=4,slot=4,bus=host0 -device e1000e,bus=port1,romfile=
		-device pxb-pcie,id=host1,bus_nr=128,numa_node=1,bus=pcie.0
		-device pcie-root-port,id=port2,chassis=5,slot=5,bus=host1 -device e1000e,bus=port2,romfile=
		-device pcie-root-port,id=port3,chassis=6,slot=6,bus=host1 -device ati-vga,bus=port3,romfile=`)
}
