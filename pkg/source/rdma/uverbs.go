// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// charDevice is the uverbs device of an HCA.
type charDevice struct {
	name string // uverbsN
	pci  string // address of the PCI function
}

// charDevices returns the uverbs devices by the name of their HCA
// (/sys/class/infiniband_verbs/uverbsN/ibdev). This class has no namespaces: it also lists
// devices that were moved to another one. If two devices in different namespaces have the same
// name, the result for that name is empty.
func charDevices(dir string) map[string]charDevice {
	r := reader{buffer: make([]byte, bufferSize), kept: new(atomic.Int64)}
	of := map[string]charDevice{}
	for _, name := range r.directory(unix.AT_FDCWD, dir, validDevice) {
		path := dir + "/" + name
		device := r.name(unix.AT_FDCWD, path+"/ibdev") // none of abi_version, which is a file
		if device == "" {
			continue
		}
		if _, twice := of[device]; twice {
			of[device] = charDevice{}
			continue
		}
		of[device] = charDevice{name: name, pci: pciAddress(r.link(path) + "/" + r.link(path+"/device"))}
	}
	return of
}
