// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

func hwmonMetrics() []metric {
	sensorLabels := []string{"chip", "sensor"}
	return []metric{
		{
			name: "node_hwmon_chip_names", typ: gauge, labels: []string{"chip", "chip_name"},
			help: "Driver name of the chip, always 1.",
			emit: each(chipsOf, func(_ *view, b *exposition.Builder, c *model.Chip) {
				if c.Name != "" {
					b.Value(1, c.ID, c.Name)
				}
			}),
		},
		{
			name: "node_hwmon_sensor_label", typ: gauge, labels: []string{"chip", "sensor", "label"},
			help: "Driver's label of the sensor, always 1.",
			emit: each(chipsOf, func(_ *view, b *exposition.Builder, c *model.Chip) {
				for _, s := range c.Sensors {
					if s.Label != nil {
						b.Value(1, c.ID, s.Name, *s.Label)
					}
				}
			}),
		},
		{
			name: "node_hwmon_<property>", typ: gauge, labels: sensorLabels, emit: hwmonFigures(false, sensorLabels),
			help: "Value, limit or alarm of the hardware sensor.",
		},
		{
			name: "node_hwmon_<property>_joule_total", typ: counter, labels: sensorLabels, emit: hwmonFigures(true, sensorLabels),
			help: "Energy that the sensor counted.",
		},
		{
			name: "node_rapl_<zone>_joules_total", typ: counter, labels: zoneLabels, emit: zoneEnergy(zoneLabels),
			help: "Energy that CPUs or memory used.",
		},
	}
}

var zoneLabels = []string{"index", "path"}

func zoneEnergy(labels []string) func(*view, *exposition.Builder) {
	var families columns
	return func(v *view, b *exposition.Builder) {
		schema := b.Schema(labels)
		families.begin()
		for _, z := range energyOf(v) {
			families.addValue(z.Name, b.Labels(schema, nil, strconv.Itoa(z.Index), z.Path), float64(z.Microjoules)/1e6)
		}
		families.end()
		families.emit(b)
	}
}

// hwmonFigures returns the emit function of all families that end in _joule_total, or of all other families.
func hwmonFigures(totals bool, labels []string) func(*view, *exposition.Builder) {
	var families columns
	return func(v *view, b *exposition.Builder) {
		schema := b.Schema(labels)
		families.begin()
		for i := range v.facts.Node.Chips {
			c := &v.facts.Node.Chips[i]
			for j := range c.Sensors {
				s := &c.Sensors[j]
				for _, f := range s.Figures {
					fam := hwmonFamilyOf(s, f.Name)
					if fam.name == "" || fam.total != totals {
						continue
					}
					label := s.Name
					if fam.byLabel {
						label = hwmonLabel(c, s)
					}
					families.addValue(fam.name, b.Labels(schema, nil, c.ID, label), f.Value*fam.unit/fam.per)
				}
			}
		}
		families.end()
		families.emit(b)
	}
}

// hwmonFamily is the family of one property of one kind of sensor. A value is multiplied by unit and divided by per, in
// this order, as node_exporter does: the results are equal to the last bit. The kernel's units are thousandths and
// millionths.
type hwmonFamily struct {
	name      string // replaces <property>; empty: no family
	unit, per float64
	total     bool // ends in _joule_total
	byLabel   bool // the label sensor is the label of the sensor
}

func hwmonFamilyOf(s *model.Sensor, property string) hwmonFamily {
	name := s.Type
	switch {
	case property == "input" && slices.ContainsFunc(s.Figures, func(f model.Figure) bool { return f.Name == "" }):
		name += "_input"
	case property != "" && property != "input":
		name += "_" + hwmonWord(property)
	}
	one := hwmonFamily{name: name, unit: 1, per: 1}
	milli := func(suffix string) hwmonFamily { return hwmonFamily{name: name + suffix, unit: 0.001, per: 1} }
	micro := func(suffix string) hwmonFamily { return hwmonFamily{name: name + suffix, unit: 1, per: 1e6} }
	switch s.Type {
	case "beep_enable":
		return hwmonFamily{name: "beep_enabled", unit: 1, per: 1}
	case "vrm":
		return hwmonFamily{name: "voltage_regulator_version", unit: 1, per: 1}
	case "update_interval":
		return hwmonFamily{name: "update_interval_seconds", unit: 0.001, per: 1}
	}
	switch property {
	case "fault", "alarm":
		return one
	case "beep":
		one.name += "_enabled"
		return one
	}
	switch s.Type {
	case "in", "cpu":
		return milli("_volts")
	case "temp":
		if property != "type" {
			return milli("_celsius")
		}
	case "curr":
		return milli("_amps")
	case "energy":
		f := micro("")
		f.total = true
		return f
	case "power":
		if property == "accuracy" {
			return micro("")
		}
		if property == "average_interval" || property == "average_interval_min" || property == "average_interval_max" {
			return milli("_seconds")
		}
		return micro("_watt")
	case "humidity":
		return micro("")
	case "fan":
		switch property {
		case "input", "min", "max", "target":
			one.name += "_rpm"
		}
	case "freq":
		if property == "input" {
			f := micro("_freq_mhz")
			f.byLabel = true
			if s.Label == nil {
				f.name = ""
			}
			return f
		}
	}
	return one
}

// hwmonLabel returns the driver's label of a sensor as a word. If two sensors of a type have the same word, the
// sensor's name is added.
func hwmonLabel(c *model.Chip, s *model.Sensor) string {
	word := hwmonWord(*s.Label)
	for i := range c.Sensors {
		if o := &c.Sensors[i]; o.Name != s.Name && o.Type == s.Type && o.Label != nil && hwmonWord(*o.Label) == word {
			return strings.Trim(word+"_"+s.Name, "_")
		}
	}
	return word
}

// hwmonWord converts text as node_exporter does for names and labels: lower case, other characters become underscores.
func hwmonWord(s string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == ':', r == '_':
			return r
		}
		return '_'
	}, strings.ToLower(s)), "_")
}
