// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"golang.org/x/sys/unix"
)

// CharDevice is the uverbs device of an HCA.
type CharDevice struct {
	Name string // uverbsN
	PCI  string // address of the PCI function
}

// CharDevices returns the uverbs devices by the name of their HCA (/sys/class/infiniband_verbs/uverbsN/ibdev). This
// class has no namespaces: it also lists devices that were moved to another namespace. If two devices in different
// namespaces have the same name, the result for that name is empty.
func CharDevices(dir string) map[string]CharDevice {
	r := NewReader()
	of := map[string]CharDevice{}
	for _, name := range r.Directory(unix.AT_FDCWD, dir, ValidDevice) {
		path := dir + "/" + name
		device := r.name(unix.AT_FDCWD, path+"/ibdev") // empty for abi_version, which is a file
		if device == "" {
			continue
		}
		if _, twice := of[device]; twice {
			of[device] = CharDevice{}
			continue
		}
		of[device] = CharDevice{Name: name, PCI: PCIAddress(r.Link(path) + "/" + r.Link(path+"/device"))}
	}
	return of
}
