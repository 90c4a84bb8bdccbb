// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// collectiveTestVar names the compiled tests of source/collective.
const collectiveTestVar = "ACCELSCOPE_COLLECTIVETEST"

// collectives runs tests of the source with FAKE libraries on this kernel, which show that the kernel accepts the programs.
func (n node) collectives(t *testing.T) {
	tests, names := "^(TestLaunches|TestCommunicators|TestLate)$", []string{"TestLaunches", "TestCommunicators", "TestLate"}
	if whole() {
		tests, names = ".", append(names, "TestStatic", "TestGraphs", "TestBudget", "TestShare", "TestPending", "TestBadPointers")
	}
	n.packageTests(t, collectiveTestVar, "../../../pkg/source/collective", tests, names...)
}
