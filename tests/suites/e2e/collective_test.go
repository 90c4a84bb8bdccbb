// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// collectiveTestVar names the compiled tests of source/collective.
const collectiveTestVar = "ACCELSCOPE_COLLECTIVETEST"

// collectives runs tests of the source with FAKE libraries on this kernel, which show that the kernel accepts the programs. A kernel that
// checks itself takes three minutes to load them, in each test.
func (n node) collectives(t *testing.T) {
	tests, names := ".", []string{
		"TestLaunches", "TestCommunicators", "TestLate", "TestStatic", "TestGraphs", "TestBudget", "TestShare", "TestFull", "TestLeftCgroup",
		"TestPending", "TestBadPointers",
	}
	if n.debug {
		tests, names = "^(TestLaunches|TestLate)$", []string{"TestLaunches", "TestLate"}
	}
	n.packageTests(t, collectiveTestVar, "../../../pkg/source/collective", tests, names...)
}
