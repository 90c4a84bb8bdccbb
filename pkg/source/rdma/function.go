// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFunctions limits the virtual functions of a physical one. Their number in PCI has 16
// bits, and no HCA has that many.
const maxFunctions = 4096

// functionPath returns the path of a PCI function in a sysfs.
func functionPath(root, address string) string {
	return filepath.Join(root, "bus/pci/devices", address)
}

// physicalFunction reports whether the PCI function at a path is virtual, and returns the
// name of the HCA of its physical function, if this namespace shows it (physfn/infiniband/).
func physicalFunction(r *reader, path string) (vf bool, pf string) {
	if r.link(path+"/physfn") == "" {
		return false, ""
	}
	names := r.directory(unix.AT_FDCWD, path+"/physfn/infiniband", validDevice)
	return true, strings.Join(names, ",")
}

// subfunction is the auxiliary device of a subfunction in the path of its HCA: …/0000:18:00.0/mlx5_core.sf.4/infiniband/mlx5_9.
var subfunction = regexp.MustCompile(`\.sf\.[0-9]+/`)

func isSubfunction(path string) bool { return subfunction.MatchString(path) }

// virtualGUIDs reads the node or port GUIDs that a physical function assigned to its
// virtual functions (sriov/N/{node,port}), by their PCI addresses. Only the vendor's
// driver (MLNX_OFED) has these files, for InfiniBand.
func virtualGUIDs(r *reader, path, of string) map[string]string {
	guids := map[string]string{}
	for _, n := range r.directory(unix.AT_FDCWD, path+"/sriov", func(s string) bool { return isNumber(s) }) {
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

// functionByGUID finds the PCI function of a device that class/infiniband does not show by its
// node GUID, among the virtual functions of the devices that it shows. It returns "" if
// two of them have that GUID.
func functionByGUID(r *reader, class, guid string) string {
	found := ""
	for _, name := range r.directory(unix.AT_FDCWD, class, validDevice) {
		for address, g := range virtualGUIDs(r, class+"/"+name+"/device", "node") {
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
