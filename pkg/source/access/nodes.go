// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// A node is a device node: its base name in /dev, and its class.
type node struct {
	name  string
	class model.DeviceClass
}

// nodes are the watched device numbers: the class of each major, and the nodes of existing numbers, by the kernel's own
// dev_t (include/linux/kdev_t.h).
type nodes struct {
	majors  [numMajors]uint8
	classes map[uint32]model.DeviceClass // by major, if all of its minors have the same class
	drivers map[uint32]string            // of these majors
	named   map[uint32]node
}

func newNodes() nodes {
	return nodes{classes: map[uint32]model.DeviceClass{}, drivers: map[uint32]string{}, named: map[uint32]node{}}
}

const (
	// numMajors is the size of the BPF programs' table.
	numMajors = 4096
	minorBits = 20
	minorMask = 1<<minorBits - 1

	// others is the name for denied opens of missing numbers, like minorMask in the programs' counts.
	others = "other"
)

// classOf returns the class of a driver in /proc/devices, or "" if its devices are not watched. Misc devices have
// individual classes.
func classOf(driver string) model.DeviceClass {
	switch v := vendorOf(driver); {
	case strings.HasPrefix(driver, "infiniband"): // infiniband_verbs, _mad, _cm
		return model.ClassRDMA
	case driver == "drm":
		return model.ClassDRI
	case v != nil:
		return v.DeviceClass
	}
	return ""
}

// vendorOf returns the GPU vendor of a driver in /proc/devices, or nil.
func vendorOf(driver string) *model.GPUVendor {
	return model.FindGPUVendor(func(v *model.GPUVendor) bool {
		return v.CharDriver != "" && strings.HasPrefix(driver, v.CharDriver)
	})
}

// unlisted returns the nodes of a driver that sysfs does not list, or nil.
func unlisted(driver string) *model.UnlistedNodes {
	if v := vendorOf(driver); v != nil {
		return v.Unlisted
	}
	return nil
}

var miscDevices = map[string]model.DeviceClass{"rdma_cm": model.ClassRDMA}

func majorsOf(text []byte) map[uint32]string {
	out := map[uint32]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "Block devices:" {
			break
		}
		number, driver, _ := strings.Cut(line, " ")
		// A name may occur with several majors, and a major with several names (tty).
		if major, err := strconv.ParseUint(number, 10, 32); err == nil && major < numMajors {
			if old, ok := out[uint32(major)]; !ok || classOf(old) == "" {
				out[uint32(major)] = driver
			}
		}
	}
	return out
}

// maxDevicesFile is more than the size of /proc/devices: a line of up to 80 bytes for each of 512 character and 512
// block majors.
const maxDevicesFile = 128 << 10

// list reads the device numbers to watch: the majors from procfs/devices, the names from sysfs/dev/char/MAJOR:MINOR,
// the minors of misc devices from sysfs/class/misc/NAME/dev. For nodes that sysfs does not list (NVIDIA's) it counts
// the GPUs in sysfs/bus/pci/drivers/NAME.
func list(procfs, sysfs string) (nodes, error) {
	n := newNodes()
	text, err := boundedfile.ReadFile(filepath.Join(procfs, "devices"), nil, maxDevicesFile)
	if err != nil {
		return n, fmt.Errorf("drivers of character devices: %w", err)
	}
	for major, driver := range majorsOf(text) {
		class := classOf(driver)
		switch {
		case driver == "misc":
			n.addMisc(sysfs, major)
		case class != "":
			n.majors[major] = uint8(gen.DevicesWatchWATCH_ALL)
			n.classes[major], n.drivers[major] = class, driver
			if u := unlisted(driver); u != nil {
				gpus, _ := filepath.Glob(filepath.Join(sysfs, "bus/pci/drivers", u.PCIDriver, "*:*:*.*"))
				for _, minor := range u.Minors(driver, len(gpus)) {
					n.named[major<<minorBits|minor] = node{u.Name(driver, minor), class}
				}
			}
		}
	}
	if len(n.classes) == 0 {
		return n, nil
	}
	f, err := os.Open(filepath.Join(sysfs, "dev/char"))
	if err != nil {
		return n, fmt.Errorf("device numbers: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	numbers, err := f.Readdirnames(-1)
	if err != nil {
		return n, fmt.Errorf("device numbers: %w", err)
	}
	for _, number := range numbers {
		rdev, ok := parseNumber(number)
		if class := n.classes[rdev>>minorBits]; ok && class != "" {
			n.link(sysfs, rdev, class)
		}
	}
	return n, nil
}

// link reads the name of a number from sysfs. A removed device has no name.
func (n *nodes) link(sysfs string, rdev uint32, class model.DeviceClass) {
	number := fmt.Sprintf("%d:%d", rdev>>minorBits, rdev&minorMask)
	if target, err := os.Readlink(filepath.Join(sysfs, "dev/char", number)); err == nil {
		n.named[rdev] = node{filepath.Base(target), class}
	}
}

func (n *nodes) addMisc(sysfs string, major uint32) {
	for name, class := range miscDevices {
		text, err := boundedfile.ReadOnce(filepath.Join(sysfs, "class/misc", name, "dev"), make([]byte, 32))
		if err != nil {
			continue // its driver is not loaded
		}
		if rdev, ok := parseNumber(strings.TrimSpace(string(text))); ok && rdev>>minorBits == major {
			n.majors[major] = uint8(gen.DevicesWatchWATCH_NODES)
			n.named[rdev] = node{name, class}
		}
	}
}

func (n *nodes) any() bool { return len(n.named) > 0 || len(n.classes) > 0 }

// of returns the node of a number. Without a known name, the number is its name.
func (n *nodes) of(rdev uint32) node {
	if known, ok := n.named[rdev]; ok {
		return known
	}
	major, minor := rdev>>minorBits, rdev&minorMask
	class, driver := n.classes[major], n.drivers[major]
	if minor == minorMask {
		return node{others, class}
	}
	if u := unlisted(driver); u != nil {
		return node{u.Name(driver, minor), class}
	}
	return node{fmt.Sprintf("%d:%d", major, minor), class}
}

func (n *nodes) clone() nodes {
	return nodes{n.majors, maps.Clone(n.classes), maps.Clone(n.drivers), maps.Clone(n.named)}
}

// add adds new nodes and keeps removed nodes. It reports whether a number now belongs to another device.
func (n *nodes) add(now nodes) (other bool) {
	for major, driver := range now.drivers {
		if old, ok := n.drivers[major]; ok && old != driver {
			other = true
		}
		n.drivers[major], n.classes[major] = driver, now.classes[major]
	}
	for rdev, nd := range now.named {
		if old, ok := n.named[rdev]; ok && old != nd {
			other = true
		}
		n.named[rdev] = nd
	}
	n.majors = now.majors
	return other
}

// parseNumber parses a number like "226:128".
func parseNumber(text string) (uint32, bool) {
	first, second, _ := strings.Cut(text, ":")
	major, err := strconv.ParseUint(first, 10, 32)
	if err != nil || major >= numMajors {
		return 0, false
	}
	minor, err := strconv.ParseUint(second, 10, minorBits)
	if err != nil {
		return 0, false
	}
	return uint32(major)<<minorBits | uint32(minor), true
}
