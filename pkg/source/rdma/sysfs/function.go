// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxFunctions bounds the virtual functions of a physical function. Their number in PCI has 16 bits, and no HCA has
// that many.
const MaxFunctions = 4096

// FunctionPath returns the directory of a PCI function below a mount point of sysfs.
func FunctionPath(root, address string) string {
	return filepath.Join(root, "bus/pci/devices", address)
}

// PhysicalFunction reports whether the PCI function at a path is virtual, and returns the name of the HCA of its
// physical function, if this namespace shows it (physfn/infiniband/).
func PhysicalFunction(r *Reader, path string) (vf bool, pf string) {
	if r.Link(path+"/physfn") == "" {
		return false, ""
	}
	names := r.Directory(unix.AT_FDCWD, path+"/physfn/infiniband", ValidDevice)
	return true, strings.Join(names, ",")
}

// subfunction is the auxiliary device of a subfunction in the path of its HCA: …/0000:18:00.0/mlx5_core.sf.4/infiniband/mlx5_9.
var subfunction = regexp.MustCompile(`\.sf\.[0-9]+/`)

func isSubfunction(path string) bool { return subfunction.MatchString(path) }

// VirtualGUIDs reads the node or port GUIDs that a physical function assigned to its
// virtual functions (sriov/N/{node,port}), by their PCI addresses. Only the vendor's
// driver (MLNX_OFED) has these files, for InfiniBand.
func VirtualGUIDs(r *Reader, path, of string) map[string]string {
	guids := map[string]string{}
	for _, n := range r.Directory(unix.AT_FDCWD, path+"/sriov", func(s string) bool { return isNumber(s) }) {
		guid := parseGUID(r.Line(unix.AT_FDCWD, path+"/sriov/"+n+"/"+of))
		if address := PCIAddress(r.Link(path + "/virtfn" + n)); guid != "" && address != "" {
			guids[address] = guid
		}
		if len(guids) == MaxFunctions {
			break
		}
	}
	return guids
}

func isNumber(s string) bool {
	return len(s) > 0 && len(s) <= 5 && strings.Trim(s, "0123456789") == ""
}

// FunctionByGUID finds the PCI function of a device that class/infiniband does not show, by node GUID, among the
// virtual functions of the devices there. It returns "" if two functions have this GUID.
func FunctionByGUID(r *Reader, class, guid string) string {
	found := ""
	for _, name := range r.Directory(unix.AT_FDCWD, class, ValidDevice) {
		for address, g := range VirtualGUIDs(r, class+"/"+name+"/device", "node") {
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
