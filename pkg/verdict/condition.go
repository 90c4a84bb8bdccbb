// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// Condition is the definition of one condition. Where an alert of deploy/prometheus/rules/alerts.yaml has the same name, it has the
// same severity and the same numbers, which a test compares.
type Condition struct {
	Name     string
	Severity Severity
	Summary  string // what it means, in one sentence
	// Thresholds are the limits that a value has to exceed, or for Below to fall below. Empty for a state.
	Thresholds []Threshold
	// Window is how far back values count; 0 for a state.
	Window time.Duration
	// For is how long the condition has to hold until the alert fires. A verdict is shown at once, but for those with the severity Info,
	// which are shown after this time.
	For time.Duration
	// Source is where the numbers come from.
	Source string
	// Words are labels of the alert with the words of closed lists that decide, in any order.
	Words map[string][]string
	// Unless are conditions that cause this one: while the subject has one of them, this one is no verdict.
	Unless []*Condition
	// NoAlert is why there is no alert of this name; empty if there is one.
	NoAlert string
}

// Threshold is one limit.
type Threshold struct {
	Of    string // what is compared
	Value float64
	Unit  string
	Below bool // the value has to be below the limit
	Equal bool // the limit itself is too much
}

// limit returns the value of the threshold with a number.
func (c *Condition) limit(n int) float64 { return c.Thresholds[n].Value }

const runbooks = "https://github.com/accelscope/accelscope/blob/main/deploy/prometheus/runbooks/"

const page = "https://github.com/accelscope/accelscope/blob/main/docs/verdicts.md"

// Runbook returns the address of the runbook of an alert.
func Runbook(alert string) string { return runbooks + alert + ".md" }

// Runbook returns the address of the runbook of the alert, or of the page of verdicts for a condition without an alert.
func (c *Condition) Runbook() string {
	if c.NoAlert != "" {
		return page
	}
	return Runbook(c.Name)
}

const (
	hour = time.Hour
	day  = 24 * time.Hour
	week = 7 * day
)

// Conditions of ports.
var (
	portDown = &Condition{
		Name: "RDMAPortDown", Severity: Critical, Window: day, For: 4 * time.Minute,
		Summary:    "The port was active within the last day and is not any more: connections over it hang or have failed.",
		Thresholds: []Threshold{{Of: "time since the port was active", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "a port without a cable was never active, and one that was taken out of use is no news after a day",
	}
	portDisabled = &Condition{
		Name: "RDMAPortDisabled", Severity: Info, Window: day, For: 10 * time.Minute,
		Summary:    "The network interface of the port was set down on the node within the last day, and the port with it.",
		Thresholds: []Threshold{{Of: "time since the interface was administratively up", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "an administrator or a program did it; the link itself has no fault",
	}
	bondDegraded = &Condition{
		Name: "RDMABondDegraded", Severity: Warning, Window: day, For: 4 * time.Minute,
		Summary:    "A leg of the bond that the port is on has lost its carrier: a part of the rate is gone, or the redundancy.",
		Thresholds: []Threshold{{Of: "time since the leg had a carrier", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "the port itself stays active; a leg that was never connected is no news",
	}
	hcaGone = &Condition{
		Name: "RDMADeviceGone", Severity: Critical, For: 5 * time.Minute,
		Summary:    "An HCA that the node had is not there any more: what used it has failed, and the next job has fewer rails.",
		Thresholds: []Threshold{{Of: "time since Prometheus had it, without an inventory", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "the inventory of the node; accelscope inventory accept ends it",
	}
	linkDegraded = &Condition{
		Name: "RDMALinkDegraded", Severity: Warning, Window: week, For: 10 * time.Minute,
		Summary:    "The link has fewer lanes or a lower speed than equal boards of the node have, or than it had within a week.",
		Thresholds: []Threshold{{Of: "rate, as a part of that of equal ports or of its own", Value: 1, Below: true}},
		Source:     "the kernel does not report the highest rate of a link",
	}
	linkUnstable = &Condition{
		Name: "RDMALinkUnstable", Severity: Warning, Window: hour, For: 5 * time.Minute,
		Summary: "The link went down or recovered several times in an hour, or in 12 hours: each time traffic stops, and queue pairs " +
			"may fail.",
		Thresholds: []Threshold{
			{Of: "link_downed", Value: 1.5, Unit: "in 1h"},
			{Of: "link_error_recovery", Value: 2.5, Unit: "in 1h"},
			{Of: "losses of the carrier", Value: 2.5, Unit: "in 12h"},
		},
		Source: "a healthy link does neither; once may be maintenance",
	}
	flapping     = &Condition{Name: linkUnstable.Name, Window: 12 * hour} // the longer window of linkUnstable
	symbolErrors = &Condition{
		Name: "RDMASymbolErrors", Severity: Warning, Window: hour, For: 5 * time.Minute,
		Summary:    "The port receives more symbols with errors than the InfiniBand specification allows.",
		Thresholds: []Threshold{{Of: "symbol_error", Value: 120, Unit: "in 1h"}},
		Source:     "InfiniBand: one bit of 10^12, about 120 an hour on a QDR link",
		Unless:     []*Condition{linkUnstable},
	}
	packetErrors = &Condition{
		Name: "RDMAPacketErrors", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary:    "Received packets have errors, while the link itself reports no problem.",
		Thresholds: []Threshold{{Of: "port_rcv_errors, as a part of port_rcv_packets", Value: 1e-6}},
		Source:     "a bit error rate of 10^-12 corrupts one packet of 4 KiB in 30 million (3e-8)",
		Unless:     []*Condition{linkUnstable, symbolErrors},
	}
	counterSaturated = &Condition{
		Name: "RDMAErrorCounterSaturated", Severity: Info, For: hour,
		Summary: "A counter of the port is at its highest value and does not increase any more.",
		Source:  "the counters have 4, 8, 16 and 32 bits (InfiniBand: PortCounters): 15, 255, 65535 and 4294967295",
	}
	congestion = &Condition{
		Name: "RDMACongestion", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary: "Switches mark many of the packets that this port receives (ECN): its senders are slowed down.",
		Thresholds: []Threshold{
			{Of: "packets with a mark, as a part of those received", Value: 0.05}, {Of: "packets with a mark", Value: 100, Unit: "/s"},
		},
		Source: "a limit of ours; a well-controlled queue marks less than one packet in a hundred",
	}
	congestionIgnored = &Condition{
		Name: "RDMACongestionIgnored", Severity: Warning, Window: 15 * time.Minute, For: 15 * time.Minute,
		Summary:    "Receivers request that the port slows down, and it does not: other senders get less.",
		Thresholds: []Threshold{{Of: "congestion notifications (CNP) ignored", Value: 1, Unit: "/s"}},
		Source:     "a limit of ours; with congestion control a port ignores none",
	}
	outOfBuffer = &Condition{
		Name: "RDMAOutOfBuffer", Severity: Warning, Window: 5 * time.Minute, For: 10 * time.Minute,
		Summary:    "Packets find no receive buffer: a program posts too few receives, or too late.",
		Thresholds: []Threshold{{Of: "packets without a buffer", Value: 10, Unit: "/s"}},
		Source:     "a limit of ours; normally there are none",
	}
	retransmissions = &Condition{
		Name: "RDMARetransmissions", Severity: Warning, Window: 5 * time.Minute, For: 10 * time.Minute,
		Summary:    "Packets to or from the port are lost.",
		Thresholds: []Threshold{{Of: "lost packets: sent again, or gaps and timeouts", Value: 10, Unit: "/s"}},
		Source:     "a limit of ours; InfiniBand, and RoCE with flow control, lose no packets",
	}
	rdmaFault = &Condition{
		Name: "RDMAFault", Severity: Warning, Window: hour,
		Summary: "The driver of the HCA logged a fault within the last hour; " +
			"/api/v1/faults has the text.",
		Thresholds: []Threshold{{Of: "time since the fault", Value: hour.Seconds(), Unit: "s", Below: true}},
		Source:     "drivers log these faults once, so they count for a while",
		Words:      map[string][]string{"code": join(harmlessFaults, functionFaults, otherAlertFaults)},
	}
)

// Conditions of GPUs.
var (
	gpuLost = &Condition{
		Name: "GPULost", Severity: Critical, For: 2 * time.Minute,
		Summary: "The GPU fell off the bus, a call into its driver does not return, or the driver reports errors in place of its values: " +
			"processes on it have failed or hang.",
		Source: "a state of the driver", Words: map[string][]string{"problem": lostProblems},
	}
	gpuGone = &Condition{
		Name: "GPUGone", Severity: Critical, For: 10 * time.Minute,
		Summary: "A GPU that the node had is not listed any more, or the kernel lists one without a driver: the next job has fewer GPUs.",
		Source:  "the inventory of the node; accelscope inventory accept ends it",
	}
	fabricNotReady = &Condition{
		Name: "GPUFabricNotReady", Severity: Critical,
		Summary: "The GPU has not joined the NVLink fabric, and no process uses it: the fabric manager (nv-fabricmanager) does not run " +
			"or does not reach it, and CUDA fails with error 802.",
		Source: "docs/verdicts.md: intermediate states",
		Words:  map[string][]string{"problem": join(notReadyProblems, askingProblems), "state": {model.FabricInProgress}},
	}
	fabricInProgress = &Condition{
		Name: "GPUFabricInProgress", Severity: Warning,
		Summary: "The fabric manager (nv-fabricmanager) runs, and has not brought the GPU into the NVLink fabric, and no process uses " +
			"the GPU: it belongs to no active partition (shared NVSwitches), or CUDA fails with error 802.",
		Source: "NVIDIA/gpu-driver-container#909: with FABRIC_MODE=1 GPUs wait so for a partition",
		Words:  map[string][]string{"problem": join(notReadyProblems, askingProblems), "state": {model.FabricInProgress}},
	}
	fabricManagerLost = &Condition{
		Name: "GPUFabricManagerLost", Severity: Critical, Window: hour, For: 2 * time.Minute,
		Summary: "The node has NVSwitches, and the fabric manager (nv-fabricmanager) does not run, or is started again and again: GPUs " +
			"that are reset do not join the NVLink fabric.",
		Thresholds: []Threshold{{Of: "starts of nv-fabricmanager", Value: 2.5, Unit: "in 1h"}},
		Source:     "docs/verdicts.md: intermediate states; once or twice may be maintenance",
	}
	recoveryAction = &Condition{
		Name: "GPURecoveryAction", Severity: Critical,
		Summary: "The driver itself asks for an action after a fault of the hardware or its firmware.",
		Source:  "a state of the driver", Words: map[string][]string{"action": {"none", "reboot"}},
	}
	xidCritical = &Condition{
		Name: "GPUXidCritical", Severity: Critical,
		Summary: "The GPU reported an XID that the hardware or its firmware causes, and no program: it needs a reset or an inspection.",
		Source:  "NVIDIA's catalog of XIDs", Words: map[string][]string{"xid": criticalXIDs, "problem": {"xid"}},
	}
	xidNoncritical = &Condition{
		Name: "GPUXidNoncritical", Severity: Info, Window: 10 * time.Minute,
		Summary:    "The GPU reported an XID that programs usually cause; others may be the first sign of a failing GPU.",
		Thresholds: []Threshold{{Of: "time since the XID", Value: 600, Unit: "s", Below: true}},
		Source:     "an error of a program is over when the program has ended",
		Words:      map[string][]string{"xid": append(slices.Clip(criticalXIDs), recoveredXID)},
	}
	gpuFault = &Condition{
		Name: "GPUFault", Severity: Critical, Window: hour,
		Summary: "The driver of the GPU or NVSwitch logged a fault of the hardware or its firmware within the last hour; " +
			"/api/v1/faults has the text.",
		Thresholds: []Threshold{{Of: "time since the fault", Value: hour.Seconds(), Unit: "s", Below: true}},
		Source:     "drivers log these faults once, so they count for a while; where the driver says fatal or nonfatal, that decides",
		Words: map[string][]string{
			"code": gpuFaults, "problem": {"xid", "lost"}, "severity": {string(model.FaultFatal), string(model.FaultNonfatal)},
			"driver": {string(model.DriverNVIDIA), string(model.DriverNVSwitch)},
		},
	}
	driverStuck = &Condition{
		Name: "GPUDriverStuck", Severity: Warning,
		Summary:    "A task does not return from an ioctl of a GPU driver; /api/v1/gpu-driver-tasks lists it and those behind it.",
		Thresholds: []Threshold{{Of: "age of the oldest ioctl", Value: 300, Unit: "s"}},
		Source:     "a limit of ours; requests that wait on purpose do not count",
	}
	memoryFailing = &Condition{
		Name: "GPUMemoryFailing", Severity: Critical,
		Summary: "The memory of the GPU cannot be repaired any more: the GPU is to be replaced.",
		Source:  "a state of the driver", Words: map[string][]string{"problem": failingProblems},
	}
	memoryRepairPending = &Condition{
		Name: "GPUMemoryRepairPending", Severity: Warning, For: 5 * time.Minute,
		Summary: "Bad memory of the GPU is repaired at its next reset, and in use until then.",
		Source:  "a state of the driver", Words: map[string][]string{"problem": join(pendingProblems, failingProblems, askingProblems)},
	}
	uncorrectedECC = &Condition{
		Name: "GPUUncorrectedECC", Severity: Warning,
		Summary: "The GPU has had uncorrected ECC errors since its driver was loaded: processes were killed, or computed with wrong data.",
		Source:  "a state of the driver",
		Words:   map[string][]string{"problem": join(eccProblems, pendingProblems, failingProblems, askingProblems)},
	}
	thermalSlowdown = &Condition{
		Name: "GPUThermalSlowdown", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The hardware of the GPU slows itself down because of heat.",
		Thresholds: []Threshold{{Of: "time that it is slowed down, as a part of 15m", Value: 0.1}},
		Source:     "short slowdowns at the start of a load are normal", Words: map[string][]string{"problem": thermalProblems},
	}
	powerBrake = &Condition{
		Name: "GPUPowerBrake", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The GPU is slowed down from outside: the power supply or the power management of the rack requests it.",
		Thresholds: []Threshold{{Of: "time that it is slowed down, as a part of 15m", Value: 0.1}},
		Source:     "as for heat", Words: map[string][]string{"problem": brakeProblems},
	}
	unhealthy = &Condition{
		Name: "GPUUnhealthy", Severity: Warning, For: 10 * time.Minute,
		Summary: "The GPU has a problem that no other condition names: a link that is down, a PCIe link with fewer lanes, " +
			"a corrupted InfoROM.",
		Source: "a state of the driver", Words: map[string][]string{"problem": namedProblems},
	}
	memoryUnowned = &Condition{
		Name: "GPUMemoryUnowned", Severity: Info, For: 30 * time.Minute,
		Summary:    "Memory of the GPU belongs to no known process: one that ended did not free it, or the sensor cannot see the process.",
		Thresholds: []Threshold{{Of: "memory without an owner, as a part of all", Value: 0.1}},
		Source:     "a limit of ours",
		Words:      map[string][]string{"mode": {"numa"}},
	}
)

// Conditions of workloads.
var (
	queuePairsStalled = &Condition{
		Name: "RDMAQueuePairsStalled", Severity: Warning, For: 5 * time.Minute,
		Summary:    "Work requests of the workload are outstanding and nothing completes: a transfer is stalled.",
		Thresholds: []Threshold{{Of: "queue pairs", Value: 0}},
		Source:     "--rdma.stall-after is the time without a completion",
	}
	completionErrors = &Condition{
		Name: "RDMACompletionErrors", Severity: Warning, Window: 10 * time.Minute,
		Summary:    "Work requests of the workload end with an error, after which their queue pair is unusable.",
		Thresholds: []Threshold{{Of: "completions with an error", Value: 0, Unit: "in 10m"}},
		Source:     "most libraries end the job at the first one", Words: map[string][]string{"status": harmlessStatus},
	}
	verbsErrors = &Condition{
		Name: "RDMAVerbsErrors", Severity: Warning, Window: 15 * time.Minute,
		Summary:    "Verbs of the workload fail; failures of libraries that probe for features are not counted.",
		Thresholds: []Threshold{{Of: "failed verbs", Value: 5.5, Unit: "in 15m"}},
		Source:     "a few failures at the start of a program are normal",
		Words:      map[string][]string{"errno": harmlessErrnos, "verb": {"query_.*", "async_event", "poll_cq"}},
	}
	allocationFailures = &Condition{
		Name: "GPUAllocationFailures", Severity: Warning, Window: 15 * time.Minute, For: 30 * time.Minute,
		Summary:    "Allocations of GPU memory by the workload fail for lack of memory.",
		Thresholds: []Threshold{{Of: "failed allocations", Value: 0, Unit: "in 15m"}},
		Source:     "a program that frees a cache and tries again is slow, others end with an error",
	}
	rdmaIdle = &Condition{
		Name: "RDMAAllocatedIdle", Severity: Info, Window: 30 * time.Minute, For: 90 * time.Minute,
		Summary:    "An HCA is allocated to the workload, and for two hours it had no queue pair on it.",
		Thresholds: []Threshold{{Of: "queue pairs and DEVX objects", Value: 0}},
		Source:     "pauses of jobs are shorter", Words: map[string][]string{"type": {"qp", "devx_obj"}},
	}
	gpuIdle = &Condition{
		Name: "GPUAllocatedIdle", Severity: Info, Window: 30 * time.Minute, For: 90 * time.Minute,
		Summary:    "A GPU is allocated to the workload, and for two hours the workload did not use it.",
		Thresholds: []Threshold{{Of: "busiest engine", Value: 0.01}, {Of: "processes, if the driver reports no engines", Value: 0}},
		Source:     "pauses of jobs are shorter, and drivers round to percents",
	}
	placedBadly = &Condition{
		Name: "WorkloadPlacedBadly", Severity: Info, For: 15 * time.Minute,
		Summary: "An HCA of the workload is far from its GPU, while a nearer one exists.",
		Source:  "docs/placement.md", Words: map[string][]string{"problem": {placement.ProblemNUMA, placement.ProblemSwitch}},
	}
	withoutGPUDirect = &Condition{
		Name: "WorkloadWithoutGPUDirect", Severity: Info, For: 30 * time.Minute,
		Summary: "The workload has GPUs and HCAs, and does not use GPUDirect, or not all of its rails.",
		Source:  "docs/placement.md", Words: map[string][]string{"problem": {placement.ProblemDirect, placement.ProblemRails}},
	}
	dataDirectPath = &Condition{
		Name: "WorkloadDataDirectPath", Severity: Info, For: 15 * time.Minute,
		Summary: "The workload uses GPUDirect, and ACS redirects transfers between its GPU and the Data Direct function of its HCA.",
		Source:  "docs/placement.md", Words: map[string][]string{"problem": {placement.ProblemPath}},
		NoAlert: "accelscope_placement_problem has it, and a node that is set up wrongly was so from its start",
	}
	coverageGap = &Condition{
		Name: "RDMACoverageGap", Severity: Info, For: 5 * time.Minute,
		Summary: "Not all bytes that the workload moves over the HCA are counted.",
		Source:  "gaps that the configuration chooses (off, not_selected), surveys (survey) and idle queues (direct_wqe) do not count",
		NoAlert: "container_rdma_datapath_coverage has the reasons; AccelscopeUnattributedHigh is the alert for what they amount to",
	}
)

// Conditions of the sensor.
var (
	sourceLost = &Condition{
		Name: "AccelscopeSourceLost", Severity: Warning, Window: day, For: 15 * time.Minute,
		Summary:    "A source of the sensor fails, or worked within the last day: what it reports is missing, and is not judged.",
		Thresholds: []Threshold{{Of: "time since an absent or unsupported source worked", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "what a node never had is not missing",
	}
	sourceStuck = &Condition{
		Name: "AccelscopeSourceStuck", Severity: Warning, For: 5 * time.Minute,
		Summary: "A call of a source into the kernel, a driver or a daemon does not return. Other sources go on.",
		Source:  "a state of the sensor",
	}
	deviceUnreadable = &Condition{
		Name: "AccelscopeDeviceUnreadable", Severity: Warning, For: 15 * time.Minute,
		Summary: "The sensor cannot read a device, a socket or a part: what it reports is missing or old.",
		Source:  "a state of the sensor; a GPU that is lost has GPULost", Words: map[string][]string{"problem": lostProblems},
	}
	hooksLost = &Condition{
		Name: "AccelscopeHooksLost", Severity: Warning, Window: hour, For: 10 * time.Minute,
		Summary: "The kernel rejects hooks of the sensor: verbs, objects or opens are not counted.",
		Source:  "a state of the sensor",
	}
	losing = &Condition{
		Name: "AccelscopeLosing", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The sensor loses data: counters of workloads are too low.",
		Thresholds: []Threshold{{Of: "events that were not recorded", Value: 0, Unit: "in 15m"}},
		Source:     "each one is missing", Words: map[string][]string{"reason": {".*_share"}},
	}
	mapNearlyFull = &Condition{
		Name: "AccelscopeMapNearlyFull", Severity: Info, For: 15 * time.Minute,
		Summary:    "A BPF map of the sensor is nearly full: when it is full, new entries are lost.",
		Thresholds: []Threshold{{Of: "entries, as a part of the capacity", Value: 0.9}},
		Source:     "a limit of ours",
	}
	budgetExceeded = &Condition{
		Name: "AccelscopeBudgetExceeded", Severity: Warning, For: 10 * time.Minute,
		Summary:    "Probes take more CPU time of the workload than the budget allows.",
		Thresholds: []Threshold{{Of: "CPU time, as a multiple of --rdma.datapath-budget", Value: 1.5}},
		Source:     "surveys should keep them below",
	}
	eventsLost = &Condition{
		Name: "AccelscopeEventsLost", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "Events did not reach the OpenTelemetry Collector: it is unreachable, refuses them, or is too slow.",
		Thresholds: []Threshold{{Of: "events", Value: 0, Unit: "in 15m"}},
		Source:     "each one is missing",
	}
	nothingWrong = &Condition{
		Name: "NothingWrong", Severity: OK,
		Summary: "No other condition holds.",
		Source:  "the conditions above",
		NoAlert: "it is the absence of alerts",
	}
)

// Conditions are all conditions, in the order in which they are judged: the worst first.
var Conditions = []*Condition{
	hcaGone, portDown, subnetManagerLost, pauseStorm, gpuGone, gpuLost, fabricNotReady, fabricManagerLost,
	recoveryAction, xidCritical, gpuFault, memoryFailing,

	linkTraining, linkUnstable, linkDegraded, bondDegraded, symbolErrors, packetErrors, uncorrectableBlocks, bitErrors, moduleGone,
	moduleAlarm, rdmaFault, outOfBuffer, retransmissions, congestion, congestionIgnored, gidMissing, pcieDegraded, pcieErrors,
	belowLineRate, gpuPCIeErrors, gpuPCIeSlow,
	fabricInProgress, uncorrectedECC, memoryRepairPending, thermalSlowdown, powerBrake, unhealthy, driverStuck,
	queuePairsStalled, completionErrors, verbsErrors, allocationFailures,
	sourceLost, sourceStuck, deviceUnreadable, hooksLost, losing, budgetExceeded, eventsLost,

	xidNoncritical, portDisabled, counterSaturated, rdmaIdle, gpuIdle, placedBadly, withoutGPUDirect, dataDirectPath, memoryUnowned,
	coverageGap, mapNearlyFull,

	nothingWrong,
}
