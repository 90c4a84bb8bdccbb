// SPDX-License-Identifier: Apache-2.0

package module

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/eeprom"
)

// TestSFF8472 decodes SFP modules that are constructed from the offsets of SFF-8472.
func TestSFF8472(t *testing.T) {
	between := func(low, high float64) *Range { return &Range{low, high} }
	want := Module{
		Type: "SFP", Decoded: true, Vendor: "Constructed", PartNumber: "SFP28-SR", Revision: "C3", Serial: "S8472-7",
		Temperature: new(-3.5), Voltage: new(3.3012),
		Lanes: []Lane{lane(7.002e-3, 31.6e-6, 562.3e-6)},
		Thresholds: Thresholds{
			Temperature:   Threshold{between(-10, 80), between(-5, 75)},
			Voltage:       Threshold{between(2.97, 3.63), between(3.135, 3.465)},
			Bias:          Threshold{between(1e-3, 12e-3), between(2e-3, 10e-3)},
			TransmitPower: Threshold{between(0.1e-3, 1e-3), between(0.2e-3, 0.8e-3)},
			ReceivePower:  Threshold{between(20e-6, 1.5e-3), between(40e-6, 1.2e-3)},
		},
	}
	got := decode(t, eeprom.SFP28())
	if d := cmp.Diff(want, got, near); d != "" {
		t.Error(d)
	}
	severities := map[string]Severity{}
	for _, a := range got.Assess() {
		severities[a.Value] = a.Severity
	}
	if d := cmp.Diff(map[string]Severity{
		"temperature": Normal, "voltage": Normal, "bias": Normal, "receive_power": LowWarning, "transmit_power": Normal,
	}, severities); d != "" {
		t.Error(d)
	}
	for name, change := range map[string]func(eeprom.Memory){
		"external calibration":    func(m eeprom.Memory) { m.Set(0, 92, 1<<6|1<<4) },
		"no diagnostics":          func(m eeprom.Memory) { m.Set(0, 92, 0) },
		"a change of the address": func(m eeprom.Memory) { m.Set(0, 92, 1<<6|1<<5|1<<2) },
		"not ready":               func(m eeprom.Memory) { m.Set(diagnostics, 110, 1) },
	} {
		memory := eeprom.SFP28()
		change(memory)
		if d := decode(t, memory); d.Serial != "S8472-7" || d.Temperature != nil || d.Lanes != nil || d.Assess() != nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
	cable := eeprom.SFP28()
	cable.Set(0, 8, 1<<2)
	cable.Set(0, 18, 3)
	if d := decode(t, cable); !d.Copper || d.Length == nil || *d.Length != 3 || d.Temperature != nil {
		t.Errorf("cable: %+v", d)
	}
}

// TestAddress: the values of an SFP module are at another I2C address.
func TestAddress(t *testing.T) {
	for r, want := range map[Read][2]uint8{{diagnostics, 96, 15}: {0x51, 0}, {0, 3, 65}: {0x50, 0}, {0x11, 154, 48}: {0x50, 0x11}} {
		if i2c, page := r.Address(); [2]uint8{i2c, page} != want {
			t.Errorf("%v: %#x, page %d", r, i2c, page)
		}
	}
}
