// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// bound returns the sorted addresses of the PCI functions that are bound to the driver; false if the kernel has no such driver.
func bound(sysfs string) ([]string, bool) {
	entries, err := os.ReadDir(filepath.Join(sysfs, "bus/pci/drivers/nvidia"))
	if err != nil {
		return nil, false
	}
	var addresses []string
	for _, e := range entries {
		// A virtual function is the GPU of a virtual machine.
		_, virtual := os.Lstat(filepath.Join(sysfs, "bus/pci/devices", e.Name(), "physfn"))
		if strings.Count(e.Name(), ":") == 2 && virtual != nil {
			addresses = append(addresses, e.Name())
		}
	}
	slices.Sort(addresses)
	return addresses, true
}

// deviceNodes lists the open device nodes of a process, with the number of open files of each node. The process is the sensor or its
// child, so this needs no permission. All tasks share the files; after a kill, only tasks in uninterruptible sleep keep them.
func deviceNodes(pid int) []string {
	dirs, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/fd"))
	if err != nil {
		return nil
	}
	files := make(map[string]int)
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // fails for a task that has ended
		for _, e := range entries {
			if path, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(filepath.Base(path), "nvidia") {
				files[path]++
			}
		}
		if len(entries) > 0 {
			break
		}
	}
	nodes := make([]string, 0, len(files))
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if files[path] > 1 {
			path += fmt.Sprintf(" (%d files)", files[path])
		}
		nodes = append(nodes, path)
	}
	return nodes
}
