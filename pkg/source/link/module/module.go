// SPDX-License-Identifier: Apache-2.0

// Package module decodes the EEPROM of the transceiver or cable in a port: what it is, its temperature, supply voltage
// and optical power, and the thresholds of its manufacturer. It knows three memory maps: SFF-8472 (SFP, SFP+, SFP28),
// SFF-8636 (QSFP+, QSFP28, QSFP56) and CMIS (QSFP-DD, OSFP and others). All offsets are decimal, as in these
// specifications.
//
// The package itself does not read. Memory.Refresh lists the reads and the caller performs them, each with one
// ETHTOOL_MSG_MODULE_EEPROM_GET. A read is at most 128 bytes long and lies in one half of a page, as the kernel
// requires.
//
// A module latches its own alarms and warnings in flags, and a read of a flag clears it, also for other programs. So no
// read covers a flag: alarms and warnings are computed from the values and the thresholds. A short excursion between
// two reads is not seen.
//
// The bytes come from the module's manufacturer and may be wrong. A value that the module does not report is nil, not
// zero.
package module

// MaxLanes is the maximum number of lanes: bank 0 of CMIS.
const MaxLanes = 8

// Module is a decoded EEPROM.
type Module struct {
	Type string // "QSFP28"; "0x42" if the identifier is unknown
	// Decoded is false if the memory map is unknown: only Type is set then.
	Decoded bool

	Vendor, PartNumber, Revision, Serial string
	Technology                           string   // of the transmitter, or the kind of copper cable; empty if unknown
	Copper                               bool     // a copper cable, which reports no values
	Length                               *float64 // meters, of cables that are attached to their plugs

	State State // of CMIS

	Temperature *float64 // °C
	Voltage     *float64 // V
	Lanes       []Lane   // by lane number; nil: none reported
	Thresholds  Thresholds
}

// Lane is an optical lane. A lane that the module lacks has no values.
type Lane struct {
	Bias          *float64 // laser bias current, A
	ReceivePower  *float64 // W
	TransmitPower *float64 // W
}

// State is the state of a CMIS module.
type State uint8

// Only a ready module reports values of lanes.
const (
	StateUnknown   State = 0 // SFF-8636, which has no states, and reserved values
	StateLowPower  State = 1
	StatePowerUp   State = 2
	StateReady     State = 3
	StatePowerDown State = 4
	StateFault     State = 5
)

// String returns the name of the state, which is empty for StateUnknown.
func (s State) String() string {
	switch s {
	case StateLowPower:
		return "low_power"
	case StatePowerUp:
		return "power_up"
	case StateReady:
		return "ready"
	case StatePowerDown:
		return "power_down"
	case StateFault:
		return "fault"
	}
	return ""
}

// identifiers are the names of module types by byte 0 (SFF-8024), with their memory map.
var identifiers = map[byte]struct {
	name string
	layout
}{
	0x03: {"SFP", sff8472},
	0x0c: {"QSFP", sff8636},
	0x0d: {"QSFP+", sff8636},
	0x11: {"QSFP28", sff8636},
	0x18: {"QSFP-DD", cmis},
	0x19: {"OSFP", cmis},
	0x1b: {"DSFP", cmis},
	0x1e: {"QSFP+ (CMIS)", cmis},
	0x1f: {"SFP-DD", cmis},
	0x20: {"SFP+ (CMIS)", cmis},
}

// technologies are the names of transmitter technologies: byte 147 of SFF-8636, upper four bits; byte 212 of CMIS, with
// the same first 16 values.
var technologies = []string{
	"850 nm VCSEL", "1310 nm VCSEL", "1550 nm VCSEL", "1310 nm FP", "1310 nm DFB", "1550 nm DFB", "1310 nm EML", "1550 nm EML",
	"", "1490 nm DFB",
	"copper, unequalized", "copper, passive equalized", "copper, near and far end limiting equalizers",
	"copper, far end limiting equalizers", "copper, near end limiting equalizers", "copper, linear equalizers",
	"C-band tunable laser", "L-band tunable laser",
}

func (m *Module) setTechnology(number byte) {
	if int(number) < len(technologies) {
		m.Technology = technologies[number]
	}
	m.Copper = number >= 10 && number < 16
}

// text returns the ASCII text of a field, without the spaces and zero bytes at its ends. Other bytes become question
// marks.
func text(field []byte) string {
	for len(field) > 0 && blank(field[0]) {
		field = field[1:]
	}
	for len(field) > 0 && blank(field[len(field)-1]) {
		field = field[:len(field)-1]
	}
	out := make([]byte, len(field))
	for i, b := range field {
		if b < ' ' || b > '~' {
			b = '?'
		}
		out[i] = b
	}
	return string(out)
}

// blank reports whether a byte at the end of a field is padding: a space, a zero byte, or a byte that was never
// written.
func blank(b byte) bool { return b == ' ' || b == 0 || b == 0xff }
