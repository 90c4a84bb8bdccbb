// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// The variables name the compiled tests of source/gpumemory and source/library.
const (
	gpuMemoryTestVar = "ACCELSCOPE_GPUMEMORYTEST"
	libraryTestVar   = "ACCELSCOPE_LIBRARYTEST"
)

// gpuMemory runs tests of the source with FAKE libraries on this kernel, which show that the kernel accepts the
// programs, and that return probes can be tried on it.
func (n node) gpuMemory(t *testing.T) {
	n.packageTests(t, returnTestVar, "../../../pkg/source/datapath/returnprobe", "^TestExperiments$", "TestExperiments")
	tests, names := "^(TestFailedAllocations|TestLargeRequests)$", []string{"TestFailedAllocations", "TestLargeRequests"}
	if whole() && !n.debug {
		tests, names = ".", append(names, "TestFull")
		n.packageTests(t, libraryTestVar, "../../../pkg/source/library", ".", "TestExec", "TestOwnMounts", "TestKept", "TestBudget", "TestFirstRead")
	}
	n.packageTests(t, gpuMemoryTestVar, "../../../pkg/source/gpumemory", tests, names...)
}
