// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// TestDeviceNodes creates the nodes of a driver that is loaded after the container was started: on a tmpfs in a mount
// namespace. The files of procfs have the driver's format, and its numbers.
func TestDeviceNodes(t *testing.T) {
	if !nvmltest.Unshared(t, "--mount") {
		return
	}
	dev, procfs := filepath.Join(t.TempDir(), "dev"), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("dev", dev, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dev, unix.MNT_DETACH) })
	n := newMissingNodes(dev, procfs)
	check := func(want ...string) {
		t.Helper()
		dev := n.dev
		if err := n.create(); err != nil {
			t.Error(err)
		}
		var got []string
		err := filepath.WalkDir(dev, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			name := strings.TrimPrefix(path, dev+"/")
			got = append(got, fmt.Sprintf("%s %d:%d %o %d:%d", name, unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Mode, st.Uid, st.Gid))
			return nil
		})
		if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	devices := "Character devices:\n  1 mem\n195 %s\n195 nvidiactl\n234 nvidia-caps\n\nBlock devices:\n  8 sd\n254 nvidia-not-a-block-device\n"
	gpu := func(address, minor string) {
		write(filepath.Join(procfs, "driver/nvidia/gpus", address, "information"), "Model: \t\t NVIDIA H100\nDevice Minor: \t "+minor+"\n")
	}
	params := "EnableMSI: 1\nModifyDeviceFiles: %d\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
	check() // without a driver

	write(filepath.Join(procfs, "devices"), fmt.Sprintf(devices, "nvidia"))
	gpu("0000:20:00.0", "0")
	gpu("0000:30:00.0", "300") // not the number of a GPU
	gpu("0000:40:00.0", "1")
	check() // the parameters are not known
	write(filepath.Join(procfs, "driver/nvidia/params"), fmt.Sprintf(params, 0))
	check() // the driver forbids it

	write(filepath.Join(dev, "nvidia1"), "") // an existing file is never changed
	write(filepath.Join(procfs, "driver/nvidia/params"), fmt.Sprintf(params, 1))
	nodes := []string{"nvidia0 195:0 20660 0:44", "nvidia1 0:0 100644 0:0", "nvidiactl 195:255 20660 0:44"}
	check(nodes...)
	if err := os.Chmod(filepath.Join(dev, "nvidia0"), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes[0] = "nvidia0 195:0 20600 0:44"
	check(nodes...)
	write(filepath.Join(procfs, "devices"), strings.Replace(fmt.Sprintf(devices, "nvidia"), "\n\n", "\n511 nvidia-uvm\n\n", 1))
	nodes = append([]string{"nvidia-uvm 511:0 20660 0:44"}, nodes...)
	check(nodes...)

	mig := filepath.Join(procfs, "driver/nvidia/capabilities")
	const access = "DeviceFileMinor: %d\nDeviceFileMode: 256\nDeviceFileModify: %d\n"
	write(filepath.Join(mig, "mig/config"), fmt.Sprintf(access, 1, 1)) // allows changes: not needed
	write(filepath.Join(mig, "mig/monitor"), fmt.Sprintf(access, 2, 1))
	write(filepath.Join(mig, "gpu0/mig/gi1/access"), fmt.Sprintf(access, 12, 1))
	write(filepath.Join(mig, "gpu0/mig/gi1/ci0/access"), fmt.Sprintf(access, 13, 1))
	write(filepath.Join(mig, "gpu0/mig/gi2/access"), fmt.Sprintf(access, 21, 0)) // the driver forbids it
	write(filepath.Join(mig, "gpu0/mig/gi3/access"), fmt.Sprintf(access, 8192, 1))
	check(append([]string{
		"nvidia-caps/nvidia-cap12 234:12 20400 0:44", "nvidia-caps/nvidia-cap13 234:13 20400 0:44", "nvidia-caps/nvidia-cap2 234:2 20400 0:44",
	}, nodes...)...)

	old := filepath.Join(dev, "old") // the name of the driver's devices before it was divided
	if err := os.Mkdir(old, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("dev", old, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(old, unix.MNT_DETACH) })
	n = newMissingNodes(old, procfs)
	write(filepath.Join(procfs, "devices"), "Character devices:\n195 nvidia-frontend\n")
	check("nvidia0 195:0 20660 0:44", "nvidia1 195:1 20660 0:44", "nvidiactl 195:255 20660 0:44")

	if n := newMissingNodes(t.TempDir(), procfs); n.dev != "" {
		t.Error("a directory that is not a tmpfs of its own would be changed")
	}
}

// TestMountType has the mounts of a node and of a container.
func TestMountType(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"25 1 0:6 / /dev rw,nosuid - devtmpfs udev rw,size=4k\n26 25 0:24 / /dev/pts rw - devpts devpts rw\n", "devtmpfs"},
		{"830 829 0:60 / / rw - overlay overlay rw\n832 830 0:63 / /dev rw,nosuid shared:3 master:2 - tmpfs tmpfs rw", "tmpfs"},
		{"1 0 0:6 / /dev rw - tmpfs t rw\n2 1 0:7 / /dev rw - devtmpfs udev rw\n", "devtmpfs"},
		{"1 0 0:6 / /device rw - tmpfs t rw\n", ""},
		{"1 0 0:6 / /dev rw", ""},
		{" - tmpfs", ""},
		{"", ""},
	} {
		if got := mountType(tt.text, "/dev"); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
}

// TestPlatformLibrary finds NVML where the driver is not a PCI driver.
func TestPlatformLibrary(t *testing.T) {
	root := t.TempDir()
	if got := platformLibrary(root); got != "" {
		t.Errorf("none: %q", got)
	}
	for _, path := range []string{ // each is preferred to the ones before
		"usr/lib/aarch64-linux-gnu/tegra", "usr/lib/aarch64-linux-gnu/nvidia", "usr/lib/wsl/drivers/nv_dispi.inf_amd64_1",
		"usr/lib/wsl/drivers/nv_dispi.inf_amd64_2", "usr/lib/wsl/lib",
	} {
		want := filepath.Join(root, path, "libnvidia-ml.so.1")
		if err := os.MkdirAll(filepath.Dir(want), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(want, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := platformLibrary(root); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
