// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// hwmon has the names of a card's sensors in device/hwmon/hwmonN.
type hwmon struct {
	dir    string // hwmon/hwmon3/
	temps  []sensor
	clocks []sensor
	power  string // power1_average, or power1_input on newer chips
	pwm    bool
}

// sensor is one file and its exported name.
type sensor struct{ prefix, name string }

// labels maps hwmon's labels to exported names.
var labels = map[string]string{"mem": "memory", "sclk": "graphics", "mclk": "memory"}

// findHwmon lists the sensors. Reading their labels does not wake the device.
func findHwmon(d *directory) hwmon {
	names := d.Names("hwmon")
	i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, "hwmon") })
	if i < 0 {
		return hwmon{}
	}
	h := hwmon{dir: "hwmon/" + names[i] + "/"}
	for _, file := range d.Names(strings.TrimSuffix(h.dir, "/")) {
		prefix, kind, _ := strings.Cut(file, "_")
		switch {
		case kind == "input" && strings.HasPrefix(prefix, "temp"):
			h.temps = append(h.temps, sensor{prefix, label(d, h.dir, prefix, "edge")})
		case kind == "input" && strings.HasPrefix(prefix, "freq"):
			h.clocks = append(h.clocks, sensor{prefix, label(d, h.dir, prefix, prefix)})
		case file == "power1_average", file == "power1_input" && h.power == "":
			h.power = file
		case file == "pwm1":
			h.pwm = true
		}
	}
	return h
}

func label(d *directory, dir, prefix, otherwise string) string {
	name := d.Line(dir + prefix + "_label")
	return cmp.Or(labels[name], name, otherwise)
}

// read reads the sensors: temperatures in millidegrees, power in microwatts, clocks in hertz,
// pwm1 from 0 to 255.
func (h *hwmon) read(d *directory, g *model.GPU) {
	for _, t := range h.temps {
		g.Temperatures = drm.Put(g.Temperatures, t.name, d.Number(h.dir+t.prefix+"_input", 1e3))
	}
	for _, c := range h.clocks {
		g.Clocks = drm.Put(g.Clocks, c.name, d.Number(h.dir+c.prefix+"_input", 1))
	}
	if h.power != "" {
		g.Power = d.Number(h.dir+h.power, 1e6)
	}
	if h.pwm {
		g.FanSpeed = d.Number(h.dir+"pwm1", 255)
	}
}

// limits reads values that seldom change: the temperatures of throttling (crit) and of
// shutdown (emergency), and the power cap.
func (h *hwmon) limits(d *directory, g *model.GPU) {
	if h.dir == "" {
		return
	}
	for _, t := range h.temps {
		for _, limit := range []struct{ file, name string }{{"_crit", "slowdown"}, {"_emergency", "shutdown"}} {
			name := limit.name
			if t.name != "junction" && len(h.temps) > 1 { // the limits of junction have no suffix
				name += "_" + t.name
			}
			v := d.Number(h.dir+t.prefix+limit.file, 1e3)
			if v.Value != 0 { // 0 is no limit
				g.TemperatureLimits = drm.Put(g.TemperatureLimits, name, v)
			}
		}
	}
	g.PowerLimit = d.Number(h.dir+"power1_cap", 1e6)
}
