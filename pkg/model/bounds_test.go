// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// plausible returns a GPU whose values are all possible.
func plausible() GPU {
	f := func(v float64) []Figure { return []Figure{{"a", v}, {"b", v}} }
	c := func() []Counter { return []Counter{{Name: "a", Value: 7}} }
	return GPU{
		Vendor: NVIDIA, Utilization: Some(1), Engines: f(0.25),
		Memory: VideoMemory{Some(80 << 30), Some(60 << 30), Some(19 << 30), Some(1 << 30)},
		GTT:    VideoMemory{Total: Some(1 << 40), Used: Some(0)}, Temperatures: f(45), TemperatureLimits: f(95),
		TemperatureMargin: Some(-3), TemperatureMarginLimits: f(-5), Power: Some(900), PowerInstant: Some(1399.9), PowerLimit: Some(700),
		Energy: Some(5e9), FanSpeed: Some(1.1), PerformanceState: Some(15), Clocks: f(2e9), MaxClocks: f(1.98e9), Throttled: f(1e6),
		PCIe: GPUPCIe{
			Generation: Some(1), MaxGeneration: Some(6), Width: Some(1), MaxWidth: Some(16), Replays: Some(0), ReplayRollovers: Some(0),
			Recoveries: Some(12), NAKsSent: Some(1), NAKsReceived: Some(1), Receive: Some(6e10), Transmit: Some(0),
		},
		Links:      []GPULink{{Number: 3, Up: Some(1), Receive: Some(1e18), Transmit: Some(0), Errors: c()}},
		LinkErrors: c(), LinkPayload: Some(1.8e12), Rates: f(9e11), Errors: []GPUErrors{{"corrected", "volatile", "dram", 3}},
		RemappedRows: f(0), RetiredPages: f(63),
	}
}

func TestPossibleValuesStay(t *testing.T) {
	g := plausible()
	if g.Bound(); !reflect.DeepEqual(g, plausible()) {
		t.Errorf("%+v\nwant %+v", g, plausible())
	}
}

// TestImpossibleValues sets each value of a GPU to the numbers that drivers report instead of a value. Only this value
// must be left out and named, and the source's own lists must not change.
func TestImpossibleValues(t *testing.T) {
	tried := 0
	for _, garbage := range []float64{
		math.MaxUint32, math.MaxUint64, 18446744073709551000, 9223372036854775792, 0x7ffffff0, 0x7ffffff2, 140737488355328,
		math.NaN(), math.Inf(1), math.Inf(-1), -1e9,
	} {
		count := len(places(&[]GPU{plausible()}[0]))
		for i := range count {
			g := plausible()
			kept := g // as a source keeps it
			before := fmt.Sprintf("%+v", kept)
			set := places(&g)[i]
			set.set(garbage)
			lists := fmt.Sprintf("%+v", g.Links) + fmt.Sprintf("%+v", g.Engines)
			were := [2]any{g.Links, g.Engines}
			g.Bound()
			if len(g.Dropped) != 1 || g.Dropped[0].Value == "" || g.Dropped[0].Text == "" {
				t.Errorf("%s of %v: left out: %v", set.name, garbage, g.Dropped)
			}
			if got := fmt.Sprintf("%+v", were[0]) + fmt.Sprintf("%+v", were[1]); got != lists {
				t.Errorf("%s of %v: a list was changed in place: %s, was %s", set.name, garbage, got, lists)
			}
			again, named := g, g.Dropped
			g.Dropped = nil
			if after := fmt.Sprintf("%+v", g); strings.Contains(after, strconv.FormatFloat(garbage, 'g', -1, 64)) || after == before {
				t.Errorf("%s of %v is there: %s", set.name, garbage, after)
			}
			g.Dropped = named
			if again.Bound(); !reflect.DeepEqual(again, g) {
				t.Errorf("%s of %v: it was left out twice", set.name, garbage)
			}
			tried++
		}
	}
	if tried < 11*38 {
		t.Errorf("%d values were tried", tried)
	}
}

// TestBoundsThatCannotBe: a bound of 0 is left out and bounds nothing.
func TestBoundsThatCannotBe(t *testing.T) {
	for value, zero := range map[string]func(g *GPU){
		"clock_max":    func(g *GPU) { g.MaxClocks = []Figure{{"a", 0}, {"b", 1.98e9}} },
		"power_limit":  func(g *GPU) { g.PowerLimit = Some(0) },
		"memory_total": func(g *GPU) { g.Memory.Total = Some(0) },
	} {
		g, want := plausible(), plausible()
		zero(&g)
		g.Bound()
		if len(g.Dropped) != 1 || g.Dropped[0].Value != value {
			t.Errorf("%s: left out: %v", value, g.Dropped)
		}
		if !reflect.DeepEqual(g.Clocks, want.Clocks) || g.Power != want.Power || g.Memory.Used != want.Memory.Used {
			t.Errorf("%s of 0: %v, %v, %v", value, g.Clocks, g.Power, g.Memory)
		}
	}
}

// place is one number of a GPU.
type place struct {
	name string
	set  func(float64)
}

// places finds the numbers of a GPU by reflection, so that a value without bounds fails.
func places(g *GPU) (found []place) {
	var walk func(name string, v reflect.Value)
	walk = func(name string, v reflect.Value) {
		switch o := v.Addr().Interface().(type) {
		case *Optional:
			if o.Known && !strings.HasSuffix(name, ".Up") { // set from a bool
				found = append(found, place{name, func(f float64) { o.Value = f }})
			}
			return
		case *Figure:
			found = append(found, place{name, func(f float64) { o.Value = f }})
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			if v.Type().PkgPath() == "time" {
				return
			}
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					walk(name+"."+v.Type().Field(i).Name, v.Field(i))
				}
			}
		case reflect.Slice:
			for i := range min(v.Len(), 1) {
				walk(name, v.Index(i))
			}
		}
	}
	walk("GPU", reflect.ValueOf(g).Elem())
	return found
}

// TestBoundsOfOthers checks bounds by other values of the GPU, and zeros of missing sensors.
func TestBoundsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*GPU)
		drops  bool
	}{
		"power of twice the limit":            {func(g *GPU) { g.Power = Some(1400) }, false},
		"more power":                          {func(g *GPU) { g.Power = Some(1401) }, true},
		"power without a limit":               {func(g *GPU) { g.Power, g.PowerLimit = Some(2500), Optional{} }, false},
		"free memory of more than there is":   {func(g *GPU) { g.Memory.Free = Some(81 << 30) }, true},
		"a clock of more than the highest":    {func(g *GPU) { g.Clocks = []Figure{{"a", 2.2e9}} }, true},
		"the same of AMD":                     {func(g *GPU) { g.Vendor, g.Clocks = AMD, []Figure{{"a", 2.7e9}} }, false},
		"a clock without a highest one":       {func(g *GPU) { g.Clocks = []Figure{{"c", 14e9}} }, false},
		"0 °C":                                {func(g *GPU) { g.Temperatures = []Figure{{"a", 0}} }, true},
		"-0.001 °C":                           {func(g *GPU) { g.Temperatures = []Figure{{"a", -0.001}} }, true},
		"255 °C":                              {func(g *GPU) { g.Temperatures = []Figure{{"a", 255}} }, true},
		"a limit of 0 W":                      {func(g *GPU) { g.PowerLimit = Some(0) }, true},
		"a memory of 0 bytes":                 {func(g *GPU) { g.Memory = VideoMemory{Total: Some(0)} }, true},
		"an idle GPU with stopped clocks":     {func(g *GPU) { g.Clocks, g.Utilization = []Figure{{"a", 0}}, Some(0) }, false},
		"63 lanes of a device that went away": {func(g *GPU) { g.PCIe.Width = Some(63) }, true},
	} {
		g := plausible()
		c.change(&g)
		if g.Bound(); (len(g.Dropped) > 0) != c.drops {
			t.Errorf("%s: left out: %v, want %v", name, g.Dropped, c.drops)
		}
	}
}

// TestDroppedText has values with a unit, with a name, and with both.
func TestDroppedText(t *testing.T) {
	g := plausible()
	g.Power, g.Temperatures, g.Utilization = Some(1401), []Figure{{"memory", 255}}, Some(3)
	g.Bound()
	got := map[DroppedValue]bool{}
	for _, d := range g.Dropped {
		got[d] = true
	}
	for _, want := range []DroppedValue{{"power", "1401 W"}, {"temperature", "memory 255 °C"}, {"utilization", "3"}} {
		if !got[want] || len(got) != 3 {
			t.Errorf("left out: %v, want %v", g.Dropped, want)
		}
	}
}

// TestImpossibleProcesses checks that the GPU's memory bounds the memory of processes.
func TestImpossibleProcesses(t *testing.T) {
	processes := []GPUProcess{
		{GPU: "a", PID: 1, Memory: Some(80 << 30), Engines: []Figure{{"sm", 0.5}}},
		{GPU: "a", PID: 2, Memory: Some(81 << 30), Engines: []Figure{{"sm", 8e8}}},
		{GPU: "a", PID: 3, Engines: []Figure{}},
	}
	was := fmt.Sprint(processes)
	s := Snapshot{GPUs: []GPU{{UUID: "a", Memory: VideoMemory{Total: Some(80 << 30)}}}, GPUProcesses: processes}
	s.BoundGPUs()
	if p := s.GPUProcesses; p[0].Memory != Some(80<<30) || p[1].Memory.Known || p[1].Engines != nil || p[2].Engines == nil {
		t.Errorf("%+v", p)
	}
	if len(s.GPUs[0].Dropped) != 2 || fmt.Sprint(processes) != was {
		t.Errorf("left out: %v; processes %v, were %v", s.GPUs[0].Dropped, processes, was)
	}
}

func TestRound(t *testing.T) {
	for v, want := range map[float64]float64{
		7.000000000000001: 7, 6.9e-18: 0, -5e-17: 0, 0.1 + 0.2 - 0.3: 0, 1.0 / 3: 0.333333333, 85520809984: 85520809984,
		1410.0000000000002: 1410, 1234567.0000000002: 1234567,
	} {
		if got := Round(v); got != want || math.Signbit(got) {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
}

// TestBoundsTable compares the table of docs/gpus.md with the code.
func TestBoundsTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/gpus.md")
	if err != nil {
		t.Fatal(err)
	}
	number := func(v float64) string {
		if part, exponent := math.Frexp(v); part == 0.5 && exponent > 40 {
			return fmt.Sprintf("2^%d", exponent-1)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	var table strings.Builder
	for _, k := range kinds {
		least, unit, other := number(k.min), "", ""
		if k.above {
			least = "above " + least
		}
		if k.unit != "" {
			unit = " " + k.unit
		}
		if k.times != 0 {
			other = ", at most " + strings.TrimPrefix(number(k.times)+" × ", "1 × ") + k.of
		}
		fmt.Fprintf(&table, "- %s: %s to %s%s%s\n", k.name, least, number(k.max), unit, other)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/gpus.md lacks the list:\n%s", table.String())
	}
}
