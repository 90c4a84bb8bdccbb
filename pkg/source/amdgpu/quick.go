// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// reader has the data of a card's goroutine.
type reader struct {
	o        *Options
	dir      *directory
	sysfs    *directory
	identity model.GPU
	settled  bool // the identity is complete
	hwmon    hwmon
	blocks   []string  // RAS blocks
	outer    string    // PCIe function at the slot
	port     string    // port of the slot
	touched  time.Time // last read, which delays the suspension

	power      drm.Power
	resting    bool
	lost       bool
	silent     error     // why no attribute could be read
	quick      model.GPU // values of the last quick read
	table      table
	err        error
	throttling throttling
	slow       model.GPU // values of the last full read
	health     health
	degraded   bool // the PCIe link had too few lanes when last at full speed
}

func newReader(o *Options, path string) reader {
	return reader{o: o, dir: newDirectory(path), sysfs: newDirectory(o.Sysfs)}
}

func (r *reader) identify(address string) {
	r.identity, r.settled = identify(r.dir, address, r.o.Root)
	r.hwmon = findHwmon(r.dir)
	r.blocks = rasBlocks(r.dir)
	r.outer, r.port = slot(r.dir.Path)
}

// readQuick reads the values for a scrape: runtime_status, gpu_metrics, the hwmon sensors, and
// percentages that the table lacks. Reading any of them makes amdgpu resume the device (before
// Linux 6.15, and later again for gpu_metrics), so they are only read if it is awake.
func (r *reader) readQuick(now time.Time) {
	r.power = drm.ReadPower(&r.dir.Directory)
	if r.resting = r.power.Rests(now, r.touched); r.power.Asleep || r.resting {
		return
	}
	r.touched = now
	r.dir.Answers.Begin()
	var g model.GPU
	r.table, r.err = table{}, nil
	if b, err := r.dir.read("gpu_metrics"); err == nil {
		if r.table, err = parseMetrics(b); errors.Is(err, errRevision) {
			r.err = err
		}
	}
	r.hwmon.read(r.dir, &g)
	if r.table.zeros { // the kernel's files have the same table
		g.Clocks = nil
		g.Dropped = []model.DroppedValue{{Value: "gpu_metrics", Text: "a table of zeros"}}
	} else if g.Utilization = r.table.gfx; !g.Utilization.Known {
		g.Utilization = percent(r.dir.Number("gpu_busy_percent", 1))
	}
	r.lost, r.silent = r.dir.Answers.End()
	if r.silent != nil {
		if r.power = drm.ReadPower(&r.dir.Directory); r.power.Asleep { // it was suspended between
			r.silent = nil
			return
		}
	}
	if g.Power.Value == 0 { // also the second die of an MI250
		g.Power = r.table.power
	}
	for _, t := range r.table.temperatures {
		if _, known := find(g.Temperatures, t.Name); !known {
			g.Temperatures = append(g.Temperatures, t)
		}
	}
	for _, c := range r.table.clocks {
		if _, known := find(g.Clocks, c.Name); !known {
			g.Clocks = append(g.Clocks, c)
		}
	}
	if g.Energy = r.table.energy; g.Energy.Known {
		g.EnergyRead = now
	}
	g.Links, g.PCIe = r.table.links, r.table.pcie
	g.Throttled, g.Throttles = r.throttling.add(r.table)
	r.quick = g
}
