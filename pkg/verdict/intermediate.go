// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// IntermediateState is a state that a driver, the kernel or the sensor reports until something is finished, and how long that may take.
type IntermediateState struct {
	Name   string // fabric
	Values string // in the words of the driver
	From   string // where they are read
	// Normal is how long the state may last; 0 if it may last for ever, for the reason in Means.
	Normal time.Duration
	Means  string     // what it means if it lasts for longer
	Found  *Condition // the condition that is found then; nil if there is none

	// present calls add for each device that may be in the state, with the value, which is empty if the device is not in the state, and
	// works if something shows that the state did no harm.
	// Nil where the condition has the time itself (Condition.For).
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

// works is in place of the value of a device that does what it does not do in the state: what was before does not count.
const works = "works"

// IntermediateStates are all states of this kind that the sensor reads.
var IntermediateStates = []IntermediateState{
	{
		Name: stateFabric, Values: "not_started, in_progress",
		From: "`nvmlDeviceGetGpuFabricInfoV`, of GPUs without a process", Normal: 5 * time.Minute,
		Means: "the fabric manager does not run or does not reach the GPU: CUDA fails with error 802; `GPUFabricInProgress` while it " +
			"runs and says in_progress",
		Found: fabricNotReady, present: fabricsOf,
	},
	{
		Name: stateManager, Values: "no process nv-fabricmanager", From: "`/proc/PID/stat`, on nodes with NVSwitches",
		Normal: fabricManagerLost.For, Means: "no GPU can join the fabric, and CUDA does not start after the next reset",
		Found: fabricManagerLost, present: managerOf,
	},
	{
		Name: statePower, Values: "suspending, resuming", From: "`power/runtime_status` of AMD and Intel GPUs", Normal: time.Minute,
		Means: "the driver hangs while it suspends or wakes the GPU", Found: unhealthy, present: powerOf,
	},
	{
		Name: "rows", Values: "row_remap_pending, page_retire_pending", From: "NVML; the bad pages of amdgpu (P)",
		Normal: memoryRepairPending.For, Means: "the GPU was not reset since, and goes on with bad memory", Found: memoryRepairPending,
	},
	{
		Name: "mode", Values: "mig_pending, ecc_pending", From: "`nvmlDeviceGetMigMode`, `nvmlDeviceGetEccMode`",
		Means: "an administrator has changed it, and decides when the GPU is reset; `gpu_mode` shows it",
	},
	{
		Name: "recovery", Values: "reset, reboot, drain_p2p, drain_and_reset", From: "`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`",
		Normal: recoveryAction.For, Means: "nobody has done what the driver asks for", Found: recoveryAction,
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
		Means: "the link of an active port has failed and does not come back", Found: linkTraining, present: deferredOf,
	},
	{
		Name: stateTraining, Values: "PortConfigurationTraining, LinkErrorRecovery, Phy Test",
		From: "`/sys/class/infiniband/*/ports/*/phys_state`", Normal: linkTraining.For,
		Means: "the other end answers, and both ends do not agree on a link", Found: linkTraining, present: trainingOf,
	},
	{
		Name: stateLink, Values: "link_training_failure, cmis_not_ready", From: "`ETHTOOL_A_LINKSTATE_EXT_STATE`", Normal: linkTraining.For,
		Means: "the same; or the transceiver does not start", Found: linkTraining, present: linkStatesOf,
	},
	{
		Name: "polling", Values: "Polling, Sleep, Disabled; no_partner_detected, no_cable",
		From:  "`phys_state`, `ETHTOOL_A_LINKSTATE_EXT_STATE`",
		Means: "a port without a cable stays so; RDMAPortDown is for those that were active within a day",
	},
	{
		Name: "carrier", Values: "down, dormant, testing, lowerlayerdown", From: "`/sys/class/net/*/operstate`",
		Means: "as of a port without a cable",
	},
	{
		Name: "queue pair", Values: "RESET, INIT, RTR, SQD", From: "`RDMA_NLDEV_ATTR_RES_STATE`",
		Means: "the program decides; RDMAQueuePairsStalled is for those with work requests that do not complete",
	},
	{
		Name: "source", Values: "stuck", From: "the sensor, of a source", Normal: sourceStuck.For,
		Means: "a call does not return", Found: sourceStuck,
	},
	{
		Name: "device", Values: "blocked, quarantined", From: "the sensor, of a device", Normal: deviceUnreadable.For,
		Means: "the device cannot be read", Found: deviceUnreadable,
	},
	{
		Name: "release", Values: "released", From: "the sensor, of the source nvidia",
		Means: "it ends by itself: after 15 minutes, or after what `--for` says",
	},
}

// withoutProcess reports whether no process uses a GPU or a part of it, as far as is known.
func withoutProcess(s *model.Snapshot, g *model.GPU) bool {
	return !slices.ContainsFunc(s.GPUs, func(part model.GPU) bool {
		return (part.UUID == g.UUID || part.Parent == g.UUID) &&
			slices.ContainsFunc(s.GPUProcesses, func(p model.GPUProcess) bool { return p.GPU == part.UUID })
	})
}

// fabricsOf finds GPUs that are not registered. A process that uses one shows that CUDA works on it.
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

// linkStatesOf finds ports whose driver says why their link is down. A driver that says nothing has not failed.
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
