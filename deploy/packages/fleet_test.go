// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestFleetUnit: systemd understands every line of the unit of the page of all nodes, and its exposure level stays low.
func TestFleetUnit(t *testing.T) {
	text, err := os.ReadFile("../systemd/accelscope-fleet.service")
	if err != nil {
		t.Fatal(err)
	}
	const start = "ExecStart=/usr/bin/accelscope fleet "
	if !strings.Contains(string(text), start) {
		t.Fatal("the unit does not run accelscope fleet")
	}
	unit := filepath.Join(t.TempDir(), "accelscope-fleet.service")
	if err := os.WriteFile(unit, []byte(strings.Replace(string(text), start, "ExecStart=/bin/true ", 1)), 0o600); err != nil { // not installed here
		t.Fatal(err)
	}
	out, err := child.Command(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "accelscope-fleet.service:") {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
	const most = "15" // tenths
	out, err = child.Command(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+most, unit).Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	t.Log(lines[len(lines)-1])
	if err != nil {
		t.Errorf("more than %s tenths: %v\n%s", most, err, out)
	}
}
