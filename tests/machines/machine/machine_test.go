// SPDX-License-Identifier: Apache-2.0

//go:build vm

package machine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/machines/machine"
)

// Changes in the machine do not affect the real one.
func TestMachine(t *testing.T) {
	shared := t.TempDir()
	m, err := machine.Start(t.Context(), shared, "")
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.Sh(t.Context(), "set -e; cat /proc/1/comm; touch /etc/accelscope-machine "+shared+"/seen; ss -Hltn; "+
		"mkdir /var/lib/accelscope; find /var/lib/accelscope; "+ // new, even if a sensor ran here
		"printf '[Service]\nExecStart=/bin/sleep 1000\n' >/etc/systemd/system/one.service; systemctl start one; systemctl is-active one")
	if err != nil || out != "systemd\n/var/lib/accelscope\nactive\n" {
		t.Errorf("%v: %s", err, out)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/etc/accelscope-machine"); err == nil {
		t.Error("a file of the machine's is this machine's")
	}
	if _, err := os.Stat(filepath.Join(shared, "seen")); err != nil {
		t.Errorf("the shared directory: %v", err)
	}
	for _, list := range []string{"/proc/mounts", "/proc/self/mountinfo"} {
		if mounts, _ := os.ReadFile(list); strings.Contains(string(mounts), m.Name()) {
			t.Errorf("mounts are left in %s", list)
		}
	}
	for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if left, _ := filepath.Glob(tree + "/" + m.Name()); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
	}
}
