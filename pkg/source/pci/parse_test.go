// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestSpeed(t *testing.T) {
	for text, want := range map[string]float64{
		"2.5 GT/s PCIe\n": 2.5e9, "5.0 GT/s PCIe\n": 5e9, "8.0 GT/s PCIe\n": 8e9, "16.0 GT/s PCIe\n": 16e9, "32.0 GT/s PCIe\n": 32e9,
		"64.0 GT/s PCIe\n": 64e9, "8 GT/s\n": 8e9, "Unknown\n": 0, "33 MHz PCI\n": 0, "": 0, "-1 GT/s": 0, "NaN GT/s": 0, "1e300 GT/s": 0,
	} {
		if got := parseSpeed([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestWidth(t *testing.T) {
	for text, want := range map[string]int{"16\n": 16, "1\n": 1, "0\n": 0, "63\n": 0, "255\n": 0, "": 0, "-4\n": 0, "x\n": 0} {
		if got := parseWidth([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// port returns the configuration space of a port whose list of capabilities has power management at 0x40 and PCI Express at 0x50.
func port(value, scale uint32, slot bool) []byte {
	b := make([]byte, configSize)
	binary.LittleEndian.PutUint16(b[0x06:], 1<<4) // Status: there is a list of capabilities
	b[listRegister] = 0x40
	b[0x40], b[0x41] = 0x01, 0x50
	b[0x50] = expressID
	if slot {
		binary.LittleEndian.PutUint16(b[0x52:], 0x0042|1<<8)
	}
	// The bits around the two fields are set: they must not count.
	binary.LittleEndian.PutUint32(b[0x50+slotRegister:], 0x7f|value<<7|scale<<15|0x7fff<<17)
	return b
}

func TestSlotPower(t *testing.T) {
	for name, c := range map[string]struct {
		config []byte
		want   model.Optional
	}{
		"75 W":                        {port(75, 0, true), model.Some(75)},
		"tenths":                      {port(250, 1, true), model.Some(25)},
		"hundredths":                  {port(100, 2, true), model.Some(1)},
		"thousandths":                 {port(200, 3, true), model.Some(0.2)},
		"a code above 239 W":          {port(0xf1, 0, true), model.Some(275)},
		"a code of later releases":    {port(0xfe, 0, true), model.Optional{}},
		"not set":                     {port(0, 0, true), model.Optional{}},
		"no slot":                     {port(75, 0, false), model.Optional{}},
		"64 bytes, as without rights": {port(75, 0, true)[:64], model.Optional{}},
		"a part of the capability":    {port(75, 0, true)[:0x60], model.Optional{}},
		"empty":                       {nil, model.Optional{}},
	} {
		if got := parseSlotPower(bytesOf(c.config)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	loop := port(75, 0, true)
	loop[0x41] = 0x40
	if got := parseSlotPower(bytesOf(loop)); got.Known {
		t.Errorf("a list that loops: %v", got)
	}
}

func TestPlace(t *testing.T) {
	for path, want := range map[string][]string{
		"../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0": {"pci0000:15", "0000:15:01.0", "0000:16:00.0"},
		"../../devices/platform/X/pci0002:00/0002:00:00.0":      {"pci0002:00", "0002:00:00.0"},
		"../../../devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0": {
			"pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:06.0",
		},
		"../../../devices/virtual/net": nil, "": nil,
		"pci0000:15/" + strings.Repeat("0000:15:01.0/", maxDepth): nil,
	} {
		if got := parsePlace(path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0")
	f.Add("pci10000:00")
	f.Fuzz(func(t *testing.T, path string) {
		place := parsePlace(path)
		if len(place) > maxDepth || place != nil && !hostBridge.MatchString(place[0]) {
			t.Errorf("%q: %q", path, place)
		}
		upstream(place)
	})
}

func FuzzAER(f *testing.F) {
	f.Add([]byte(correctable + "TOTAL_ERR_COR 10\n"))
	many := strings.Repeat("x", maxTypeName+1) + " 1\n"
	for i := range maxTypes + 1 {
		many += fmt.Sprintf("dev_cor_errs_bit[%d] 1\n", i)
	}
	f.Add([]byte(many))
	f.Add([]byte("dev_cor_errs_bit[3] 2\nTOTAL_ERR_COR 18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		errs, _ := parseAER(b, "correctable")
		if len(errs.Types) > maxTypes {
			t.Errorf("%d types", len(errs.Types))
		}
		for _, c := range errs.Types {
			if !validType(c.Name) || len(c.Name) > maxTypeName || c.Value == 0 {
				t.Errorf("type %q with %d", c.Name, c.Value)
			}
		}
		parseSpeed(b)
		parseWidth(b)
	})
}

func FuzzSlotPower(f *testing.F) {
	f.Add(port(75, 0, true))
	f.Add(port(0xf1, 0, true)[:0x60])
	f.Fuzz(func(t *testing.T, b []byte) {
		if p := parseSlotPower(bytesOf(b)); p.Known && !(p.Value > 0 && p.Value <= 300) {
			t.Errorf("%v W", p.Value)
		}
	})
}
