// SPDX-License-Identifier: Apache-2.0

package module

import "math"

// Thresholds are the manufacturer's thresholds of a module's values.
type Thresholds struct {
	Temperature, Voltage, Bias, ReceivePower, TransmitPower Threshold
}

// Threshold is the thresholds of a value. A range that the module lacks is nil.
type Threshold struct {
	Alarm, Warning *Range
}

// Range is a range of values. A value outside of it is an alarm or a warning.
type Range struct {
	Low, High float64
}

// thresholds returns the thresholds at an offset: high alarm, low alarm, high warning, low warning.
func (m *Memory) thresholds(page, offset uint8, s scale) Threshold {
	between := func(high, low *float64) *Range {
		// Two zeros are thresholds that the manufacturer has not written.
		if high == nil || low == nil || *high <= *low {
			return nil
		}
		return &Range{*low, *high}
	}
	return Threshold{
		Alarm:   between(m.value(page, offset, s), m.value(page, offset+2, s)),
		Warning: between(m.value(page, offset+4, s), m.value(page, offset+6, s)),
	}
}

// Severity is how far a value is outside its thresholds, with its direction.
type Severity int8

// The severities are ordered by value.
const (
	LowAlarm    Severity = -2
	LowWarning  Severity = -1
	Normal      Severity = 0
	HighWarning Severity = 1
	HighAlarm   Severity = 2
)

// Severity compares a value with the thresholds. It returns false if the module has no thresholds for it.
func (l Threshold) Severity(v float64) (Severity, bool) {
	switch {
	case l.Alarm != nil && v > l.Alarm.High:
		return HighAlarm, true
	case l.Alarm != nil && v < l.Alarm.Low:
		return LowAlarm, true
	case l.Warning != nil && v > l.Warning.High:
		return HighWarning, true
	case l.Warning != nil && v < l.Warning.Low:
		return LowWarning, true
	}
	return Normal, l.Alarm != nil || l.Warning != nil
}

// Margin returns the distance of a value to the nearer alarm threshold, as a ratio of the distance between both: 0.5 in
// the middle, 0 at a threshold, negative beyond it, but not below -1. It returns false if the module has no alarm
// thresholds for the value.
func (l Threshold) Margin(v float64) (float64, bool) {
	if l.Alarm == nil {
		return 0, false
	}
	nearer := min(v-l.Alarm.Low, l.Alarm.High-v)
	return max(nearer/(l.Alarm.High-l.Alarm.Low), -1), true
}

// PowerMargin is Margin in decibels, the scale of optical power.
func (l Threshold) PowerMargin(v float64) (float64, bool) {
	if l.Alarm == nil || l.Alarm.Low <= 0 {
		return l.Margin(v)
	}
	in := Threshold{Alarm: &Range{math.Log10(l.Alarm.Low), math.Log10(l.Alarm.High)}}
	return in.Margin(math.Log10(v)) // without light: -1
}

// Assessment compares all values of a kind with their thresholds.
type Assessment struct {
	Value    string   // "temperature", "voltage", "bias", "receive_power", "transmit_power"
	Severity Severity // the worst of the lanes; among equal lanes the first
	Margin   *float64 // the smallest of the lanes; for optical power, in decibels
}

// Assess compares the values with their thresholds. It leaves out values without a report or without thresholds.
func (m Module) Assess() (all []Assessment) {
	add := func(value string, l Threshold, margin func(float64) (float64, bool), values ...*float64) {
		a, limited := Assessment{Value: value}, false
		for _, v := range values {
			if v == nil {
				continue
			}
			s, ok := l.Severity(*v)
			limited = limited || ok
			if max(s, -s) > max(a.Severity, -a.Severity) {
				a.Severity = s
			}
			if got, ok := margin(*v); ok && (a.Margin == nil || got < *a.Margin) {
				a.Margin = &got
			}
		}
		if limited {
			all = append(all, a)
		}
	}
	var bias, receive, transmit []*float64
	for _, lane := range m.Lanes {
		bias, receive, transmit = append(bias, lane.Bias), append(receive, lane.ReceivePower), append(transmit, lane.TransmitPower)
	}
	l := m.Thresholds
	add("temperature", l.Temperature, l.Temperature.Margin, m.Temperature)
	add("voltage", l.Voltage, l.Voltage.Margin, m.Voltage)
	add("bias", l.Bias, l.Bias.Margin, bias...)
	add("receive_power", l.ReceivePower, l.ReceivePower.PowerMargin, receive...)
	add("transmit_power", l.TransmitPower, l.TransmitPower.PowerMargin, transmit...)
	return all
}
