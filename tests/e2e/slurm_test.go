// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// cgroupTestVar names the compiled tests of source/cgroup.
const cgroupTestVar = "ACCELSCOPE_CGROUPTEST"

// slurmDevices compares, on this kernel, the GPUs in device programs like Slurm's with the device nodes that a process may open.
func (n node) slurmDevices(t *testing.T) {
	n.packageTests(t, cgroupTestVar, "../../pkg/source/cgroup", "^TestDeviceProgram$", "TestDeviceProgram")
}
