// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/mountinfo"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const (
	// controlMinor is the minor number of /dev/nvidiactl. GPUs have the numbers below maxMinor.
	controlMinor = 255
	maxMinor     = 248
	// maxCapability bounds the minor numbers of /dev/nvidia-caps.
	maxCapability = 8192
	// listMax is the maximum size of /proc/devices and of mountinfo.
	listMax = 1 << 20
)

// missingNodes creates device nodes of the driver that the sensor's container lacks. A container has a copy of /dev from its start,
// without the nodes of a driver or a MIG instance that came later. For processes of the node, nvidia-modprobe creates nodes. An existing
// node is never changed.
type missingNodes struct {
	dev    string // a tmpfs of the container; "" if /dev belongs to the node
	procfs string
}

// newMissingNodes returns the nodes of a directory, which is /dev.
func newMissingNodes(dev, procfs string) missingNodes {
	text, err := boundedfile.ReadFile("/proc/self/mountinfo", nil, listMax)
	if err != nil || mountType(string(text), dev) != "tmpfs" { // the node has a devtmpfs
		dev = ""
	}
	return missingNodes{dev, procfs}
}

// create creates the missing nodes, unless the driver's parameter ModifyDeviceFiles forbids it.
func (n missingNodes) create() error {
	if n.dev == "" {
		return nil
	}
	majors := n.majors()
	if majors["nvidia"] == 0 {
		return nil // the driver is not loaded
	}
	rules := fields(filepath.Join(n.procfs, "driver/nvidia/params"))
	if rules["ModifyDeviceFiles"] != "1" {
		return nil
	}
	owner := func(key string) int { return int(number(rules, key, 1<<32-2, 0)) }
	uid, gid, mode := owner("DeviceFileUID"), owner("DeviceFileGID"), uint32(number(rules, "DeviceFileMode", 0o777, 0o666))
	gpu := func(minor uint32, name string) error {
		return n.node(name, mode, uid, gid, unix.Mkdev(majors["nvidia"], minor))
	}
	failed := []error{gpu(controlMinor, "nvidiactl")}
	if major := majors["nvidia-uvm"]; major != 0 { // NVML opens it, if it exists
		failed = append(failed, n.node("nvidia-uvm", mode, uid, gid, unix.Mkdev(major, 0)))
	}
	gpus, _ := os.ReadDir(filepath.Join(n.procfs, "driver/nvidia/gpus")) // none if it fails
	for _, g := range gpus {
		about := fields(filepath.Join(n.procfs, "driver/nvidia/gpus", g.Name(), "information"))
		if minor := number(about, "Device Minor", maxMinor-1, maxMinor); minor < maxMinor {
			failed = append(failed, gpu(uint32(minor), "nvidia"+strconv.FormatUint(minor, 10)))
		}
	}
	return errors.Join(append(failed, n.capabilities(majors["nvidia-caps"], uid, gid)...)...)
}

// capabilities creates the nodes with which NVML monitors MIG instances. The driver has a file for each below
// /proc/driver/nvidia/capabilities.
func (n missingNodes) capabilities(major uint32, uid, gid int) (failed []error) {
	if major == 0 {
		return nil
	}
	root := filepath.Join(n.procfs, "driver/nvidia/capabilities")
	for _, pattern := range []string{"mig/monitor", "gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access"} {
		files, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is valid
		for _, file := range files {
			rules := fields(file)
			minor := number(rules, "DeviceFileMinor", maxCapability-1, maxCapability)
			if minor == maxCapability || rules["DeviceFileModify"] != "1" {
				continue
			}
			mode := uint32(number(rules, "DeviceFileMode", 0o777, 0o444))
			name := "nvidia-caps/nvidia-cap" + strconv.FormatUint(minor, 10)
			failed = append(failed, n.node(name, mode, uid, gid, unix.Mkdev(major, uint32(minor))))
		}
	}
	return failed
}

// node creates a character device, unless a file of that name exists.
func (n missingNodes) node(name string, mode uint32, uid, gid int, device uint64) error {
	path := filepath.Join(n.dev, name)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as the driver makes it
		return err
	}
	// The node has a temporary name until it is complete: no process must open a node with the wrong owner.
	temporary := path + ".accelscope"
	if err := unix.Mknod(temporary, unix.S_IFCHR|0o600, int(device)); err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	defer os.Remove(temporary) //nolint:errcheck // always fails after the rename
	if err := errors.Join(os.Lchown(temporary, uid, gid), os.Chmod(temporary, fs.FileMode(mode))); err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	err := unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	return nil
}

// majors returns the major numbers of the driver's character devices, by name in /proc/devices. The name of the GPUs is
// "nvidia", in older drivers "nvidia-frontend".
func (n missingNodes) majors() map[string]uint32 {
	text, err := boundedfile.ReadFile(filepath.Join(n.procfs, "devices"), nil, listMax)
	if err != nil {
		return nil
	}
	majors := make(map[string]uint32)
	characters, _, _ := strings.Cut(string(text), "Block devices:")
	for line := range strings.Lines(characters) {
		if major, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "nvidia") {
			if v, err := strconv.ParseUint(major, 10, 12); err == nil {
				majors[strings.TrimSuffix(name, "-frontend")] = uint32(v)
			}
		}
	}
	return majors
}

// mountType returns the type of the file system that mountinfo lists for a directory. Of several mounts the last is visible.
func mountType(mounts, dir string) string {
	found := ""
	for line := range strings.Lines(mounts) {
		if m, ok := mountinfo.Parse(line); ok && m.Point == dir {
			found = m.Type
		}
	}
	return found
}

// fields returns the lines "key: value" of a file of the driver.
func fields(path string) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(wire.Attribute(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			found[key] = strings.TrimSpace(value)
		}
	}
	return found
}

// number returns a field of at most a limit, or another value.
func number(fields map[string]string, key string, limit, otherwise uint64) uint64 {
	if v, err := strconv.ParseUint(fields[key], 10, 64); err == nil && v <= limit {
		return v
	}
	return otherwise
}
