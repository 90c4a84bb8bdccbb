// SPDX-License-Identifier: Apache-2.0

package module

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Read is a range of the module's memory. Bank is always 0. Offset is as in the specification: below 128 in the lower
// memory, which is in page 0, and from 128 on in the upper half of a page.
type Read struct {
	Page, Offset, Length uint8
}

// diagnostics is the Page of reads from the second memory of an SFP module, at address A2h, lower half. Other maps do
// not read a page with this number.
const diagnostics = 0xa2

// Address returns the I2C address and the page of a read, as ETHTOOL_MSG_MODULE_EEPROM_GET takes them.
func (r Read) Address() (i2c, page uint8) {
	if r.Page == diagnostics {
		return 0x51, 0
	}
	return 0x50, r.Page
}

// identification is the first read: the type of the module, which decides where flags are, its revision, and a byte
// with status bits.
var identification = Read{0, 0, 3}

type layout int

const (
	unknownLayout layout = iota
	sff8472
	sff8636
	cmis
)

// plan lists the reads of a layout. They cover no latched flag.
type plan struct {
	serial   Read // identifies the module
	describe []Read
	// paged applies only to modules with pages beyond page 0: thresholds, and what the module supports.
	paged  []Read
	values []Read // of what changes
}

var plans = map[layout]plan{
	unknownLayout: {},
	sff8472: {
		serial:   Read{0, 68, 25}, // and whether the module has values, which decides what to read
		describe: []Read{{0, 3, 65}},
		paged:    []Read{{diagnostics, 0, 40}},
		values:   []Read{{diagnostics, 96, 15}},
	},
	sff8636: {
		serial:   Read{0, 196, 16},
		describe: []Read{{0, 113, 1}, {0, 129, 92}},
		paged:    []Read{{3, 128, 72}},
		values:   []Read{{0, 22, 36}},
	},
	cmis: {
		serial:   Read{0, 166, 16},
		describe: []Read{{0, 128, 85}},
		paged:    []Read{{1, 160, 1}, {2, 128, 72}},
		values:   []Read{{0, 3, 1}, {0, 14, 4}, {0x11, 154, 48}},
	},
}

var halves = map[[2]uint8]int{{0, 0}: 0, {0, 128}: 1, {1, 128}: 2, {2, 128}: 3, {3, 128}: 4, {0x11, 128}: 5, {diagnostics, 0}: 6}

// Memory is the read part of a module's memory. It belongs to one port.
type Memory struct {
	bytes [7][128]byte
	known [7][128]bool
}

// Refresh reads the values, and once per module the description and the thresholds. get performs one read. Without the
// type and the serial number of the module, Refresh ends with the error of get. Other errors are returned after the
// last read: Decode lacks the unread ranges, and the next Refresh reads them again.
func (m *Memory) Refresh(get func(Read) ([]byte, error)) error {
	// The type comes first, because the offsets of flags depend on it. The serial number comes next: it shows whether
	// the description belongs to another module.
	var now Memory
	err := now.read(get, identification)
	p := plans[now.layout()]
	if err == nil && p.serial.Length > 0 {
		err = now.read(get, p.serial)
	}
	if err != nil {
		*m = Memory{} // the module may be gone
		return err
	}
	if p.serial.Length == 0 || !bytes.Equal(now.identity(), m.identity()) {
		*m = now
	} else {
		copy(m.bytes[0][:identification.Length], now.bytes[0][:]) // the status bits may have changed
	}
	if p.serial.Length == 0 {
		return nil
	}
	for _, r := range p.values {
		m.forget(r)
	}
	var errs []error
	once := p.describe
	if !m.flat() {
		once = slices.Concat(once, p.paged)
	}
	for _, r := range once {
		if !m.has(r) {
			errs = append(errs, m.read(get, r))
		}
	}
	if !m.measures() {
		return errors.Join(errs...)
	}
	for _, r := range p.values {
		errs = append(errs, m.read(get, r))
	}
	return errors.Join(errs...)
}

func (m *Memory) read(get func(Read) ([]byte, error), r Read) error {
	data, err := get(r)
	if err != nil {
		return fmt.Errorf("page %d, offset %d: %w", r.Page, r.Offset, err)
	}
	if len(data) != int(r.Length) {
		return fmt.Errorf("page %d, offset %d: %d bytes instead of %d", r.Page, r.Offset, len(data), r.Length)
	}
	half, at := place(r)
	copy(m.bytes[half][at:], data)
	for i := range data {
		m.known[half][at+i] = true
	}
	return nil
}

// place returns the half page of a read, and the offset in it.
func place(r Read) (half, at int) {
	return halves[[2]uint8{r.Page, r.Offset & 128}], int(r.Offset & 127)
}

func (m *Memory) forget(r Read) {
	half, at := place(r)
	clear(m.known[half][at : at+int(r.Length)])
}

func (m *Memory) has(r Read) bool {
	half, at := place(r)
	for _, known := range m.known[half][at : at+int(r.Length)] {
		if !known {
			return false
		}
	}
	return true
}

// field returns a range, or nil if it was not read.
func (m *Memory) field(page, offset, length uint8) []byte {
	r := Read{page, offset, length}
	if !m.has(r) {
		return nil
	}
	half, at := place(r)
	return m.bytes[half][at : at+int(length)]
}

// octet returns a byte, or 0 if it was not read.
func (m *Memory) octet(page, offset uint8) byte {
	if b := m.field(page, offset, 1); b != nil {
		return b[0]
	}
	return 0
}

// word returns a 16-bit value, and false if it was not read.
func (m *Memory) word(page, offset uint8) (uint16, bool) {
	b := m.field(page, offset, 2)
	if b == nil {
		return 0, false
	}
	return binary.BigEndian.Uint16(b), true
}

// Known reports whether the type of the module was read.
func (m *Memory) Known() bool { return m.has(identification) }

func (m *Memory) layout() layout { return identifiers[m.octet(0, 0)].layout }

// identity returns what differs between two modules: the type and the serial number, or nil before they were read.
func (m *Memory) identity() []byte {
	r := plans[m.layout()].serial
	serial := m.field(r.Page, r.Offset, r.Length)
	if serial == nil || r.Length == 0 {
		return nil
	}
	return append([]byte{m.octet(0, 0)}, serial...)
}

// flat reports whether the module has page 0 only, and so no thresholds, or is an SFP module without readable values.
func (m *Memory) flat() bool {
	switch m.layout() {
	case sff8472:
		return !m.diagnoses()
	case cmis:
		return m.octet(0, 2)&(1<<7) != 0
	}
	return m.octet(0, 2)&(1<<2) != 0
}

// measures reports whether the module reports values: it has pages and is not a copper cable.
func (m *Memory) measures() bool {
	var d Module
	m.describe(&d)
	return !m.flat() && !d.Copper
}
