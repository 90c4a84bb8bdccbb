// SPDX-License-Identifier: Apache-2.0

package module

// describeSFF8472 sets what does not change, from the memory at address A0h.
func (m *Memory) describeSFF8472(d *Module) {
	const passiveCable = 1 << 2
	d.Decoded = true
	d.Vendor, d.PartNumber = text(m.field(0, 20, 16)), text(m.field(0, 40, 16))
	d.Revision, d.Serial = text(m.field(0, 56, 4)), text(m.field(0, 68, 16))
	if m.octet(0, 8)&passiveCable == 0 {
		return
	}
	d.Technology, d.Copper = "copper, passive", true
	if length := m.octet(0, 18); length != 0 && length != 255 { // 255: longer than 254 m
		d.Length = new(float64(length))
	}
}

// diagnoses reports whether an SFP module has values at address A2h that need no calibration by the reader. Modules
// with external calibration are from the first years of SFP; modules with a change of the address have to be switched
// by a write.
func (m *Memory) diagnoses() bool {
	const (
		implemented   = 1 << 6
		calibrated    = 1 << 5
		changeAddress = 1 << 2
	)
	return m.octet(0, 92)&(implemented|calibrated|changeAddress) == implemented|calibrated
}

// decodeSFF8472 sets values and thresholds, from the memory at address A2h.
func (m *Memory) decodeSFF8472(d *Module) {
	const notReady = 1 << 0
	if m.octet(diagnostics, 110)&notReady != 0 {
		return
	}
	m.environment(d, diagnostics, 96, 98)
	d.Thresholds = Thresholds{
		Temperature:   m.thresholds(diagnostics, 0, temperature),
		Voltage:       m.thresholds(diagnostics, 8, voltage),
		Bias:          m.thresholds(diagnostics, 16, bias),
		TransmitPower: m.thresholds(diagnostics, 24, power),
		ReceivePower:  m.thresholds(diagnostics, 32, power),
	}
	d.Lanes = []Lane{{
		Bias:          m.value(diagnostics, 100, bias),
		TransmitPower: m.value(diagnostics, 102, power),
		ReceivePower:  m.value(diagnostics, 104, power),
	}}
}
