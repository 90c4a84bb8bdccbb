// SPDX-License-Identifier: Apache-2.0

package module

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/accelscope/accelscope/tests/fakes/eeprom"
)

// slot is a port with a module. Like a kernel and a module, it refuses reads across halves of pages, and clears the
// flags that are read.
type slot struct {
	eeprom.Memory
	reads []Read
	fails map[uint8]error // by page
}

func (s *slot) get(r Read) ([]byte, error) {
	s.reads = append(s.reads, r)
	first, last := int(r.Offset), int(r.Offset)+int(r.Length)-1
	switch {
	case r.Length == 0, last > 255, first < 128 && last >= 128, first < 128 && r.Page != 0 && r.Page != diagnostics:
		return nil, errors.New("the kernel refuses this read")
	case s.fails[r.Page] != nil:
		return nil, s.fails[r.Page]
	}
	layout := "SFF-8636"
	if s.Memory[0] == 3 {
		layout = "SFF-8472"
	}
	if s.Memory[0] >= 0x18 {
		layout = "CMIS"
	}
	at := int(r.Page) * 128
	data := append([]byte{}, s.Memory[at+first:at+last+1]...)
	for _, f := range eeprom.Flags[layout] {
		for i := max(f[1], first); f[0] == int(r.Page) && i <= min(f[2], last); i++ {
			s.Set(f[0], i, 0)
		}
	}
	return data, nil
}

func decode(t *testing.T, memory eeprom.Memory) Module {
	t.Helper()
	var m Memory
	if err := m.Refresh((&slot{Memory: memory}).get); err != nil {
		t.Fatal(err)
	}
	return m.Decode()
}

func recorded(t testing.TB) eeprom.Memory {
	t.Helper()
	memory, err := eeprom.Read("testdata/sr4.hex")
	if err != nil {
		t.Fatal(err)
	}
	return memory
}

// near compares numbers with the precision of ethtool's output.
var near = cmpopts.EquateApprox(1e-6, 1e-12)

func lane(bias, receive, transmit float64) Lane {
	return Lane{new(bias), new(receive), new(transmit)}
}

func threshold(highAlarm, lowAlarm, highWarning, lowWarning float64) Threshold {
	return Threshold{&Range{lowAlarm, highAlarm}, &Range{lowWarning, highWarning}}
}

// TestRecorded compares with ethtool's output for this module.
func TestRecorded(t *testing.T) {
	want := Module{
		Type: "QSFP28", Decoded: true, Vendor: "Mellanox", PartNumber: "MMA1B00-SS1", Revision: "A2", Serial: "MT1834FT03846",
		Technology: "850 nm VCSEL", Temperature: new(39 + 121.0/256), Voltage: new(3.3477),
		Lanes: []Lane{lane(0, 0, 0), lane(0, 0, 0), lane(0, 0, 0), lane(0, 0, 0)},
		Thresholds: Thresholds{
			Temperature:   threshold(80, -10, 70, 0),
			Voltage:       threshold(3.5, 3.1, 3.465, 3.135),
			Bias:          threshold(8.5e-3, 5.492e-3, 8e-3, 6e-3),
			ReceivePower:  threshold(3.4673e-3, 0.0467e-3, 1.7378e-3, 0.0933e-3),
			TransmitPower: threshold(3.4673e-3, 0.0724e-3, 1.7378e-3, 0.1445e-3),
		},
	}
	got := decode(t, recorded(t))
	if diff := cmp.Diff(want, got, near, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	severities := map[string]Severity{}
	for _, a := range got.Assess() {
		severities[a.Value] = a.Severity
	}
	// The lasers are off.
	off := map[string]Severity{
		"temperature": Normal, "voltage": Normal, "bias": LowAlarm, "receive_power": LowAlarm, "transmit_power": LowAlarm,
	}
	if diff := cmp.Diff(off, severities); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestCMIS(t *testing.T) {
	want := Module{
		Type: "QSFP-DD", Decoded: true, Vendor: "Constructed", PartNumber: "QDD-SR8", Revision: "01", Serial: "CMIS-4711",
		Technology: "850 nm VCSEL", State: StateReady, Temperature: new(58.25), Voltage: new(3.31),
		Lanes: []Lane{
			lane(7.00e-3, 0.90e-3, 1.00e-3), lane(7.02e-3, 0.91e-3, 1.01e-3), lane(7.04e-3, 0.92e-3, 1.02e-3),
			lane(7.06e-3, 0.93e-3, 1.03e-3), lane(7.08e-3, 0.94e-3, 1.04e-3), lane(7.10e-3, 0.95e-3, 1.05e-3),
			lane(7.12e-3, 0.96e-3, 1.06e-3), lane(7.14e-3, 0.14e-3, 1.07e-3),
		},
		Thresholds: Thresholds{
			Temperature:   threshold(80, -10, 75, 0),
			Voltage:       threshold(3.465, 3.135, 3.43, 3.17),
			Bias:          threshold(15e-3, 3e-3, 13e-3, 4e-3),
			ReceivePower:  threshold(5.0119e-3, 0.0912e-3, 3.9811e-3, 0.1445e-3),
			TransmitPower: threshold(5.0119e-3, 0.1e-3, 3.9811e-3, 0.1585e-3),
		},
	}
	if diff := cmp.Diff(want, decode(t, eeprom.SR8()), near); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}

	t.Run("multiplier", func(t *testing.T) {
		memory := eeprom.SR8()
		memory.Set(1, 160, 0x07|2<<3) // bias in units of 8 µA
		m := decode(t, memory)
		if diff := cmp.Diff([]float64{28e-3, 60e-3}, []float64{*m.Lanes[0].Bias, m.Thresholds.Bias.Alarm.High}, near); diff != "" {
			t.Errorf("want -, got +:\n%s", diff)
		}
	})
	t.Run("not ready", func(t *testing.T) {
		memory := eeprom.SR8()
		memory.Set(0, 3, 1<<1)
		if m := decode(t, memory); m.State.String() != "low_power" || m.Lanes != nil || m.Temperature == nil {
			t.Errorf("%+v", m)
		}
	})
	t.Run("four lanes without bias", func(t *testing.T) {
		memory := eeprom.SR8()
		memory.Set(0, 210, 0xf0)
		memory.Set(1, 160, 0x06)
		m := decode(t, memory)
		if l := m.Lanes[3]; l.Bias != nil || l.ReceivePower == nil || m.Lanes[4] != (Lane{}) || m.Thresholds.Bias != (Threshold{}) {
			t.Errorf("%+v", m)
		}
	})
	t.Run("cable", func(t *testing.T) {
		for b, want := range map[byte]float64{0x05: 0.5, 0x43: 3, 0x83: 30, 0xc1: 100} {
			memory := eeprom.SR8()
			memory.Set(0, 202, b)
			if m := decode(t, memory); m.Length == nil || *m.Length != want {
				t.Errorf("byte %#x: length %v, want %v", b, m.Length, want)
			}
		}
	})
}

// TestSFF8636 decodes four different lanes. One lane is below the alarm threshold.
func TestSFF8636(t *testing.T) {
	m := decode(t, eeprom.LR4())
	want := []Lane{
		lane(35e-3, 0.8123e-3, 1.2e-3), lane(36.5e-3, 0.7001e-3, 1.25e-3), lane(38e-3, 0.9999e-3, 1.3e-3), lane(40.246e-3, 0.015e-3, 1.3579e-3),
	}
	if diff := cmp.Diff(want, m.Lanes, near); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	for _, a := range m.Assess() {
		want := Normal
		if a.Value == "receive_power" {
			want = LowAlarm
		}
		if a.Severity != want || (*a.Margin > 0) != (want == Normal) {
			t.Errorf("%+v, margin %v", a, *a.Margin)
		}
	}
	memory := eeprom.LR4()
	memory.Set(0, 2, 1<<0) // data not ready
	if m := decode(t, memory); m.Temperature != nil || m.Lanes != nil || m.Serial == "" {
		t.Errorf("%+v", m)
	}
	memory = eeprom.LR4()
	memory.Set(0, 113, 0x0c) // two lanes
	memory.Set(0, 220, 0x08) // no TX power
	if m := decode(t, memory); m.Lanes[2] != (Lane{}) || m.Lanes[1].ReceivePower == nil || m.Lanes[1].TransmitPower != nil {
		t.Errorf("%+v", m.Lanes)
	}
}

// TestCopper: a passive cable has no values (not zeros), and costs no reads for them.
func TestCopper(t *testing.T) {
	s := &slot{Memory: eeprom.DAC()}
	var m Memory
	for range 2 {
		s.reads = nil
		if err := m.Refresh(s.get); err != nil {
			t.Fatal(err)
		}
	}
	got := m.Decode()
	if got.Temperature != nil || got.Voltage != nil || got.Lanes != nil || got.Assess() != nil || !got.Copper || *got.Length != 2 {
		t.Errorf("%+v", got)
	}
	if len(s.reads) != 2 { // type and serial number
		t.Errorf("reads %v", s.reads)
	}
}

func TestUnknown(t *testing.T) {
	for id, name := range map[byte]string{0x42: "0x42", 0: "0x00"} {
		s := &slot{Memory: make(eeprom.Memory, eeprom.Size)}
		s.Set(0, 0, id)
		var m Memory
		if err := m.Refresh(s.get); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Module{Type: name}, m.Decode()); diff != "" || len(s.reads) != 1 {
			t.Errorf("reads %v, want -, got +:\n%s", s.reads, diff)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"Mellanox        ": "Mellanox", "": "", "\x00\x00\x00\x00": "", "\xff\xff": "", "A\nB\x1b[2J\xe9\"": "A?B?[2J?\"", " \x00x\x00 ": "x",
	} {
		if got := text([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestSeverity(t *testing.T) {
	l := threshold(80, -10, 70, 0)
	for v, want := range map[float64]Severity{
		81: HighAlarm, 80: HighWarning, 71: HighWarning, 70: Normal, 35: Normal, 0: Normal, -1: LowWarning, -10: LowWarning, -11: LowAlarm,
	} {
		if got, ok := l.Severity(v); got != want || !ok {
			t.Errorf("%v: %v, %v, want %v", v, got, ok, want)
		}
	}
	if _, ok := (Threshold{}).Severity(1); ok {
		t.Error("no thresholds, but a severity")
	}
	for v, want := range map[float64]float64{35: 0.5, 80: 0, -10: 0, 62: 0.2, 89: -0.1, 1000: -1} {
		if got, _ := l.Margin(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: margin %v, want %v", v, got, want)
		}
	}
	// 20 dB between the thresholds.
	l = threshold(1e-3, 1e-5, 0, 0)
	for v, want := range map[float64]float64{1e-4: 0.5, 1e-3: 0, 1e-5: 0, 1e-6: -0.5, 0: -1} {
		if got, _ := l.PowerMargin(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: margin %v, want %v", v, got, want)
		}
	}
	unwritten := eeprom.LR4()
	unwritten.Words(3, 128, 0, 0, 0, 0)
	unwritten.Words(3, 144, 1, 2, 3, 4) // low above high
	got := decode(t, unwritten).Thresholds
	if got.Temperature != (Threshold{}) || got.Voltage != (Threshold{}) || got.Bias.Alarm == nil {
		t.Errorf("%+v", got)
	}
}
