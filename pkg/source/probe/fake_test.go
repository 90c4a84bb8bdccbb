// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
)

// fakeSysfs returns a sysfs with one HCA and its uverbs device, which has the number of another character device.
func fakeSysfs(t testing.TB, dev, name string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range map[string]string{
		"class/infiniband/" + name + "/node_type": "1: CA\n",
		"class/infiniband_verbs/uverbs0/dev":      dev + "\n",
		"class/infiniband_verbs/uverbs0/ibdev":    name + "\n",
		"class/infiniband_verbs/abi_version":      "6\n",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// testCgroup creates a cgroup in the hierarchy that this machine uses for containers, and returns its controller.
func testCgroup(t *testing.T) (subsystem, dir string) {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		subsystem, root = "memory", filepath.Join(root, "memory")
	}
	dir, _ = testcgroup.New(t, root)
	return subsystem, dir
}

func inode(info os.FileInfo) uint64 {
	return info.Sys().(*syscall.Stat_t).Ino
}
