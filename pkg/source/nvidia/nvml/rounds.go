// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// roundReader reads the values of a round. Its steps need an attachment.
type roundReader struct {
	*attachment
	o       wire.Options
	health  *health
	sampler *sampler
	xids    *xidWatch
	listed  func(wire.Listing) // called with new processes before they are published; may be nil
	// instances is what is read from MIG instances, mig whether MIG is enabled.
	instances wire.Instances
	mig       atomic.Bool

	draft    roundResult // of the round in progress
	parts    []part
	slow     error // why the last listing of processes failed
	rarely   rarely
	settings map[string]string // as of the last slow round
	fields   fieldReader
	values   fieldValues // of the round in progress, read at valuesAt
	valuesAt time.Time
	links    linkReader
	listedAt time.Time // the last reportUse
}

// roundResult is the result of a round. It is published as a whole, so that the memory of a device and of its processes
// belong to the same moment.
type roundResult struct {
	facts     model.GPU
	parts     []model.GPU
	bare      []model.GPU        // instances that have only GPM counters, see wire.GPMOnly
	processes []model.GPUProcess // nil if not listed
}

func (r *roundReader) readFields() {
	wanted := roundFields
	if r.rarely.due {
		r.fields.retry()
		wanted = slices.Concat(wanted, slowFields)
	}
	r.values = r.fields.read(r.handle, slices.Concat(wanted, r.links.fields(r.handle, r.rarely.due)))
	r.valuesAt = time.Now()
}

func (r *roundReader) readSlowly() {
	handle, g := r.handle, &r.draft.facts
	readCounters(handle, r.values, g, r.rarely.due)
	if g.Energy.Known {
		g.EnergyRead = r.valuesAt
	}
	if r.rarely.due {
		slowly(handle, r.values, g)
	}
}

// receives and transmits block for 20 ms each while the driver measures, on chips without GPM.
func (r *roundReader) receives() {
	r.draft.facts.PCIe.Receive = r.pcieRate(ratePCIeReceive, nvml.PCIE_UTIL_RX_BYTES)
}

func (r *roundReader) transmits() {
	r.draft.facts.PCIe.Transmit = r.pcieRate(ratePCIeTransmit, nvml.PCIE_UTIL_TX_BYTES)
}

// pcieRate returns the rate of GPM since the previous round. On chips without GPM it returns the rate of the driver's
// sample.
func (r *roundReader) pcieRate(name string, counter nvml.PcieUtilCounter) model.Optional {
	for _, f := range r.sampler.rates {
		if f.Name == name {
			return model.Some(f.Value)
		}
	}
	if r.sampler.gpm.first {
		return model.Optional{}
	}
	return throughput(r.handle, counter)
}

func (r *roundReader) readLinks() {
	g := &r.draft.facts
	g.Links = r.links.read(r.handle, r.values, r.rarely.due)
	g.LinkErrors, g.LinkPayload = r.links.totals, r.links.rate(r.values, r.valuesAt)
	g.Rates = slices.DeleteFunc(slices.Clone(r.sampler.rates), func(f model.Figure) bool {
		return f.Name == ratePCIeReceive || f.Name == ratePCIeTransmit
	})
}

func (r *roundReader) readParts() {
	r.mig.Store(r.draft.facts.Modes["mig"] == "enabled")
	if r.instances == wire.GPMOnly && r.mig.Load() {
		r.parts, r.draft.parts = instancesOf(r.o, r.draft.facts), nil
		r.xids.split(r.uuid, r.parts)
		return
	}
	r.draft.bare = nil
	if parts, facts, ok := partsOf(r.o, r.handle, r.draft.facts); ok {
		r.parts, r.draft.parts = parts, facts
		r.xids.split(r.uuid, parts)
	}
	for i, p := range r.parts {
		if firstOfInstance(p, r.parts) {
			r.draft.parts[i].Errors = eccErrors(p.handle) // other values belong to the whole GPU
		}
	}
}

// readProcesses also reads the memory and engines that processes share, so that all belong to the same moment.
func (r *roundReader) readProcesses() {
	a, g, now := r.attachment, &r.draft.facts, time.Now()
	engines := r.sampler.engines(a.handle, r.parts)
	if r.instances == wire.GPMOnly && r.mig.Load() {
		r.draft.bare, r.draft.processes, r.sampler.uses = nil, nil, nil
		for _, p := range r.parts {
			r.draft.bare = append(r.draft.bare, model.GPU{Parent: a.uuid, Instance: strconv.Itoa(p.gpuInstance), Engines: engines[p.uuid]})
		}
		g.Engines, g.Memory, g.Unlisted, r.slow = r.sampler.whole(a.handle), model.VideoMemory{}, true, nil
		r.reportUse()
		return
	}
	g.Memory = memory(a.handle)
	for i, p := range r.parts {
		if firstOfInstance(p, r.parts) {
			r.draft.parts[i].Memory = memory(p.handle)
		}
		r.draft.parts[i].Engines = engines[p.uuid]
	}
	r.draft.processes, g.Engines, r.slow = r.sampler.list(a.handle, a.uuid, r.parts, now)
	r.reportUse()
	g.Unlisted, g.Listed = r.draft.processes == nil, now
	for i := range r.parts {
		r.draft.parts[i].Unlisted, r.draft.parts[i].Listed = g.Unlisted, now
	}
}

// readHealth reads the state of memory repairs, in slow rounds, and of the PCIe link.
func (r *roundReader) readHealth() {
	handle := r.handle
	if r.rarely.due {
		readRemappedRows(handle, &r.draft.facts, r.health)
		r.health.retirePending = nil
		if v, ret := handle.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS {
			pending := v == nvml.FEATURE_ENABLED
			r.health.retirePending = &pending
		}
		r.health.sram = sramThreshold(handle)
		f := fabric(handle)
		r.draft.facts.Fabric, r.draft.facts.FabricCluster, r.draft.facts.FabricClique = f.state, f.cluster, f.clique
		r.health.fabric = f.unhealthy
	}
	r.draft.facts.RecoveryAction = actionOf(r.values.count(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0))
	r.readPCIe(handle)
}

// readPCIe reads the PCIe generation and width: the current values, and the maximum that GPU and slot support together.
// If the GPU is not behind PCIe, it ignores the driver's placeholders.
func (r *roundReader) readPCIe(handle nvml.Device) {
	if r.draft.facts.OffPCIe {
		return
	}
	link := &r.draft.facts.PCIe
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
		if f.constant && !r.rarely.due {
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
		r.health.narrow = nil
		return
	}
	narrow := width.Value < most.Value
	if narrow {
		if use, ret := handle.GetUtilizationRates(); ret == nvml.SUCCESS && use.Gpu == 0 {
			if r.health.narrow != nil {
				return // an idle GPU may switch off unused lanes
			}
			narrow = false
		}
	}
	r.health.narrow = &narrow
}

// readModes reads settings that an administrator can change at any time: the MIG mode in every round, as the instances
// depend on it, other modes in slow rounds.
func (r *roundReader) readModes() {
	handle := r.handle
	if r.rarely.due {
		r.readSettings(handle)
	}
	modes := make(map[string]string)
	maps.Copy(modes, r.settings)
	if v, next, ret := handle.GetMigMode(); ret == nvml.SUCCESS {
		setMode(modes, "mig", v == nvml.DEVICE_MIG_ENABLE, next == nvml.DEVICE_MIG_ENABLE)
	}
	if slices.ContainsFunc(r.draft.processes, func(p model.GPUProcess) bool { return p.MPS }) {
		modes["mps"] = enabled(true) // shown only while it has a client
	}
	if hasNUMA(r.o.Procfs, r.draft.facts.PCIAddress) {
		modes["numa"] = enabled(true)
	}
	r.draft.facts.Modes = modes
}

func (r *roundReader) readSettings(handle nvml.Device) {
	r.settings = make(map[string]string)
	if v, ret := handle.GetComputeMode(); ret == nvml.SUCCESS && int(v) < len(computeModes) {
		r.settings["compute"] = computeModes[v]
	}
	if v, ret := handle.GetPersistenceMode(); ret == nvml.SUCCESS {
		r.settings["persistence"] = enabled(v == nvml.FEATURE_ENABLED)
	}
	if v, next, ret := handle.GetEccMode(); ret == nvml.SUCCESS {
		setMode(r.settings, "ecc", v == nvml.FEATURE_ENABLED, next == nvml.FEATURE_ENABLED)
	}
	r.draft.facts.PowerLimit = model.Optional{}
	if v, ret := handle.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		r.draft.facts.PowerLimit = model.Some(float64(v) / milli)
	}
}

var computeModes = [nvml.COMPUTEMODE_COUNT]string{
	nvml.COMPUTEMODE_DEFAULT:           "default",
	nvml.COMPUTEMODE_EXCLUSIVE_THREAD:  "exclusive_thread",
	nvml.COMPUTEMODE_PROHIBITED:        "prohibited",
	nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}

// setMode sets a mode. If the next reset of the GPU applies another mode, it adds that mode.
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
