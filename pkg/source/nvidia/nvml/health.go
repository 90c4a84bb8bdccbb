// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"slices"

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
	if h.inforom { // the driver reports it only as an error of other calls
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
		// A critical XID of an instance affects the whole chip.
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
