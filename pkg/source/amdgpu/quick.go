// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// reader is what the goroutine of a card works with.
type reader struct {
	o        *Options
	dir      *directory
	sysfs    *directory
	identity model.GPU
	settled  bool // the identity is known for good
	hwmon    hwmon
	blocks   []string // of RAS
	outer    string   // PCIe function at the slot
	port     string   // and the slot
	// autosuspend is after what time the device goes to sleep by itself; 0 if it does not.
	autosuspend time.Duration
	touched     time.Time // when it was kept from that

	asleep     bool
	resting    bool
	lost       bool
	quick      model.GPU // what is read on a scrape
	table      table
	err        error
	throttling throttling
	slow       model.GPU // what is read in the background
	health     health
	up         map[int]bool // links that have been up
	degraded   bool         // the PCIe link had too few lanes when it was last at full speed
}

func newReader(o *Options, path string) reader {
	return reader{o: o, dir: newDirectory(path), sysfs: newDirectory(o.Sysfs), up: map[int]bool{}}
}

func (r *reader) identify(address string) {
	r.identity, r.settled = identify(r.dir, address, r.o.Root)
	r.hwmon = findHwmon(r.dir)
	r.blocks = rasBlocks(r.dir)
	r.outer, r.port = slot(r.dir.path)
}

// sleeps looks whether the device is suspended, or on the way there or back.
// runtime_status and autosuspend_delay_ms are of the power management core: it is
// not woken for them.
func (r *reader) sleeps() bool {
	status := r.dir.line("power/runtime_status")
	r.autosuspend = 0
	if r.dir.line("power/control") == "auto" {
		if ms := r.dir.number("power/autosuspend_delay_ms", 1); ms.Known && ms.Value > 0 {
			r.autosuspend = time.Duration(ms.Value) * time.Millisecond
		}
	}
	return status == "suspended" || status == "suspending" || status == "resuming"
}

// rest says that the device is left alone, so that it can go to sleep: every
// reading puts that off by its delay.
func (r *reader) rest(now time.Time) bool {
	return r.autosuspend > 0 && !r.touched.IsZero() && now.Sub(r.touched) < r.autosuspend+r.autosuspend/4+time.Second
}

// readQuick reads what a scrape waits for: runtime_status, gpu_metrics and the
// sensors of hwmon, and the percentages of those that the table does not tell.
// amdgpu resumes the device for each of them (before Linux 6.15, and later for
// gpu_metrics again), so all that only if it is awake.
func (r *reader) readQuick(now time.Time) {
	r.asleep = r.sleeps()
	if r.resting = r.rest(now); r.asleep || r.resting {
		return
	}
	r.touched = now
	r.dir.lost()
	var g model.GPU
	r.table, r.err = table{}, nil
	if b, err := r.dir.read("gpu_metrics"); err == nil {
		if r.table, err = parseMetrics(b); errors.Is(err, errRevision) {
			r.err = err
		}
	}
	r.hwmon.read(r.dir, &g)
	if g.Utilization = r.table.gfx; !g.Utilization.Known {
		g.Utilization = percent(r.dir.number("gpu_busy_percent", 1))
	}
	r.lost = r.dir.lost()
	if g.Power.Value == 0 { // also of the second die of an MI250
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
	g.Energy, g.Links, g.PCIe = r.table.energy, r.table.links, r.table.pcie
	g.Throttled, g.Throttles = r.throttling.add(r.table)
	r.quick = g
}
