// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// IntermediateState is a state that a driver, the kernel or the sensor reports until something is finished, and how
// long this may take.
type IntermediateState struct {
	Name   string // such as fabric
	Values string // in the words of the driver
	From   string // what reports the values
	// Normal is how long the state may last; 0 if it may last forever, for the reason in Means.
	Normal time.Duration
	Means  string     // what it means if the state lasts longer
	Found  *Condition // the condition if the state lasts longer, or nil

	// present calls add for each device that may be in the state, with the value. The value is empty outside of the
	// state, and works if the state proved harmless. present is nil if the condition measures the time (Condition.For).
	present func(s *model.Snapshot, add func(lingerKey, string))
}

// The names of the states whose time a Linger measures.
const (
	stateFabric   = "fabric"
	statePower    = "power"
	stateManager  = "fabric_manager"
	stateTraining = "training"
	stateDeferred = "deferred"
	stateLink     = "link"
)

// works is the value of a device that works although it is in the state. It ends the time before.
const works = "works"

// IntermediateStates are all such states that the sensor reads.
var IntermediateStates = []IntermediateState{
	{
		Name: stateFabric, Values: "not_started, in_progress",
		From: "`nvmlDeviceGetGpuFabricInfoV`, unused GPUs", Normal: 5 * time.Minute,
		Means: "nv-fabricmanager does not run or does not reach the GPU: CUDA fails with error 802; if it runs and reports " +
			"in_progress: `GPUFabricInProgress`",
		Found: fabricNotReady, present: fabricsOf,
	},
	{
		Name: stateManager, Values: "no process nv-fabricmanager", From: "`/proc/PID/stat`, nodes with NVSwitches",
		Normal: fabricManagerLost.For, Means: "no GPU can join the fabric: CUDA does not start after a reset",
		Found: fabricManagerLost, present: managerOf,
	},
	{
		Name: statePower, Values: "suspending, resuming", From: "`power/runtime_status`, AMD and Intel", Normal: time.Minute,
		Means: "the driver hangs in suspend or resume", Found: unhealthy, present: powerOf,
	},
	{
		Name: "rows", Values: "row_remap_pending, page_retire_pending", From: "NVML; bad pages of amdgpu (P)",
		Normal: memoryRepairPending.For, Means: "the GPU was not reset and uses bad memory", Found: memoryRepairPending,
	},
	{
		Name: "mode", Values: "mig_pending, ecc_pending", From: "`nvmlDeviceGetMigMode`, `nvmlDeviceGetEccMode`",
		Means: "an administrator changed it and decides when to reset; `gpu_mode` shows it",
	},
	{
		Name: "recovery", Values: "reset, reboot, drain_p2p, drain_and_reset", From: "`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`",
		Normal: recoveryAction.For, Means: "the requested action was not taken", Found: recoveryAction,
	},
	{
		Name: "driver", Values: "a GPU without a driver", From: "`/sys/bus/pci/devices/*/driver`", Normal: gpuGone.For,
		Means: "the driver refused the GPU", Found: gpuGone,
	},
	{
		Name: "port", Values: "INIT, ARMED", From: "`/sys/class/infiniband/*/ports/*/state`, InfiniBand", Normal: subnetManagerLost.For,
		Means: "no subnet manager configures the port", Found: subnetManagerLost,
	},
	{
		Name: stateDeferred, Values: "ACTIVE_DEFER", From: "`/sys/class/infiniband/*/ports/*/state`", Normal: linkTraining.For,
		Means: "the link of an active port failed and does not return", Found: linkTraining, present: deferredOf,
	},
	{
		Name: stateTraining, Values: "PortConfigurationTraining, LinkErrorRecovery, Phy Test",
		From: "`/sys/class/infiniband/*/ports/*/phys_state`", Normal: linkTraining.For,
		Means: "the other end answers, but the ends disagree", Found: linkTraining, present: trainingOf,
	},
	{
		Name: stateLink, Values: "link_training_failure, cmis_not_ready", From: "`ETHTOOL_A_LINKSTATE_EXT_STATE`", Normal: linkTraining.For,
		Means: "as above, or the transceiver does not start", Found: linkTraining, present: linkStatesOf,
	},
	{
		Name: "polling", Values: "Polling, Sleep, Disabled; no_partner_detected, no_cable",
		From:  "`phys_state`, `ETHTOOL_A_LINKSTATE_EXT_STATE`",
		Means: "normal without a cable; RDMAPortDown covers ports active within a day",
	},
	{
		Name: "carrier", Values: "down, dormant, testing, lowerlayerdown", From: "`/sys/class/net/*/operstate`",
		Means: "normal without a cable",
	},
	{
		Name: "queue pair", Values: "RESET, INIT, RTR, SQD", From: "`RDMA_NLDEV_ATTR_RES_STATE`",
		Means: "the program decides; RDMAQueuePairsStalled covers work requests that do not complete",
	},
	{
		Name: "source", Values: "stuck", From: "sensor, per source", Normal: sourceStuck.For,
		Means: "a call does not return", Found: sourceStuck,
	},
	{
		Name: "device", Values: "blocked, quarantined", From: "sensor, per device", Normal: deviceUnreadable.For,
		Means: "the device cannot be read", Found: deviceUnreadable,
	},
	{
		Name: "release", Values: "released", From: "sensor, source nvidia",
		Means: "it ends by itself, after 15 minutes or after `--for`",
	},
}

// withoutProcess reports whether no known process uses a GPU or a part of it.
func withoutProcess(s *model.Snapshot, g *model.GPU) bool {
	return !slices.ContainsFunc(s.GPUs, func(part model.GPU) bool {
		return (part.UUID == g.UUID || part.Parent == g.UUID) &&
			slices.ContainsFunc(s.GPUProcesses, func(p model.GPUProcess) bool { return p.GPU == part.UUID })
	})
}

// fabricsOf finds GPUs that are not registered. A process on a GPU shows that CUDA works on it.
func fabricsOf(s *model.Snapshot, add func(lingerKey, string)) {
	for i := range s.GPUs {
		g, value := &s.GPUs[i], ""
		if g.Fabric == "" {
			continue
		}
		switch {
		case !withoutProcess(s, g):
			value = works
		case g.Fabric != model.FabricCompleted:
			value = g.Fabric
		}
		add(lingerKey{uuid: g.UUID}, value)
	}
}

func managerOf(s *model.Snapshot, add func(lingerKey, string)) {
	switch {
	case s.FabricManager == nil:
	case s.FabricManager.Running:
		add(lingerKey{}, "")
	default:
		add(lingerKey{}, "no process nv-fabricmanager")
	}
}

func powerOf(s *model.Snapshot, add func(lingerKey, string)) {
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.Parent == "" {
			add(lingerKey{uuid: g.UUID}, g.PowerChange)
		}
	}
}

// portsIn returns a function that finds the ports in some states.
func portsIn(of func(*model.Port) string, states ...string) func(*model.Snapshot, func(lingerKey, string)) {
	return func(s *model.Snapshot, add func(lingerKey, string)) {
		for i := range s.HCAs {
			h := &s.HCAs[i]
			for k := range h.Ports {
				value := of(&h.Ports[k])
				if !slices.Contains(states, value) {
					value = ""
				}
				add(lingerKey{device: h.Name, port: h.Ports[k].Number}, value)
			}
		}
	}
}

var (
	deferredOf = portsIn(func(p *model.Port) string { return p.State }, "ACTIVE_DEFER")
	trainingOf = portsIn(func(p *model.Port) string { return p.PhysState }, "PortConfigurationTraining", "LinkErrorRecovery", "Phy Test")
)

// linkStatesOf finds ports whose driver reports why their link is down. A driver that reports nothing has not failed.
func linkStatesOf(s *model.Snapshot, add func(lingerKey, string)) {
	for i := range s.Links {
		l, value := &s.Links[i], ""
		if l.Phy != nil && slices.Contains(untrainedLinks, l.Phy.Reason) {
			value = l.Phy.Reason
		}
		if l.Phy != nil && l.Phy.Detail == unreadyModule {
			value = l.Phy.Detail
		}
		add(lingerKey{device: l.Device, port: l.Port, netdev: l.Netdev}, value)
	}
}
