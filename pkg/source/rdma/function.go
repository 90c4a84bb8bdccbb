// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFunctions is how many virtual functions a physical one may have: PCI gives
// their number 16 bits, and no HCA comes near.
const maxFunctions = 4096

// pciFunction is the path of a PCI function.
func (s *Source) pciFunction(address string) string {
	return filepath.Join(s.opt.Sysfs, "bus/pci/devices", address)
}

// physicalFunction says whether the PCI function at a path is a virtual one,
// and how the HCA of the physical one is called, if it is in sight
// (physfn/infiniband/).
func physicalFunction(r *reader, path string) (vf bool, pf string) {
	if r.link(path+"/physfn") == "" {
		return false, ""
	}
	names := r.directory(path+"/physfn/infiniband", validDevice)
	return true, strings.Join(names, ",")
}

// virtualGUIDs reads what GUID a physical function, at a path, has given to the
// node or port of each of its virtual ones (sriov/N/{node,port}), by their PCI
// addresses. The files come with the driver of the vendor, for InfiniBand; other
// drivers have none.
func virtualGUIDs(r *reader, path, of string) map[string]string {
	guids := map[string]string{}
	for _, n := range r.directory(path+"/sriov", func(s string) bool { return isNumber(s) }) {
		guid := parseGUID(r.line(unix.AT_FDCWD, path+"/sriov/"+n+"/"+of))
		if address := pciAddress(r.link(path + "/virtfn" + n)); guid != "" && address != "" {
			guids[address] = guid
		}
		if len(guids) == maxFunctions {
			break
		}
	}
	return guids
}

func isNumber(s string) bool {
	return len(s) > 0 && len(s) <= 5 && strings.Trim(s, "0123456789") == ""
}

// functionOf finds the PCI function of a device that is out of sight by its node
// GUID, among the virtual functions of the devices that are in sight. Of two that
// have it neither is.
func (s *Source) functionOf(r *reader, guid string) string {
	found := ""
	for _, name := range r.directory(s.root, validDevice) {
		for address, g := range virtualGUIDs(r, s.root+"/"+name+"/device", "node") {
			switch {
			case g != guid || address == found:
			case found != "":
				return ""
			default:
				found = address
			}
		}
	}
	return found
}
