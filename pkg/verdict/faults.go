// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// rdmaFaults reports whether a fault with a code raises RDMAFault. Faults of PCI functions do so only if the function
// has or had an HCA.
func rdmaFaults(driver model.FaultDriver, code string, hca bool) bool {
	if !driver.OfHCA() || slices.Contains(harmlessFaults, code) || slices.Contains(otherAlertFaults, code) {
		return false
	}
	return hca || !slices.Contains(functionFaults, code)
}

// GPUFaults reports whether a fault raises GPUFault. If the driver reports a severity, it counts instead of the code.
// NVSwitches have other codes than GPUs.
func GPUFaults(key model.FaultKey) bool {
	switch {
	case key.Driver.OfHCA():
		return false
	case key.Severity != "":
		return key.Severity == model.FaultFatal
	}
	return key.Driver != model.DriverNVSwitch && slices.Contains(gpuFaults, key.Code)
}

// OfFault returns the name of the condition that a fault raises. It returns "" if the fault raises no condition, or if
// this depends on the use of the device.
func OfFault(f *model.Fault) string {
	switch {
	case f.Recovered:
		return ""
	case rdmaFaults(f.Driver, f.Code, false):
		return rdmaFault.Name
	case GPUFaults(f.FaultKey):
		return gpuFault.Name
	}
	return ""
}

func faultEvidence(now time.Time, t *model.FaultTotal, history []model.Fault) []string {
	evidence := []string{
		fmt.Sprintf("%s logged %s, %d times since the start, last %s ago", t.Driver, t.Code, t.Count, format.Span(now.Sub(t.Last))),
	}
	for i := len(history) - 1; i >= 0; i-- {
		if f := &history[i]; f.FaultKey == t.FaultKey && !f.Recovered {
			return append(evidence, f.Text)
		}
	}
	return evidence
}
