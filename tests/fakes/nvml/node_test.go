// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestObservedMinors compares the fake's minor numbers with an H200's mig-minors (DataDog/datadog-agent#55271): 102 for
// GPU instance 11, and 103 for its compute instance 0.
func TestObservedMinors(t *testing.T) {
	s, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.AddH100(0)
	s.SplitGPU(0, Profile{"1g.18gb", 1, 16, 18 << 10, 11})
	procfs := t.TempDir()
	if err := s.Capabilities(procfs); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"access": "102", "ci0/access": "103"} {
		text, err := os.ReadFile(filepath.Join(procfs, "driver/nvidia/capabilities/gpu0/mig/gi11", file))
		if err != nil || !strings.HasPrefix(string(text), "DeviceFileMinor: "+want+"\n") {
			t.Errorf("%s: %q, %v, want %s", file, text, err, want)
		}
	}
}
