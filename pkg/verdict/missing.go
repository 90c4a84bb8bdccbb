// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// pciAge is how old the data about PCI functions may be.
const pciAge = 2 * time.Minute

// missingRules judge the devices that are missing in the inventory.
type missingRules struct{ *round }

func (r missingRules) judge() {
	for i := range r.Facts.Missing {
		m := &r.Facts.Missing[i]
		switch {
		case m.Excused:
		case m.Kind == model.KindGPU:
			r.find(gpuGone, Subject{Kind: OfGPU, UUID: m.ID}, m.Since, r.missingEvidence(m)...)
		case m.Kind == model.KindModule:
			r.find(moduleGone, Subject{Kind: OfPort, Device: m.Name, Port: m.Port, Detail: m.ID}, m.Since, r.missingEvidence(m)...)
		default:
			r.find(hcaGone, Subject{Kind: OfHCA, Device: m.Name, Detail: m.ID}, m.Since, r.missingEvidence(m)...)
		}
	}
}

// missingEvidence describes a missing device.
func (r missingRules) missingEvidence(m *model.MissingDevice) []string {
	what := m.Name
	if m.Serial != "" {
		what += ", serial number " + m.Serial
	}
	evidence := []string{fmt.Sprintf("%s at %s", what, m.Slot)}
	if m.Seen.IsZero() {
		return append(evidence, "it has no driver, beside equal GPUs that have one")
	}
	seen := "last listed " + format.Span(r.At.Sub(m.Seen)) + " ago"
	if m.Kind == model.KindModule {
		evidence[0] = "module with the serial number " + m.Serial
		seen = "last read " + format.Span(r.At.Sub(m.Seen)) + " ago"
	}
	if m.Rebooted {
		seen += ", before the node was started"
	}
	evidence = append(evidence, seen)
	if m.Kind == model.KindModule {
		return append(evidence, "its EEPROM cannot be read, and the interface has no carrier")
	}
	if !model.IsPCIAddress(m.Slot) || r.Facts.PCI == nil || r.At.Sub(m.Since) < pciAge {
		return evidence
	}
	n := slices.IndexFunc(r.Facts.PCI, func(f model.PCIFunction) bool { return f.Address == m.Slot })
	switch {
	case n < 0:
		return append(evidence, "the kernel lists no PCI function there")
	case r.Facts.PCI[n].Driver == "":
		return append(evidence, "its PCI function is there, without a driver")
	}
	return append(evidence, "its PCI function is there, with the driver "+r.Facts.PCI[n].Driver)
}
