// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withoutFdinfo checks that a driver of DRM reports nothing about its clients in the fdinfo of a process that has its device
// node open. Drivers of GPUs do (drm_show_fdinfo); no guest has a GPU.
func withoutFdinfo(t *testing.T, pid int, node string) {
	t.Helper()
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(descriptor); err != nil || target != node {
			continue
		}
		open++
		text, err := os.ReadFile(strings.Replace(descriptor, "/fd/", "/fdinfo/", 1))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "drm-") {
			t.Errorf("%s has fdinfo:\n%s", node, text)
		}
	}
	if open == 0 {
		t.Errorf("process %d does not have %s open: %v", pid, node, descriptors)
	}
}
