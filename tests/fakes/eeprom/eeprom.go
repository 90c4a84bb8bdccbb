// SPDX-License-Identifier: Apache-2.0

// Package eeprom has memories of transceivers and cables for tests: recorded, or constructed from the offsets of
// SFF-8472, SFF-8636 and CMIS. A memory is linear: lower memory, then the upper half of page P at 128 + P x 128.
package eeprom

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Size is the size of a memory, with all pages.
const Size = 128 * 257

// Memory is the memory of a module.
type Memory []byte

// Read reads a memory in the format of `ethtool -m DEVICE hex on`.
func Read(path string) (Memory, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := make(Memory, Size)
	for line := range strings.Lines(string(data)) {
		offset, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		at, err := strconv.ParseUint(offset, 0, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(values), ""))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		copy(m[at:], b)
	}
	return m, nil
}

// Set writes bytes at an offset of a page, as the specifications number them.
func (m Memory) Set(page, offset int, values ...byte) { copy(m[page*128+offset:], values) }

// Words writes 16-bit values.
func (m Memory) Words(page, offset int, values ...uint16) {
	for i, v := range values {
		binary.BigEndian.PutUint16(m[page*128+offset+2*i:], v)
	}
}

// Text writes a text, padded with spaces.
func (m Memory) Text(page, offset, length int, text string) {
	m.Set(page, offset, fmt.Appendf(nil, "%-*s", length, text)...)
}

// A2 is the page of the memory of an SFP module at address A2h.
const A2 = 0xa2

// Flags are the ranges of latched flags, which a read clears: page, first and last offset.
var Flags = map[string][][3]int{
	"SFF-8472": {{A2, 112, 113}, {A2, 116, 117}},
	"SFF-8636": {{0, 3, 21}},
	"CMIS":     {{0, 8, 13}, {0x11, 134, 153}},
}

// SetFlags sets all flags of a memory map.
func (m Memory) SetFlags(layout string) {
	for _, f := range Flags[layout] {
		for at := f[1]; at <= f[2]; at++ {
			m.Set(f[0], at, 0xff)
		}
	}
}

// FlagsSet reports whether all flags are still set.
func (m Memory) FlagsSet(layout string) bool {
	for _, f := range Flags[layout] {
		for at := f[1]; at <= f[2]; at++ {
			if m[f[0]*128+at] != 0xff {
				return false
			}
		}
	}
	return true
}

// DAC returns a passive copper cable of 2 m: QSFP28, flat memory, no values.
func DAC() Memory {
	m := make(Memory, Size)
	m.Set(0, 0, 0x11, 7, 1<<2)
	m.Set(0, 128, 0x11, 0, 0x23) // no separable connector
	m.Set(0, 146, 2, 0xa0)       // 2 m; copper, unequalized
	m.Text(0, 148, 16, "Constructed")
	m.Text(0, 168, 16, "DAC-2M")
	m.Text(0, 184, 2, "A1")
	m.Text(0, 196, 16, "C0001")
	m.SetFlags("SFF-8636")
	return m
}

// SFP28 returns an SFP28 transceiver with all values of SFF-8472.
func SFP28() Memory {
	m := make(Memory, Size)
	m.Set(0, 0, 3, 4, 7) // LC
	m.Text(0, 20, 16, "Constructed")
	m.Text(0, 40, 16, "SFP28-SR")
	m.Text(0, 56, 4, "C3")
	m.Text(0, 68, 16, "S8472-7")
	m.Set(0, 92, 1<<6|1<<5|1<<3)                    // diagnostics, calibrated, average power
	m.Words(A2, 0, 0x5000, 0xf600, 0x4b00, 0xfb00)  // 80, -10, 75, -5 °C
	m.Words(A2, 8, 36300, 29700, 34650, 31350)      // V
	m.Words(A2, 16, 6000, 500, 5000, 1000)          // 12, 1, 10, 2 mA
	m.Words(A2, 24, 10000, 1000, 8000, 2000)        // TX: 1, 0.1, 0.8, 0.2 mW
	m.Words(A2, 32, 15000, 200, 12000, 400)         // RX: 1.5, 0.02, 1.2, 0.04 mW
	m.Words(A2, 96, 0xfc80, 33012, 3501, 5623, 316) // -3.5 °C, 3.3012 V, 7.002 mA, 0.5623 mW, 0.0316 mW: below the warning
	m.SetFlags("SFF-8472")
	return m
}

// LR4 returns a QSFP28 transceiver with all values of SFF-8636.
func LR4() Memory {
	m := make(Memory, Size)
	m.Set(0, 0, 0x11, 8, 0)
	m.Words(0, 22, 0x2d80)                     // 45.5 °C
	m.Words(0, 26, 32950)                      // 3.295 V
	m.Words(0, 34, 8123, 7001, 9999, 150)      // 0.8123, 0.7001, 0.9999, 0.015 mW
	m.Words(0, 42, 17500, 18250, 19000, 20123) // 35, 36.5, 38, 40.246 mA
	m.Words(0, 50, 12000, 12500, 13000, 13579) // 1.2, 1.25, 1.3, 1.3579 mW
	m.Set(0, 128, 0x11, 0xcc, 0x07)            // LC
	m.Set(0, 147, 0x40)                        // 1310 nm DFB
	m.Text(0, 148, 16, "Constructed")
	m.Text(0, 168, 16, "QSFP28-LR4")
	m.Text(0, 184, 2, "B2")
	m.Text(0, 196, 16, "S8636-42")
	m.Set(0, 220, 0x0c)
	m.Words(3, 128, 0x4b00, 0xfb00, 0x4600, 0x0000) // 75, -5, 70, 0 °C
	m.Words(3, 144, 36300, 29700, 34650, 31350)
	m.Words(3, 176, 31623, 400, 22387, 794)
	m.Words(3, 184, 37500, 5000, 35000, 7500)
	m.Words(3, 192, 35481, 1479, 28184, 2344)
	m.SetFlags("SFF-8636")
	return m
}

// SR8 returns a QSFP-DD transceiver that is ready, with all values of CMIS.
func SR8() Memory {
	m := make(Memory, Size)
	m.Set(0, 0, 0x18, 0x40, 0, 3<<1)
	m.Words(0, 14, 0x3a40, 33100) // 58.25 °C, 3.31 V
	m.Set(0, 85, 1)               // optical, multi-mode
	m.Set(0, 128, 0x18)
	m.Text(0, 129, 16, "Constructed")
	m.Text(0, 148, 16, "QDD-SR8")
	m.Text(0, 164, 2, "01")
	m.Text(0, 166, 16, "CMIS-4711")
	m.Set(0, 200, 0xe0, 48)                         // class 8, 12 W
	m.Set(0, 202, 0, 0x28)                          // no cable; MPO-16
	m.Set(0, 212, 0)                                // 850 nm VCSEL
	m.Set(1, 151, 1<<4)                             // average RX power
	m.Set(1, 157, 0x0f, 0x06)                       // flags
	m.Set(1, 159, 0x03, 0x07)                       // temperature, voltage; bias, TX and RX power
	m.Words(2, 128, 0x5000, 0xf600, 0x4b00, 0x0000) // 80, -10, 75, 0 °C
	m.Words(2, 136, 34650, 31350, 34300, 31700)
	m.Words(2, 176, 50119, 1000, 39811, 1585) // TX power
	m.Words(2, 184, 7500, 1500, 6500, 2000)   // bias
	m.Words(2, 192, 50119, 912, 39811, 1445)  // RX power
	m.Words(0x11, 154, 10000, 10100, 10200, 10300, 10400, 10500, 10600, 10700)
	m.Words(0x11, 170, 3500, 3510, 3520, 3530, 3540, 3550, 3560, 3570)
	m.Words(0x11, 186, 9000, 9100, 9200, 9300, 9400, 9500, 9600, 1400) // the last below the warning
	m.SetFlags("CMIS")
	return m
}
