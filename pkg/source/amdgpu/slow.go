// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// steps returns the short steps of a full read, between which a scrape can be answered. Their
// results are used once all of them are done. pcie_bw is not read: it blocks for a second.
func (r *reader) steps() []func() {
	switch {
	case r.power.Asleep || r.lost || r.silent != nil:
		r.slow, r.health = model.GPU{}, health{}
		return nil
	case r.resting:
		return []func(){func() { r.readMemory(&r.slow) }} // values that the driver has in memory
	}
	var g model.GPU
	var h health
	steps := []func(){
		func() { r.readMemory(&g) },
		func() { r.readEngines(&g) },
		func() {
			r.hwmon = findHwmon(r.dir) // the number changes when the driver is bound again
			r.hwmon.limits(r.dir, &g)
			r.readMaxClocks(&g)
		},
		func() { r.readModes(&g) },
		func() {
			g.PCIe = readPCIe(r.outer, r.port)
			if !r.table.pcie.Replays.Known {
				g.PCIe.Replays = r.dir.Number("pcie_replay_count", 1)
			}
		},
	}
	if !r.settled {
		steps = append(steps, func() { r.identity, r.settled = identify(r.dir, r.identity.PCIAddress, r.o.Root) })
	}
	for _, block := range r.blocks {
		steps = append(steps, func() { h.block(r.dir, block) })
	}
	if r.blocks != nil {
		steps = append(steps, func() { h.badPages(r.dir, r.sysfs) })
	}
	return append(steps, func() { r.slow, r.health, r.touched = g, h, time.Now() })
}

// readMemory reads mem_info_*, in bytes: allocated and total memory.
func (r *reader) readMemory(g *model.GPU) {
	g.Memory, g.UsesGTT = videoMemory(r.dir, "mem_info_vram"), false
	g.GTT = videoMemory(r.dir, "mem_info_gtt")
	if g.Memory.Total == model.Some(0) { // an accelerator with the CPU on it
		g.Memory, g.UsesGTT = g.GTT, true
	}
}

func videoMemory(d *directory, name string) model.VideoMemory {
	m := model.VideoMemory{Total: d.Number(name+"_total", 1), Used: d.Number(name+"_used", 1)}
	if m.Total.Known && m.Used.Known && m.Used.Value <= m.Total.Value {
		m.Free = model.Some(m.Total.Value - m.Used.Value)
	}
	return m
}

// readEngines reads the busy ratios of the engines when processes are listed.
func (r *reader) readEngines(g *model.GPU) {
	if r.table.zeros {
		return
	}
	memory, video := r.table.memory, r.table.video
	if !memory.Known {
		memory = percent(r.dir.Number("mem_busy_percent", 1))
	}
	if !video.Known {
		video = percent(r.dir.Number("vcn_busy_percent", 1))
	}
	g.Engines = drm.Put(g.Engines, "gfx", r.quick.Utilization)
	g.Engines = drm.Put(g.Engines, "memory", memory)
	g.Engines = drm.Put(g.Engines, "video", video)
	g.Engines = drm.Put(g.Engines, engineJPEG, r.table.jpeg)
}

// engineJPEG is the mean over the JPEG engines. fdinfo has the sum over them, as jpeg.
const engineJPEG = "jpeg_active"

// readMaxClocks reads the highest level of pp_dpm_*.
func (r *reader) readMaxClocks(g *model.GPU) {
	for _, c := range []struct{ file, name string }{
		{"pp_dpm_sclk", "graphics"},
		{"pp_dpm_mclk", "memory"},
		{"pp_dpm_socclk", "soc"},
		{"pp_dpm_fclk", "fabric"},
		{"pp_dpm_vclk", "video"},
	} {
		if b, err := r.dir.read(c.file); err == nil {
			g.MaxClocks = drm.Put(g.MaxClocks, c.name, parseLevels(b))
		}
	}
}

// parseLevels returns the highest clock of lines like "1: 2100Mhz *", in hertz.
func parseLevels(b []byte) model.Optional {
	var fastest model.Optional
	for line := range bytes.Lines(b) {
		_, level, _ := strings.Cut(strings.ToLower(string(line)), ":")
		number, _, ok := strings.Cut(strings.TrimSpace(level), "mhz")
		v, err := strconv.ParseUint(number, 10, 32)
		if ok && err == nil && float64(v)*1e6 > fastest.Value {
			fastest = model.Some(float64(v) * 1e6)
		}
	}
	return fastest
}

// readModes reads the partition modes of an accelerator: SPX, CPX, …; NPS1, NPS4, ….
func (r *reader) readModes(g *model.GPU) {
	for _, m := range []struct{ file, name string }{
		{"current_compute_partition", "compute_partition"},
		{"current_memory_partition", "memory_partition"},
		{"power_dpm_force_performance_level", "performance_level"},
	} {
		if v := r.dir.Line(m.file); v != "" && v != "UNKNOWN" && len(v) <= 32 {
			if g.Modes == nil {
				g.Modes = map[string]string{}
			}
			g.Modes[m.name] = v
		}
	}
}

// state combines the values of the last reads.
func (r *reader) state() state {
	g := r.identity
	if r.power.Asleep {
		g.Suspended, g.PowerChange = true, r.power.Changing
		return state{read: true, gpu: g, sleeper: true}
	}
	if g.Problems = drm.Unanswered(r.lost, r.silent != nil); g.Problems != nil {
		return state{read: true, gpu: g, silent: r.silent}
	}
	q, s := r.quick, r.slow
	g.Utilization, g.Temperatures, g.Power, g.Energy, g.EnergyRead = q.Utilization, q.Temperatures, q.Power, q.Energy, q.EnergyRead
	g.Dropped = q.Dropped
	g.FanSpeed, g.Clocks, g.Throttles, g.Throttled = q.FanSpeed, q.Clocks, q.Throttles, q.Throttled
	g.Memory, g.GTT, g.UsesGTT, g.Engines = s.Memory, s.GTT, s.UsesGTT, s.Engines
	g.TemperatureLimits, g.PowerLimit, g.MaxClocks = s.TemperatureLimits, s.PowerLimit, s.MaxClocks
	if s.Modes != nil {
		g.Modes = maps.Clone(s.Modes)
		g.Profile = strings.Trim(s.Modes["compute_partition"]+"/"+s.Modes["memory_partition"], "/")
	}
	g.PCIe = s.PCIe
	// Some kernels write generation 1 for generation 5 in the table: it is used only if the
	// PCI core does not know the values.
	if !s.PCIe.Width.Known || !s.PCIe.Generation.Known {
		g.PCIe.Width, g.PCIe.Generation = q.PCIe.Width, q.PCIe.Generation
	}
	if q.PCIe.Replays.Known {
		g.PCIe.Replays = q.PCIe.Replays
	}
	g.PCIe.ReplayRollovers, g.PCIe.Recoveries = q.PCIe.ReplayRollovers, q.PCIe.Recoveries
	g.PCIe.NAKsSent, g.PCIe.NAKsReceived = q.PCIe.NAKsSent, q.PCIe.NAKsReceived
	// The RAS block xgmi_wafl has the errors of links: reading xgmi_error would clear it.
	g.Links = slices.Clone(q.Links)
	g.Bound()
	r.problems(&g)
	return state{read: true, gpu: g, partitions: r.table.partitions, sleeper: r.power.Autosuspend > 0, err: r.err}
}

// problems sets the problems that this device can have.
func (r *reader) problems(g *model.GPU) {
	add := func(name string, active bool) {
		g.Problems = append(g.Problems, model.GPUCondition{Name: name, Active: active})
	}
	g.Problems = drm.Answered()
	r.health.describe(g)
	if g.Throttles != nil && g.Throttled == nil { // with cycle counters an active reason is not a problem
		add(model.ProblemThermal, drm.Active(g.Throttles, throttleThermal, throttleMemory, throttleVR))
		add(model.ProblemPowerBrake, drm.Active(g.Throttles, throttleProchot))
	}
	if p := g.PCIe; p.Width.Known && p.MaxWidth.Known {
		// An idle Radeon also reduces its lanes (pp_dpm_pcie: 2.5GT/s, x1): the width is
		// compared at full speed.
		if p.Width.Value >= p.MaxWidth.Value || p.Generation.Known && p.Generation == p.MaxGeneration {
			r.degraded = p.Width.Value < p.MaxWidth.Value
		}
		add(model.ProblemPCIeDegraded, r.degraded)
	}
}
