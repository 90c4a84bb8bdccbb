// SPDX-License-Identifier: Apache-2.0

package module

import "fmt"

// Decode decodes what Refresh has read.
func (m *Memory) Decode() Module {
	var d Module
	m.describe(&d)
	if d.Decoded && m.measures() {
		switch m.layout() {
		case sff8472:
			m.decodeSFF8472(&d)
		case sff8636:
			m.decodeSFF8636(&d)
		case cmis:
			m.decodeCMIS(&d)
		}
	}
	return d
}

func (m *Memory) describe(d *Module) {
	id := m.octet(0, 0)
	d.Type = identifiers[id].name
	if d.Type == "" {
		d.Type = fmt.Sprintf("%#02x", id)
	}
	switch m.layout() {
	case sff8472:
		m.describeSFF8472(d)
	case sff8636:
		d.Decoded = true
		d.Vendor, d.PartNumber = text(m.field(0, 148, 16)), text(m.field(0, 168, 16))
		d.Revision, d.Serial = text(m.field(0, 184, 2)), text(m.field(0, 196, 16))
		if m.has(Read{0, 147, 1}) {
			d.setTechnology(m.octet(0, 147) >> 4)
		}
		d.Length = m.lengthSFF8636()
	case cmis:
		d.Decoded = true
		d.Vendor, d.PartNumber = text(m.field(0, 129, 16)), text(m.field(0, 148, 16))
		d.Revision, d.Serial = text(m.field(0, 164, 2)), text(m.field(0, 166, 16))
		if m.has(Read{0, 212, 1}) {
			d.setTechnology(m.octet(0, 212))
		}
		d.Length = m.lengthCMIS()
	}
}

// lengthSFF8636 returns the length of a cable. A transceiver with a connector has a length, too: of the fiber it can
// drive.
func (m *Memory) lengthSFF8636() *float64 {
	const opticalPigtail, copperPigtail, noConnector = 0x0b, 0x21, 0x23
	switch m.octet(0, 130) {
	case opticalPigtail, copperPigtail, noConnector:
		if length := m.octet(0, 146); length != 0 && length != 255 { // 255: longer than 254 m
			return new(float64(length))
		}
	}
	return nil
}

func (m *Memory) lengthCMIS() *float64 {
	b := m.octet(0, 202)
	if b&0x3f == 0 || b == 0xff { // 0xff: longer than 6.3 km
		return nil
	}
	return new(float64(b&0x3f) * []float64{0.1, 1, 10, 100}[b>>6])
}

// decodeSFF8636 sets values and thresholds. Bytes 22 and 26 are the temperature and the supply voltage.
func (m *Memory) decodeSFF8636(d *Module) {
	const notReady = 1 << 0
	if m.octet(0, 2)&notReady != 0 {
		return
	}
	m.environment(d, 0, 22, 26)
	d.Thresholds = Thresholds{
		Temperature:   m.thresholds(3, 128, temperature),
		Voltage:       m.thresholds(3, 144, voltage),
		ReceivePower:  m.thresholds(3, 176, power),
		Bias:          m.thresholds(3, 184, bias),
		TransmitPower: m.thresholds(3, 192, power),
	}
	d.Lanes = make([]Lane, 4)
	for i := range d.Lanes {
		if m.octet(0, 113)&(1<<i) != 0 { // the module lacks this lane
			continue
		}
		at := uint8(2 * i)
		d.Lanes[i].ReceivePower = m.value(0, 34+at, power)
		d.Lanes[i].Bias = m.value(0, 42+at, bias)
		if m.octet(0, 220)&(1<<2) != 0 {
			d.Lanes[i].TransmitPower = m.value(0, 50+at, power)
		}
	}
}

// decodeCMIS sets the state, values and thresholds. Page 1 lists the values that the module supports.
func (m *Memory) decodeCMIS(d *Module) {
	d.State = State(m.octet(0, 3) >> 1 & 7)
	if d.State > StateFault {
		d.State = StateUnknown
	}
	m.environment(d, 0, 14, 16)
	supported := m.octet(1, 160)
	bias, biasKnown := bias, supported&(1<<0) != 0
	switch supported >> 3 & 3 {
	case 1:
		bias.perUnit /= 2
	case 2:
		bias.perUnit /= 4
	case 3:
		biasKnown = false // reserved
	}
	d.Thresholds = Thresholds{
		Temperature:   m.thresholds(2, 128, temperature),
		Voltage:       m.thresholds(2, 136, voltage),
		TransmitPower: m.thresholds(2, 176, power),
		ReceivePower:  m.thresholds(2, 192, power),
	}
	if biasKnown {
		d.Thresholds.Bias = m.thresholds(2, 184, bias)
	}
	if d.State != StateReady {
		return
	}
	d.Lanes = make([]Lane, MaxLanes)
	for i := range d.Lanes {
		if m.octet(0, 210)&(1<<i) != 0 { // the module lacks this lane
			continue
		}
		at := uint8(2 * i)
		if supported&(1<<1) != 0 {
			d.Lanes[i].TransmitPower = m.value(0x11, 154+at, power)
		}
		if biasKnown {
			d.Lanes[i].Bias = m.value(0x11, 170+at, bias)
		}
		if supported&(1<<2) != 0 {
			d.Lanes[i].ReceivePower = m.value(0x11, 186+at, power)
		}
	}
}

// environment sets temperature and supply voltage, by their page and offsets. Modules do not run at 0 V: a module that
// reports 0 V measures neither value.
func (m *Memory) environment(d *Module, page, temperatureAt, voltageAt uint8) {
	if v := m.value(page, voltageAt, voltage); v != nil && *v != 0 {
		d.Voltage = v
		d.Temperature = m.value(page, temperatureAt, temperature)
	}
}

// scale is how a 16-bit value is stored.
type scale struct {
	perUnit float64 // as a divisor, the result is the float nearest to the decimal value
	signed  bool
}

var (
	temperature = scale{256, true}  // 1/256 °C
	voltage     = scale{1e4, false} // 100 µV
	power       = scale{1e7, false} // 0.1 µW
	bias        = scale{5e5, false} // 2 µA
)

func (m *Memory) value(page, offset uint8, s scale) *float64 {
	raw, ok := m.word(page, offset)
	if !ok {
		return nil
	}
	if s.signed {
		return new(float64(int16(raw)) / s.perUnit)
	}
	return new(float64(raw) / s.perUnit)
}
