// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestNoNVML: the tool asks a sensor about GPUs, and links neither NVML nor the source that does.
func TestNoNVML(t *testing.T) {
	out, err := child.Command(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("no dependencies")
	}
	for path := range strings.Lines(string(out)) {
		if strings.Contains(path, "nvml") || strings.Contains(path, "source/nvidia") {
			t.Errorf("the tool links %s", path)
		}
	}
}
