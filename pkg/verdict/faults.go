// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// rdmaFaults reports whether a fault with a code is one of RDMAFault. Faults of PCI functions are only if a function has, or had, an HCA.
func rdmaFaults(driver model.FaultDriver, code string, hca bool) bool {
	if !driver.OfHCA() || slices.Contains(harmlessFaults, code) || slices.Contains(otherAlertFaults, code) {
		return false
	}
	return hca || !slices.Contains(functionFaults, code)
}

// GPUFaults reports whether a fault is one of GPUFault. If the driver says how bad a fault is, that counts instead of the code. The
// codes of NVSwitches are numbers of their own.
func GPUFaults(key model.FaultKey) bool {
	switch {
	case key.Driver.OfHCA():
		return false
	case key.Severity != "":
		return key.Severity == model.FaultFatal
	}
	return key.Driver != model.DriverNVSwitch && slices.Contains(gpuFaults, key.Code)
}

// OfFault returns the name of the condition that a fault is, empty if it is none, or if that depends on what the device is used for.
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

// faultEvidence describes the faults of a device.
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
