// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// uprobeTestVar names the compiled tests of hook/uprobe.
const uprobeTestVar = "ACCELSCOPE_UPROBETEST"

// gate runs the tests of the gate of uprobes on this kernel.
func (n node) gate(t *testing.T) {
	prepareHolders(t)
	names := []string{"TestLook", "TestAttach", "TestTooMany", "TestHeld", "TestForkWait", "TestBreaker", "TestFileSystem"}
	if n.kernel != "5.10" { // it cannot pin perf events
		names = append(names, "TestShutdown")
	}
	n.packageTests(t, uprobeTestVar, "../../pkg/hook/uprobe", ".", names...)
}

// prepareHolders lets ordinary users use FUSE.
func prepareHolders(t *testing.T) {
	t.Helper()
	sh(t, "sh", "-c", "modprobe fuse; chmod 666 /dev/fuse; chmod 1777 /tmp")
}
