// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// slurmTestVar names the compiled tests of source/cgroup/slurm.
const slurmTestVar = "ACCELSCOPE_SLURMTEST"

// slurmDevices compares, on this kernel, the GPUs in device programs like Slurm's with the device nodes that a process
// may open.
func (n node) slurmDevices(t *testing.T) {
	n.packageTests(t, slurmTestVar, "../../../pkg/source/cgroup/slurm", "^TestDeviceProgram$", "TestDeviceProgram")
}
