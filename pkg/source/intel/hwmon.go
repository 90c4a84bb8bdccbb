// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// hwmon has the files of a GPU's sensors in device/hwmon/hwmonN: Documentation/ABI/testing/sysfs-driver-intel-*-hwmon.
type hwmon struct {
	names  []string // in device/hwmon: the number changes when the driver is bound again
	dir    string   // hwmon/hwmon3/; empty without sensors
	temps  []temperature
	energy string
	limits []string
}

// temperature is one sensor and its exported name.
type temperature struct{ file, name string }

// Names of temperatures by hwmon's labels and, for kernels without them, by driver and channel.
var (
	labels   = map[string]string{"pkg": "gpu", "vram": "memory"}
	channels = map[string]string{"i915 temp1": "gpu", "xe temp2": "gpu", "xe temp3": "memory"}
)

// maxTemperatures is more than a GPU with a sensor for each channel of its memory has.
const maxTemperatures = 32

// find lists the sensors of the device, unless they are known. i915 has further devices for its tiles, with other
// names. It does not wake the GPU.
func (h *hwmon) find(d *drm.Directory, driver string) {
	names := d.Names("hwmon")
	if slices.Equal(names, h.names) {
		return
	}
	*h = hwmon{names: names}
	for _, name := range names {
		if dir := "hwmon/" + name + "/"; d.Line(dir+"name") == driver {
			h.dir = dir
		}
	}
	if h.dir == "" {
		return
	}
	var caps []string // limits of power for short times, of GPUs without a limit of sustained power: Arc Pro B60
	for _, file := range d.Names(h.dir) {
		channel, kind, _ := strings.Cut(file, "_")
		switch {
		case kind == "input" && strings.HasPrefix(channel, "temp") && len(h.temps) < maxTemperatures:
			name := d.Line(h.dir + channel + "_label")
			if known := labels[name]; known != "" {
				name = known
			}
			if name == "" {
				name = channels[driver+" "+channel]
			}
			if name != "" {
				h.temps = append(h.temps, temperature{h.dir + file, name})
			}
		case kind == "input" && strings.HasPrefix(channel, "energy") && h.energy == "": // the card is before its package
			h.energy = h.dir + file
		case kind == "max" && strings.HasPrefix(channel, "power"):
			h.limits = append(h.limits, h.dir+file)
		case kind == "cap" && strings.HasPrefix(channel, "power"):
			caps = append(caps, h.dir+file)
		}
	}
	h.limits = append(h.limits, caps...)
}

// read reads temperatures in millidegrees, energy in microjoules, and the first limit of power in microwatts that is
// not disabled, which is 0.
func (h *hwmon) read(d *drm.Directory, g *model.GPU) {
	for _, t := range h.temps {
		g.Temperatures = drm.Put(g.Temperatures, t.name, d.Number(t.file, 1e3))
	}
	if h.energy != "" {
		g.Energy = d.Number(h.energy, 1e6)
	}
	for _, file := range h.limits {
		if v := d.Number(file, 1e6); v.Known && v.Value != 0 {
			g.PowerLimit = v
			break
		}
	}
}
