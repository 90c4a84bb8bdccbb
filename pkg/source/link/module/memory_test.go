// SPDX-License-Identifier: Apache-2.0

package module

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/eeprom"
)

// TestPlans: planned reads cover no latched flag, do not cross a half of a page, and have at most 128 bytes.
func TestPlans(t *testing.T) {
	names := map[layout]string{sff8472: "SFF-8472", sff8636: "SFF-8636", cmis: "CMIS"}
	for layout, name := range names {
		p := plans[layout]
		reads := []Read{identification, p.serial}
		for _, more := range [][]Read{p.describe, p.paged, p.values} {
			reads = append(reads, more...)
		}
		if len(reads) < 5 || len(eeprom.Flags[name]) == 0 {
			t.Fatalf("%s: %d reads, flags %v", name, len(reads), eeprom.Flags[name])
		}
		for _, r := range reads {
			first, last := int(r.Offset), int(r.Offset)+int(r.Length)-1
			if r.Length == 0 || r.Length > 128 || last > 255 || first < 128 && (last > 127 || r.Page != 0 && r.Page != diagnostics) {
				t.Errorf("%s: the kernel refuses %v", name, r)
			}
			if _, ok := halves[[2]uint8{r.Page, r.Offset & 128}]; !ok {
				t.Errorf("%s: no memory for %v", name, r)
			}
			for _, f := range eeprom.Flags[name] {
				if int(r.Page) == f[0] && first <= f[2] && last >= f[1] {
					t.Errorf("%s: %v covers flags %v", name, r, f)
				}
			}
		}
	}
	// The first read is made before the map is known.
	for name, flags := range eeprom.Flags {
		for _, f := range flags {
			if f[0] == 0 && int(identification.Offset+identification.Length) > f[1] {
				t.Errorf("%s: the identification covers flags %v", name, f)
			}
		}
	}
}

// TestRefresh counts requests and bytes of a new module and of a known module.
func TestRefresh(t *testing.T) {
	for _, c := range []struct {
		name, layout       string
		memory             eeprom.Memory
		first, later       int // reads
		firstBytes, laters int
	}{
		{"LR4", "SFF-8636", eeprom.LR4(), 6, 3, 220, 55},
		{"SR8", "CMIS", eeprom.SR8(), 8, 5, 230, 72},
		{"SFP28", "SFF-8472", eeprom.SFP28(), 5, 3, 148, 43},
		{"DAC", "SFF-8636", eeprom.DAC(), 4, 2, 112, 19},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &slot{Memory: c.memory}
			var m Memory
			for i, want := range [][2]int{{c.first, c.firstBytes}, {c.later, c.laters}, {c.later, c.laters}} {
				s.reads = nil
				if err := m.Refresh(s.get); err != nil {
					t.Fatal(err)
				}
				bytes := 0
				for _, r := range s.reads {
					bytes += int(r.Length)
				}
				if len(s.reads) != want[0] || bytes != want[1] {
					t.Errorf("refresh %d: %d reads of %d bytes, want %v: %v", i, len(s.reads), bytes, want, s.reads)
				}
			}
			if !s.FlagsSet(c.layout) {
				t.Error("a flag was read and so cleared")
			}
		})
	}
}

// TestReplaced: another module has another description, which is read at once and has nothing of the former module.
func TestReplaced(t *testing.T) {
	s := &slot{Memory: eeprom.LR4()}
	var m Memory
	for _, next := range []eeprom.Memory{eeprom.LR4(), eeprom.SR8(), eeprom.SFP28(), recorded(t), eeprom.DAC(), eeprom.SR8()} {
		s.Memory = next
		if err := m.Refresh(s.get); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(decode(t, next), m.Decode()); diff != "" {
			t.Errorf("want -, got +:\n%s", diff)
		}
	}
}

// TestErrors: unreadable values are missing, even if they were read before, and are read later.
func TestErrors(t *testing.T) {
	failed := errors.New("input/output error")
	s := &slot{Memory: eeprom.SR8(), fails: map[uint8]error{2: failed}}
	var m Memory
	if err := m.Refresh(s.get); !errors.Is(err, failed) {
		t.Error(err)
	}
	if d := m.Decode(); d.Thresholds != (Thresholds{}) || d.Temperature == nil || d.Lanes[7].Bias == nil || d.Assess() != nil {
		t.Errorf("without page 2: %+v", d)
	}
	s.fails = map[uint8]error{0x11: failed}
	if err := m.Refresh(s.get); !errors.Is(err, failed) {
		t.Error(err)
	}
	if d := m.Decode(); d.Thresholds.Temperature.Alarm == nil || d.Temperature == nil || d.Lanes[0] != (Lane{}) {
		t.Errorf("without page 0x11: %+v", d)
	}
	s.fails = map[uint8]error{0: failed}
	if err := m.Refresh(s.get); !errors.Is(err, failed) {
		t.Error(err)
	}
	if diff := cmp.Diff(Module{Type: "0x00"}, m.Decode()); diff != "" {
		t.Errorf("without page 0: want -, got +:\n%s", diff)
	}
	if err := m.Refresh(func(r Read) ([]byte, error) { return make([]byte, int(r.Length)+1), nil }); err == nil {
		t.Error("an answer that is too long is no error")
	}
	s.fails = nil
	if err := m.Refresh(s.get); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(decode(t, eeprom.SR8()), m.Decode()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

// FuzzDecode decodes modules with any content.
func FuzzDecode(f *testing.F) {
	for _, memory := range []eeprom.Memory{recorded(f), eeprom.LR4(), eeprom.SR8(), eeprom.DAC()} {
		f.Add([]byte(memory[:256]), []byte(memory[256:640]), []byte(memory[18*128:19*128]))
	}
	sfp := eeprom.SFP28()
	f.Add([]byte(sfp[:256]), []byte{}, []byte(sfp[eeprom.A2*128:(eeprom.A2+1)*128]))
	f.Fuzz(func(t *testing.T, page0, pages, lanes []byte) {
		memory := make(eeprom.Memory, eeprom.Size)
		copy(memory[eeprom.A2*128:(eeprom.A2+1)*128], lanes)
		copy(memory[18*128:19*128], lanes)
		copy(memory[256:640], pages)
		copy(memory[:256], page0)
		s := &slot{Memory: memory}
		var m Memory
		for range 2 {
			if err := m.Refresh(s.get); err != nil {
				t.Fatal(err)
			}
		}
		d := m.Decode()
		if len(s.reads) > 13 || len(d.Lanes) > MaxLanes || len(d.Assess()) > 5 {
			t.Fatalf("%d reads, %d lanes", len(s.reads), len(d.Lanes))
		}
		for _, text := range []string{d.Type, d.Vendor, d.PartNumber, d.Revision, d.Serial, d.Technology, d.State.String()} {
			if len(text) > 40 {
				t.Errorf("%q is too long", text)
			}
			for _, r := range text {
				if r < ' ' || r > '~' {
					t.Errorf("%q is no ASCII text", text)
				}
			}
		}
		finite := func(from, to float64, values ...*float64) {
			for _, v := range values {
				if v != nil && !(*v >= from && *v <= to) {
					t.Errorf("%v is not from %v to %v", *v, from, to)
				}
			}
		}
		finite(-128, 128, d.Temperature)
		finite(0, 6.5536, d.Voltage)
		finite(0, 6200, d.Length)
		for _, l := range d.Lanes {
			finite(0, 6.5536e-3, l.ReceivePower, l.TransmitPower)
			finite(0, 4*131.072e-3, l.Bias)
		}
		for _, a := range d.Assess() {
			finite(-1, 0.5, a.Margin)
			if a.Severity < LowAlarm || a.Severity > HighAlarm || a.Margin != nil && math.IsNaN(*a.Margin) {
				t.Errorf("%+v", a)
			}
		}
	})
}
