// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import "testing"

// refusals refuses each program, map and helper of the sources in turn, with all hooks of this kernel.
func (n node) refusals(t *testing.T) {
	for variable, dir := range map[string]string{probeTestVar: "probe", accessTestVar: "access", datapathTestVar: "datapath"} {
		if dir == "datapath" && !n.traces() {
			continue
		}
		n.packageTests(t, variable, "../../../pkg/source/"+dir, "^TestRefusedParts$", "TestRefusedParts")
	}
	n.packageTests(t, uprobeTestVar, "../../../pkg/hook/uprobe", "^TestRefusedParts$", "TestRefusedParts")
}
