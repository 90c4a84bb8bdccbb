// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGPUResets: the driver refuses to reset a GPU that the sensor has open, so a runbook must prescribe the release
// before the reset.
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

// TestLinkCommands: the runbook of each link alert has a command of this project for the node. TestDocs of tests/suites/guides
// runs it.
func TestLinkCommands(t *testing.T) {
	alerts := 0
	for _, g := range groups(t) {
		if !slices.Contains([]string{"accelscope-links", "accelscope-pause", "accelscope-optics", "accelscope-pcie", "accelscope-congestion"}, g.Name) {
			continue
		}
		for _, r := range g.Rules {
			alerts++
			text, err := os.ReadFile(filepath.Join(root, "runbooks", r.Alert+".md"))
			if err != nil {
				t.Fatal(err)
			}
			_, diagnosis, _ := strings.Cut(string(text), "\n## Diagnosis\n")
			diagnosis, _, _ = strings.Cut(diagnosis, "\n## ")
			if !command.MatchString(diagnosis) {
				t.Errorf("runbooks/%s.md: no command of accelscope under Diagnosis", r.Alert)
			}
		}
	}
	if alerts < 25 {
		t.Errorf("%d alerts of links", alerts)
	}
}

// command matches a block of commands with a command of this project.
var command = regexp.MustCompile("(?m)^```sh\n(?:[^`\n]*\n)*accelscope [^`\n]+\n")
