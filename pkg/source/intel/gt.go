// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// gt is a graphics or media unit of a GPU ("GT" in the drivers): its clock, and why the clock is reduced.
type gt struct {
	*drm.Directory
	clock           string // exported name
	actual, highest string // files with frequencies in MHz
	throttled       string // file that is 1 while any reason is active, or ""
	reasons         []reasonFile
}

type reasonFile struct{ file, reason string }

// findGTs lists the units. xe has tileT/gtG/freq0 below the device; i915 has gt/gtG below the card and, before Linux
// 5.18, files of the card for all units together. Reading the kind of unit wakes the GPU.
func findGTs(p drm.Card) []gt {
	var list []gt
	if p.Driver == "xe" {
		device := &drm.Directory{Path: p.Path}
		for _, tile := range numbered(device, "", "tile") {
			for _, name := range numbered(device, tile, "gt") {
				d := &drm.Directory{Path: device.Path + "/" + tile + "/" + name}
				clock := clockGraphics
				if strings.HasSuffix(d.Line("gtidle/name"), "-mc") {
					clock = clockMedia
				}
				g := gt{Directory: d, clock: clock, actual: "freq0/act_freq", highest: "freq0/rp0_freq"}
				g.findReasons("freq0/throttle", "reason_", "status")
				list = append(list, g)
			}
		}
		return list
	}
	card := &drm.Directory{Path: p.CardPath}
	for _, name := range numbered(card, "gt", "gt") {
		clock := clockGraphics
		if name != "gt0" {
			clock = name // another tile, or media: the driver does not report which
		}
		g := gt{
			Directory: &drm.Directory{Path: card.Path + "/gt/" + name}, clock: clock,
			actual: "rps_act_freq_mhz", highest: "rps_RP0_freq_mhz",
		}
		g.findReasons(".", "throttle_reason_", "throttle_reason_status")
		list = append(list, g)
	}
	if list == nil {
		list = []gt{{Directory: card, clock: clockGraphics, actual: "gt_act_freq_mhz", highest: "gt_RP0_freq_mhz"}}
	}
	return list
}

// Names of clocks.
const (
	clockGraphics = "graphics"
	clockMedia    = "media"
)

// maxGTs is more than the tiles of a GPU, and the units of a tile.
const maxGTs = 8

// numbered returns the first names in a directory below that are a prefix and a number.
func numbered(d *drm.Directory, below, prefix string) (names []string) {
	for _, name := range d.Names(below) {
		number, ok := strings.CutPrefix(name, prefix)
		if ok && number != "" && strings.Trim(number, "0123456789") == "" && len(names) < maxGTs {
			names = append(names, name)
		}
	}
	return names
}

// findReasons lists the files of throttle reasons, which have a common prefix.
func (g *gt) findReasons(dir, prefix, status string) {
	for _, file := range g.Names(dir) {
		name, _ := strings.CutPrefix(file, prefix)
		if file == status {
			g.throttled = dir + "/" + file
		} else if reason := reasons[name]; reason != "" {
			g.reasons = append(g.reasons, reasonFile{dir + "/" + file, reason})
		}
	}
}

// reasons are the exported throttle reasons by the drivers' names (xe_gt_throttle.c, intel_gt_sysfs_pm.c).
var reasons = map[string]string{
	"pl1": throttlePower, "pl2": throttlePower, "pl4": throttlePower,
	"psys_pl1": throttlePower, "psys_pl2": throttlePower, "psys_crit": throttlePower,
	"iccmax": throttleCurrent, "vr_tdc": throttleCurrent, "fastvmode": throttleCurrent,
	"thermal": throttleThermal, "soc_thermal": throttleThermal, "soc_avg_thermal": throttleThermal, "ratl": throttleThermal,
	"mem_thermal":   throttleMemory,
	"vr_thermalert": throttleVR, "vr_thermal": throttleVR,
	"prochot": throttleProchot,
}

// The throttle reasons.
const (
	throttlePower   = "power"          // it reaches a power limit
	throttleCurrent = "current"        // a regulator reaches its current limit
	throttleThermal = "thermal"        // the chip is hot
	throttleMemory  = "thermal_memory" // the memory is
	throttleVR      = "thermal_vr"     // a voltage regulator is
	throttleProchot = "prochot"        // an external signal
)

// readGTs reads the clocks and throttle reasons. Of units with the same name the fastest counts.
func readGTs(list []gt, g *model.GPU) {
	for i := range list {
		unit := &list[i]
		g.Clocks = putHighest(g.Clocks, unit.clock, unit.megahertz(unit.actual))
		g.MaxClocks = putHighest(g.MaxClocks, unit.clock, unit.megahertz(unit.highest))
		throttled := unit.throttled == "" || unit.Line(unit.throttled) != "0"
		for _, r := range unit.reasons {
			active := throttled && unit.Line(r.file) == "1"
			j := slices.IndexFunc(g.Throttles, func(c model.GPUCondition) bool { return c.Name == r.reason })
			if j < 0 {
				j = len(g.Throttles)
				g.Throttles = append(g.Throttles, model.GPUCondition{Name: r.reason})
			}
			g.Throttles[j].Active = g.Throttles[j].Active || active
		}
	}
}

// megahertz returns a frequency in MHz as hertz.
func (g *gt) megahertz(file string) model.Optional {
	v := g.Number(file, 1)
	v.Value *= 1e6
	return v
}

func putHighest(values []model.Figure, name string, v model.Optional) []model.Figure {
	i := slices.IndexFunc(values, func(f model.Figure) bool { return f.Name == name })
	if i < 0 {
		return drm.Put(values, name, v)
	}
	if v.Known {
		values[i].Value = max(values[i].Value, v.Value)
	}
	return values
}
