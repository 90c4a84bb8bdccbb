// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGPUResets: the driver refuses to reset a GPU that the sensor has open. A runbook that prescribes a reset prescribes
// the release before it.
func TestGPUResets(t *testing.T) {
	resets := 0
	for _, file := range files(t, "runbooks/GPU*.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, mitigation, _ := strings.Cut(string(text), "\n## Mitigation\n")
		mitigation, _, _ = strings.Cut(mitigation, "\n## ")
		if !strings.Contains(strings.ToLower(mitigation), "reset") {
			continue
		}
		resets++
		_, after, released := strings.Cut(mitigation, "accelscope gpu release")
		if !released || !strings.Contains(after, "--gpu-reset") {
			t.Errorf("%s: no release before the reset", filepath.Base(file))
		}
	}
	if resets < 8 {
		t.Errorf("%d runbooks prescribe a reset", resets)
	}
}
