// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"slices"
	"strconv"
)

// kind is a kind of GPU value and its bounds. Drivers report success with impossible numbers: all ones, text instead of
// a number, another program's blank, 0 of a function without sensors. Such values are left out and counted.
type kind struct {
	name, unit string
	min, max   float64
	above      bool    // min itself is impossible, too
	times      float64 // if the other value is known, at most this many times the other value
	of         string  // the other value
}

// The kinds. A test compares them with the table in docs/gpus.md.
var (
	kindRatio       = kind{name: "ratio", max: 1}     // use of the GPU and of engines, also by processes
	kindFan         = kind{name: "fan speed", max: 2} // NVML: it may exceed 100 %
	kindTemperature = kind{name: "temperature", unit: "°C", max: 150, above: true}
	kindMargin      = kind{name: "temperature margin", unit: "°C", min: -150, max: 150}
	kindPower       = kind{name: "power", unit: "W", max: 10e3, times: 2, of: "the power limit"}
	kindPowerLimit  = kind{name: "power limit", unit: "W", max: 10e3, above: true}
	kindEnergy      = kind{name: "energy", unit: "J", max: 1e13}
	kindClock       = kind{name: "clock", unit: "Hz", max: 30e9, times: 1.1, of: "the highest clock (not of AMD)"}
	kindHighest     = kind{name: "highest clock", unit: "Hz", max: 30e9, above: true} // 0 would leave out every clock
	kindBytes       = kind{
		name: "memory: used, free, reserved, of a process", unit: "B", max: 1 << 48, times: 1, of: "the size of the memory",
	}
	kindSize       = kind{name: "size of the memory", unit: "B", max: 1 << 48, above: true}
	kindState      = kind{name: "performance state", max: 15}
	kindSeconds    = kind{name: "time slowed down", unit: "s", max: 3.2e9}
	kindGeneration = kind{name: "PCIe generation", min: 1, max: 8}
	kindLanes      = kind{name: "PCIe lanes", min: 1, max: 32}
	kindPCIeRate   = kind{name: "PCIe rate", unit: "B/s", max: 1e12}
	kindLinkRate   = kind{name: "rate of NVLink, C2C", unit: "B/s", max: 1e13}
	kindCount      = kind{name: "number of errors, rows, pages", max: 1e15}
	kindTotal      = kind{name: "bytes over a link since the start", unit: "B", max: math.MaxUint64}

	kinds = []*kind{
		&kindRatio, &kindFan, &kindTemperature, &kindMargin, &kindPower, &kindPowerLimit, &kindEnergy, &kindClock, &kindHighest,
		&kindBytes, &kindSize, &kindState, &kindSeconds, &kindGeneration, &kindLanes, &kindPCIeRate, &kindLinkRate, &kindCount, &kindTotal,
	}
)

// possible reports whether v can be a value of the kind. other is the value that bounds v, or unknown.
func (k *kind) possible(v float64, other Optional) bool {
	return v >= k.min && v <= k.max && (v > k.min || !k.above) && !IsBlank(v) &&
		(!other.Known || k.times == 0 || v <= k.times*other.Value)
}

// blanks are DCGM's numbers for "no value" in 32 bits, floating point and 64 bits. Each range begins with the blank;
// other codes follow.
var blanks = []struct{ first, last float64 }{
	{0x7ffffff0, math.MaxInt32},
	{1 << 47, 1<<47 + 3},
	{0x7ffffffffffffff0, math.MaxInt64},
}

// IsBlank reports whether a number means "no value": all ones of 32 or 64 bits, NaN, or a blank of DCGM.
func IsBlank(v float64) bool {
	if v == math.MaxUint32 || v >= math.MaxUint64 || v != v {
		return true
	}
	for _, b := range blanks {
		if v >= b.first && v <= b.last {
			return true
		}
	}
	return false
}

// DroppedValue is an impossible value that was left out.
type DroppedValue struct {
	Value string // power, clock, …: one of few names
	Text  string // the reported value with its unit
}

// bounding leaves out the impossible values of a GPU.
type bounding struct{ gpu *GPU }

func (b bounding) drop(value, name string, k *kind, v float64) {
	text := strconv.FormatFloat(v, 'g', 6, 64)
	if k.unit != "" {
		text += " " + k.unit
	}
	if name != "" {
		text = name + " " + text
	}
	b.gpu.Dropped = append(slices.Clip(b.gpu.Dropped), DroppedValue{value, text})
}

func (b bounding) value(value string, k *kind, o *Optional, other Optional) {
	b.named(value, "", k, o, other)
}

func (b bounding) named(value, name string, k *kind, o *Optional, other Optional) {
	switch {
	case !o.Known:
	case !k.possible(o.Value, other):
		b.drop(value, name, k, o.Value)
		*o = Optional{}
	case k == &kindRatio:
		o.Value = Round(o.Value)
	}
}

// figures leaves out impossible figures. The figures in others bound them, by name. If all figures are left out, the
// list is nil: an empty list would mean that the GPU has no figures.
func (b bounding) figures(value string, k *kind, of *[]Figure, others []Figure) {
	var kept []Figure
	for i, f := range *of {
		o := Some(f.Value)
		var other Optional
		if i := slices.IndexFunc(others, func(o Figure) bool { return o.Name == f.Name }); i >= 0 {
			other = Some(others[i].Value)
		}
		b.named(value, f.Name, k, &o, other)
		if kept == nil && o == Some(f.Value) {
			continue // the list as it is
		}
		if kept == nil {
			kept = append(make([]Figure, 0, len(*of)), (*of)[:i]...)
		}
		if o.Known {
			kept = append(kept, Figure{Name: f.Name, Value: o.Value})
		}
	}
	if kept != nil {
		if *of = kept; len(kept) == 0 {
			*of = nil
		}
	}
}

// Round removes what binary arithmetic adds to sums, differences and conversions of decimal numbers: 7, not
// 7.000000000000001. It rounds to a billionth, and values from a million on to a thousandth, which is finer than any
// driver measures.
func Round(v float64) float64 {
	per := 1e9
	if math.Abs(v) >= 1e6 {
		per = 1e3
	}
	if v == math.Trunc(v) {
		return v
	}
	if v = math.Round(v*per) / per; v == 0 {
		return 0 // not -0
	}
	return v
}

// Bound moves the impossible values to Dropped. It changes no list in place.
func (g *GPU) Bound() {
	b, none := bounding{g}, Optional{}
	b.value("utilization", &kindRatio, &g.Utilization, none)
	b.figures("engine", &kindRatio, &g.Engines, nil)
	b.value("fan_speed", &kindFan, &g.FanSpeed, none)
	b.memory("memory", &g.Memory)
	b.memory("gtt", &g.GTT)
	b.figures("temperature", &kindTemperature, &g.Temperatures, nil)
	b.figures("temperature_limit", &kindTemperature, &g.TemperatureLimits, nil)
	b.value("temperature_margin", &kindMargin, &g.TemperatureMargin, none)
	b.figures("temperature_margin_limit", &kindMargin, &g.TemperatureMarginLimits, nil)
	b.value("power_limit", &kindPowerLimit, &g.PowerLimit, none)
	b.value("power", &kindPower, &g.Power, g.PowerLimit)
	b.value("power_instant", &kindPower, &g.PowerInstant, g.PowerLimit)
	b.value("energy", &kindEnergy, &g.Energy, none)
	b.figures("clock_max", &kindHighest, &g.MaxClocks, nil)
	highest := g.MaxClocks
	if g.Vendor.Row().GameClocks {
		highest = nil
	}
	b.figures("clock", &kindClock, &g.Clocks, highest)
	b.value("performance_state", &kindState, &g.PerformanceState, none)
	b.figures("throttled_time", &kindSeconds, &g.Throttled, nil)
	b.figures("remapped_rows", &kindCount, &g.RemappedRows, nil)
	b.figures("retired_pages", &kindCount, &g.RetiredPages, nil)
	b.pcie(&g.PCIe)
	b.value("link_rate", &kindLinkRate, &g.LinkPayload, none)
	b.figures("link_rate", &kindLinkRate, &g.Rates, nil)
	b.counters(g)
}

// memory bounds the parts of a memory by its size.
func (b bounding) memory(name string, m *VideoMemory) {
	b.value(name+"_total", &kindSize, &m.Total, Optional{})
	b.value(name+"_used", &kindBytes, &m.Used, m.Total)
	b.value(name+"_free", &kindBytes, &m.Free, m.Total)
	b.value(name+"_reserved", &kindBytes, &m.Reserved, m.Total)
}

func (b bounding) pcie(p *GPUPCIe) {
	for _, v := range []struct {
		value string
		k     *kind
		o     *Optional
	}{
		{"pcie_generation", &kindGeneration, &p.Generation},
		{"pcie_generation", &kindGeneration, &p.MaxGeneration},
		{"pcie_width", &kindLanes, &p.Width},
		{"pcie_width", &kindLanes, &p.MaxWidth},
		{"pcie_errors", &kindCount, &p.Replays},
		{"pcie_errors", &kindCount, &p.ReplayRollovers},
		{"pcie_errors", &kindCount, &p.Recoveries},
		{"pcie_errors", &kindCount, &p.NAKsSent},
		{"pcie_errors", &kindCount, &p.NAKsReceived},
		{"pcie_rate", &kindPCIeRate, &p.Receive},
		{"pcie_rate", &kindPCIeRate, &p.Transmit},
	} {
		b.value(v.value, v.k, v.o, Optional{})
	}
}

func (b bounding) counters(g *GPU) {
	g.LinkErrors = b.ofLinks(g.LinkErrors)
	g.Errors = without(g.Errors, func(e GPUErrors) bool {
		return b.blank("memory_errors", e.Scope+" "+e.Type+" "+e.Block, e.Count)
	})
	links := slices.Clone(g.Links)
	for i := range links {
		l := &links[i]
		l.Errors = b.ofLinks(l.Errors)
		b.named("link_bytes", strconv.Itoa(l.Number), &kindTotal, &l.Receive, Optional{})
		b.named("link_bytes", strconv.Itoa(l.Number), &kindTotal, &l.Transmit, Optional{})
	}
	g.Links = links
}

func (b bounding) ofLinks(errors []Counter) []Counter {
	return without(errors, func(c Counter) bool { return b.blank("link_errors", c.Name, c.Value) })
}

func (b bounding) blank(value, name string, n uint64) bool {
	blank := IsBlank(float64(n))
	if blank {
		b.drop(value, name, &kindCount, float64(n))
	}
	return blank
}

// without returns a list without some elements. It does not change the list.
func without[T any](list []T, drop func(T) bool) []T {
	for i := range list {
		if drop(list[i]) {
			return append(slices.Clip(list[:i]), without(list[i+1:], drop)...)
		}
	}
	return list
}

// BoundGPUs leaves out the impossible values of GPUs and of their processes. Each source calls it for what it has read.
func (s *Snapshot) BoundGPUs() {
	at := make(map[string]*GPU, len(s.GPUs))
	for i := range s.GPUs {
		s.GPUs[i].Bound()
		at[s.GPUs[i].UUID] = &s.GPUs[i]
	}
	s.GPUProcesses = slices.Clone(s.GPUProcesses)
	for i := range s.GPUProcesses {
		p := &s.GPUProcesses[i]
		g := at[p.GPU]
		if g == nil {
			continue
		}
		b := bounding{g}
		b.value("process_memory", &kindBytes, &p.Memory, g.Memory.Total)
		b.figures("process_engine", &kindRatio, &p.Engines, nil)
	}
}
