// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// health is the state of the device that the driver reports, apart from values.
type health struct {
	lost, stuck, unreadable, reset, inforom bool
	// Memory repairs; nil if not reported.
	remapPending, remapFailure, retirePending *bool
	narrow                                    *bool // PCIe link narrower than possible, when last in use
	sram, fabric                              *bool // see sramThreshold and fabric; nil if not reported
}

// fatal returns the problems that are known even if the device cannot be read.
func (h health) fatal() []model.GPUCondition {
	conditions := wire.Fatal{Lost: h.lost, Stuck: h.stuck, Unreadable: h.unreadable, Reset: h.reset}.Conditions()
	if h.inforom { // only reported as an error of other calls
		conditions = append(conditions, model.GPUCondition{Name: model.ProblemInfoROM, Active: true})
	}
	return conditions
}

// problems returns all known conditions of a device that was read.
func (d *device) problems(g *model.GPU) []model.GPUCondition {
	all := d.health.fatal()
	add := func(name string, active bool) { all = append(all, model.GPUCondition{Name: name, Active: active}) }
	addKnown := func(name string, active *bool) {
		if active != nil {
			add(name, *active)
		}
	}
	if g.RecoveryAction != "" {
		add(model.ProblemRecovery, g.RecoveryAction != model.RecoveryNone)
	}
	if g.XIDs != nil {
		// A critical one of an instance affects the whole chip.
		xids := append(d.xids.OfInstances(g.UUID), g.XIDs...)
		add(model.ProblemXID, g.RecoveryAction != model.RecoveryNone && slices.ContainsFunc(xids, func(x model.XID) bool {
			return x.Last.After(d.current().Since) && slices.Contains(wire.CriticalXIDs, x.Code)
		}))
	}
	errors := slices.Clone(g.Errors)
	for _, p := range d.shown.parts { // with MIG the driver reports volatile errors only per part
		errors = append(errors, p.Errors...)
	}
	if slices.ContainsFunc(errors, uncorrected) {
		add(model.ProblemECC, slices.ContainsFunc(errors, func(e model.GPUErrors) bool {
			return uncorrected(e) && e.Count > 0
		}))
	}
	addKnown(model.ProblemRemapPending, d.health.remapPending)
	addKnown(model.ProblemRemapFailure, d.health.remapFailure)
	addKnown(model.ProblemRetirePending, d.health.retirePending)
	for _, t := range g.Throttles {
		switch t.Name {
		case reasonThermal:
			add(model.ProblemThermal, t.Active)
		case reasonPowerBrake:
			add(model.ProblemPowerBrake, t.Active)
		}
	}
	addKnown(model.ProblemPCIeDegraded, d.health.narrow)
	addKnown(model.ProblemSRAM, d.health.sram)
	addKnown(model.ProblemFabric, d.health.fabric)
	return all
}

func active(c model.GPUCondition) bool { return c.Active }

func uncorrected(e model.GPUErrors) bool { return e.Type == "uncorrected" && e.Scope == "volatile" }

// readHealth reads the state of memory repairs, in slow rounds, and of the PCIe link.
func (d *device) readHealth() {
	handle := d.attached.Load().handle
	if d.rarely.due {
		readRemappedRows(handle, &d.draft.facts, &d.health)
		d.health.retirePending = nil
		if v, ret := handle.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS {
			pending := v == nvml.FEATURE_ENABLED
			d.health.retirePending = &pending
		}
		d.health.sram = sramThreshold(handle)
		f := fabric(handle)
		d.draft.facts.Fabric, d.draft.facts.FabricCluster, d.draft.facts.FabricClique = f.state, f.cluster, f.clique
		d.health.fabric = f.unhealthy
	}
	d.draft.facts.RecoveryAction = actionOf(d.values.count(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0))
	d.readPCIe(handle)
}

// readPCIe reads the PCIe generation and width: the current values, and the maximum that GPU
// and slot support together. What the driver reports of a link that does not exist is neither shown nor judged.
func (d *device) readPCIe(handle nvml.Device) {
	if d.draft.facts.OffPCIe {
		return
	}
	link := &d.draft.facts.PCIe
	for _, f := range []struct {
		value    *model.Optional
		get      func() (int, nvml.Return)
		constant bool
	}{
		{&link.Generation, handle.GetCurrPcieLinkGeneration, false},
		{&link.MaxGeneration, handle.GetMaxPcieLinkGeneration, true},
		{&link.Width, handle.GetCurrPcieLinkWidth, false},
		{&link.MaxWidth, handle.GetMaxPcieLinkWidth, true},
	} {
		if f.constant && !d.rarely.due {
			continue
		}
		*f.value = model.Optional{}
		if v, ret := f.get(); ret == nvml.SUCCESS && v > 0 {
			*f.value = model.Some(float64(v))
		}
	}
	possible := model.GPU{PCIe: *link}
	possible.Bound()
	width, most := possible.PCIe.Width, possible.PCIe.MaxWidth
	if !width.Known || !most.Known {
		d.health.narrow = nil
		return
	}
	narrow := width.Value < most.Value
	if narrow {
		if use, ret := handle.GetUtilizationRates(); ret == nvml.SUCCESS && use.Gpu == 0 {
			if d.health.narrow != nil {
				return // unused lanes may be switched off while the GPU is idle
			}
			narrow = false
		}
	}
	d.health.narrow = &narrow
}

// readModes reads settings that an administrator can change at any time: the MIG mode in every round, as the instances depend
// on it, and the others in slow rounds.
func (d *device) readModes() {
	handle := d.attached.Load().handle
	if d.rarely.due {
		d.readSettings(handle)
	}
	modes := make(map[string]string)
	maps.Copy(modes, d.settings)
	if v, next, ret := handle.GetMigMode(); ret == nvml.SUCCESS {
		setMode(modes, "mig", v == nvml.DEVICE_MIG_ENABLE, next == nvml.DEVICE_MIG_ENABLE)
	}
	if slices.ContainsFunc(d.draft.processes, func(p model.GPUProcess) bool { return p.MPS }) {
		modes["mps"] = enabled(true) // not detectable without a client
	}
	if d.hasNUMA(d.draft.facts.PCIAddress) {
		modes["numa"] = enabled(true)
	}
	d.draft.facts.Modes = modes
}

// readSettings reads the other settings.
func (d *device) readSettings(handle nvml.Device) {
	d.settings = make(map[string]string)
	if v, ret := handle.GetComputeMode(); ret == nvml.SUCCESS && int(v) < len(computeModes) {
		d.settings["compute"] = computeModes[v]
	}
	if v, ret := handle.GetPersistenceMode(); ret == nvml.SUCCESS {
		d.settings["persistence"] = enabled(v == nvml.FEATURE_ENABLED)
	}
	if v, next, ret := handle.GetEccMode(); ret == nvml.SUCCESS {
		setMode(d.settings, "ecc", v == nvml.FEATURE_ENABLED, next == nvml.FEATURE_ENABLED)
	}
	d.draft.facts.PowerLimit = model.Optional{}
	if v, ret := handle.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		d.draft.facts.PowerLimit = model.Some(float64(v) / milli)
	}
}

var computeModes = [nvml.COMPUTEMODE_COUNT]string{
	nvml.COMPUTEMODE_DEFAULT:           "default",
	nvml.COMPUTEMODE_EXCLUSIVE_THREAD:  "exclusive_thread",
	nvml.COMPUTEMODE_PROHIBITED:        "prohibited",
	nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}

// setMode sets a mode, and the mode that the next reset of the GPU applies, if it is another one.
func setMode(modes map[string]string, name string, current, next bool) {
	modes[name] = enabled(current)
	if next != current {
		modes[name+"_pending"] = enabled(next)
	}
}

func enabled(v bool) string {
	if v {
		return "enabled"
	}
	return "disabled"
}
