// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// Condition is the definition of one condition. Its alert in deploy/prometheus/rules/alerts.yaml has the same name, and
// gets severity, time, limits and words from here: make generate-deploy writes them.
type Condition struct {
	Name     string
	Severity Severity
	Summary  string // what it means, in one sentence
	// Thresholds are limits: a value has to exceed them, or for Below to fall below them. A state has no thresholds.
	Thresholds []Threshold
	// Window is how far back values count; 0 for a state.
	Window time.Duration
	// For is how long the condition has to hold until the alert fires. A verdict is shown at once, except with severity
	// Info, which waits for this time, too.
	For time.Duration
	// Source is where the numbers come from.
	Source string
	// Words are label values that the alert selects, by label, in any order. They come from closed lists.
	Words map[string][]string
	// Unless are conditions that cause this one: while the subject has one of them, this condition is not shown.
	Unless []*Condition
	// NoAlert is why this condition has no alert; empty if it has an alert.
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

// limit returns the value of the nth threshold.
func (c *Condition) limit(n int) float64 { return c.Thresholds[n].Value }

const runbooks = "https://github.com/accelscope/accelscope/blob/main/deploy/prometheus/runbooks/"

const page = "https://github.com/accelscope/accelscope/blob/main/docs/verdicts.md"

// Runbook returns the address of the runbook of an alert.
func Runbook(alert string) string { return runbooks + alert + ".md" }

// Runbook returns the address of the alert's runbook. For a condition without an alert it returns the page of verdicts.
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
		Summary:    "The port was active within the last day and no longer is: its connections hang or failed.",
		Thresholds: []Threshold{{Of: "time since the port was active", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "ports without a cable, or inactive for a day, do not count",
	}
	portDisabled = &Condition{
		Name: "RDMAPortDisabled", Severity: Info, Window: day, For: 10 * time.Minute,
		Summary:    "The port's network interface was set down within the last day.",
		Thresholds: []Threshold{{Of: "time since administratively up", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "set by an administrator or a program; not a link fault",
	}
	bondDegraded = &Condition{
		Name: "RDMABondDegraded", Severity: Warning, Window: day, For: 4 * time.Minute,
		Summary:    "A leg of the port's bond lost its carrier: rate or redundancy is lost.",
		Thresholds: []Threshold{{Of: "time since the leg had a carrier", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "the port stays active; legs that were never connected do not count",
	}
	hcaGone = &Condition{
		Name: "RDMADeviceGone", Severity: Critical, For: 5 * time.Minute,
		Summary:    "An HCA of the node is missing: its users failed, and the next job has fewer rails.",
		Thresholds: []Threshold{{Of: "time since the last sample (without inventory)", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "the node's inventory; accelscope inventory accept ends it",
	}
	linkDegraded = &Condition{
		Name: "RDMALinkDegraded", Severity: Warning, Window: week, For: 10 * time.Minute,
		Summary:    "The link has fewer lanes or less speed than equal boards, or than within the last week.",
		Thresholds: []Threshold{{Of: "rate / (rate of equal ports, or earlier rate)", Value: 1, Below: true}},
		Source:     "the kernel does not report a link's highest rate",
	}
	linkUnstable = &Condition{
		Name: "RDMALinkUnstable", Severity: Warning, Window: hour, For: 5 * time.Minute,
		Summary: "The link went down or recovered repeatedly: each time traffic stops, and queue pairs may fail.",
		Thresholds: []Threshold{
			{Of: "link_downed", Value: 1.5, Unit: "in 1h"},
			{Of: "link_error_recovery", Value: 2.5, Unit: "in 1h"},
			{Of: "losses of the carrier", Value: 2.5, Unit: "in 12h"},
		},
		Source: "healthy links do neither; once may be maintenance",
	}
	flapping     = &Condition{Name: linkUnstable.Name, Window: 12 * hour} // the longer window of linkUnstable
	symbolErrors = &Condition{
		Name: "RDMASymbolErrors", Severity: Warning, Window: hour, For: 5 * time.Minute,
		Summary:    "The port receives more symbol errors than the InfiniBand specification allows.",
		Thresholds: []Threshold{{Of: "symbol_error", Value: 120, Unit: "in 1h"}},
		Source:     "InfiniBand: 1 bit in 10^12, about 120 per hour on QDR",
		Unless:     []*Condition{linkUnstable},
	}
	packetErrors = &Condition{
		Name: "RDMAPacketErrors", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary:    "Received packets have errors, but the link reports no problem.",
		Thresholds: []Threshold{{Of: "port_rcv_errors / port_rcv_packets", Value: 1e-6}},
		Source:     "a bit error rate of 10^-12 corrupts 3e-8 of 4 KiB packets",
		Unless:     []*Condition{linkUnstable, symbolErrors},
	}
	counterSaturated = &Condition{
		Name: "RDMAErrorCounterSaturated", Severity: Info, For: hour,
		Summary: "A port counter reached its highest value and no longer increases.",
		Source:  "InfiniBand PortCounters of 4, 8, 16 and 32 bits: 15, 255, 65535, 4294967295",
	}
	congestion = &Condition{
		Name: "RDMACongestion", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary: "Switches mark many packets to this port (ECN): its senders slow down.",
		Thresholds: []Threshold{
			{Of: "marked packets / received packets", Value: 0.05}, {Of: "marked packets", Value: 100, Unit: "/s"},
		},
		Source: "our limit; a well-controlled queue marks less than 1 %",
	}
	congestionIgnored = &Condition{
		Name: "RDMACongestionIgnored", Severity: Warning, Window: 15 * time.Minute, For: 15 * time.Minute,
		Summary:    "The port ignores receivers' requests to slow down: other senders get less.",
		Thresholds: []Threshold{{Of: "congestion notifications (CNP) ignored", Value: 1, Unit: "/s"}},
		Source:     "our limit; with congestion control a port ignores no request",
	}
	outOfBuffer = &Condition{
		Name: "RDMAOutOfBuffer", Severity: Warning, Window: 5 * time.Minute, For: 10 * time.Minute,
		Summary:    "Packets find no receive buffer: a program posts too few receives or too late.",
		Thresholds: []Threshold{{Of: "packets without a buffer", Value: 10, Unit: "/s"}},
		Source:     "our limit; normally 0",
	}
	retransmissions = &Condition{
		Name: "RDMARetransmissions", Severity: Warning, Window: 5 * time.Minute, For: 10 * time.Minute,
		Summary:    "Packets to or from the port are lost.",
		Thresholds: []Threshold{{Of: "lost packets: resent, gaps, timeouts", Value: 10, Unit: "/s"}},
		Source:     "our limit; InfiniBand and RoCE with flow control lose no packets",
	}
	rdmaFault = &Condition{
		Name: "RDMAFault", Severity: Warning, Window: hour,
		Summary:    "The HCA's driver logged a fault within the last hour; see /api/v1/faults.",
		Thresholds: []Threshold{{Of: "time since the fault", Value: hour.Seconds(), Unit: "s", Below: true}},
		Source:     "logged once, so it counts for an hour",
		Words:      map[string][]string{"code": join(harmlessFaults, functionFaults, otherAlertFaults)},
	}
)

// Conditions of GPUs.
var (
	gpuLost = &Condition{
		Name: "GPULost", Severity: Critical, For: 2 * time.Minute,
		Summary: "The GPU fell off the bus, a driver call hangs, or the driver reports errors instead of values: its processes failed " +
			"or hang.",
		Source: "driver state", Words: map[string][]string{"problem": lostProblems},
	}
	gpuGone = &Condition{
		Name: "GPUGone", Severity: Critical, For: 10 * time.Minute,
		Summary: "A GPU of the node is missing, or has no driver: the next job has fewer GPUs.",
		Source:  "the node's inventory; accelscope inventory accept ends it",
	}
	fabricNotReady = &Condition{
		Name: "GPUFabricNotReady", Severity: Critical,
		Summary: "The unused GPU has not joined the NVLink fabric: nv-fabricmanager does not run or does not reach it, and CUDA fails " +
			"with error 802.",
		Source: "docs/verdicts.md: intermediate states",
		Words:  map[string][]string{"problem": join(notReadyProblems, askingProblems), "state": {model.FabricInProgress}},
	}
	fabricInProgress = &Condition{
		Name: "GPUFabricInProgress", Severity: Warning,
		Summary: "nv-fabricmanager runs, but the unused GPU has not joined the NVLink fabric: it has no active partition (shared " +
			"NVSwitches), or CUDA fails with error 802.",
		Source: "NVIDIA/gpu-driver-container#909: with FABRIC_MODE=1 GPUs wait for a partition",
		Words:  map[string][]string{"problem": join(notReadyProblems, askingProblems), "state": {model.FabricInProgress}},
	}
	fabricManagerLost = &Condition{
		Name: "GPUFabricManagerLost", Severity: Critical, Window: hour, For: 2 * time.Minute,
		Summary: "The node has NVSwitches, but nv-fabricmanager does not run or restarts repeatedly: GPUs that are reset do not join " +
			"the NVLink fabric.",
		Thresholds: []Threshold{{Of: "starts of nv-fabricmanager", Value: 2.5, Unit: "in 1h"}},
		Source:     "docs/verdicts.md: intermediate states; once or twice may be maintenance",
	}
	recoveryAction = &Condition{
		Name: "GPURecoveryAction", Severity: Critical,
		Summary: "The driver requests an action after a hardware or firmware fault.",
		Source:  "driver state", Words: map[string][]string{"action": {"none", "reboot"}},
	}
	xidCritical = &Condition{
		Name: "GPUXidCritical", Severity: Critical,
		Summary: "The GPU reported a hardware or firmware XID: it needs a reset or inspection.",
		Source:  "NVIDIA's XID catalog", Words: map[string][]string{"xid": criticalXIDs, "problem": {"xid"}},
	}
	xidNoncritical = &Condition{
		Name: "GPUXidNoncritical", Severity: Info, Window: 10 * time.Minute,
		Summary:    "The GPU reported a noncritical XID: programs usually cause these; others may precede a GPU failure.",
		Thresholds: []Threshold{{Of: "time since the XID", Value: 600, Unit: "s", Below: true}},
		Source:     "a program's error ends with the program",
		Words:      map[string][]string{"xid": append(slices.Clip(criticalXIDs), recoveredXID)},
	}
	gpuFault = &Condition{
		Name: "GPUFault", Severity: Critical, Window: hour,
		Summary:    "The driver of the GPU or NVSwitch logged a hardware or firmware fault within the last hour; see /api/v1/faults.",
		Thresholds: []Threshold{{Of: "time since the fault", Value: hour.Seconds(), Unit: "s", Below: true}},
		Source:     "logged once, so it counts for an hour; if the driver says fatal or nonfatal, this decides",
		Words: map[string][]string{
			"code": gpuFaults, "problem": {"xid", "lost"}, "severity": {string(model.FaultFatal), string(model.FaultNonfatal)},
			"driver": {string(model.DriverNVIDIA), string(model.DriverNVSwitch)},
		},
	}
	driverStuck = &Condition{
		Name: "GPUDriverStuck", Severity: Warning,
		Summary:    "A task does not return from a GPU driver's ioctl; see /api/v1/gpu-driver-tasks.",
		Thresholds: []Threshold{{Of: "age of the oldest ioctl", Value: 300, Unit: "s"}},
		Source:     "our limit; requests that wait on purpose do not count",
	}
	memoryFailing = &Condition{
		Name: "GPUMemoryFailing", Severity: Critical,
		Summary: "The GPU's memory can no longer be repaired: replace the GPU.",
		Source:  "driver state", Words: map[string][]string{"problem": failingProblems},
	}
	memoryRepairPending = &Condition{
		Name: "GPUMemoryRepairPending", Severity: Warning, For: 5 * time.Minute,
		Summary: "Bad GPU memory stays in use until the next reset repairs it.",
		Source:  "driver state", Words: map[string][]string{"problem": join(pendingProblems, failingProblems, askingProblems)},
	}
	uncorrectedECC = &Condition{
		Name: "GPUUncorrectedECC", Severity: Warning,
		Summary: "The GPU had uncorrected ECC errors since its driver was loaded: processes were killed or used wrong data.",
		Source:  "driver state",
		Words:   map[string][]string{"problem": join(eccProblems, pendingProblems, failingProblems, askingProblems)},
	}
	thermalSlowdown = &Condition{
		Name: "GPUThermalSlowdown", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The GPU hardware slows down because of heat.",
		Thresholds: []Threshold{{Of: "fraction of 15m slowed down", Value: 0.1}},
		Source:     "short slowdowns when load starts are normal", Words: map[string][]string{"problem": thermalProblems},
	}
	powerBrake = &Condition{
		Name: "GPUPowerBrake", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The power supply or the rack's power management slows the GPU down.",
		Thresholds: []Threshold{{Of: "fraction of 15m slowed down", Value: 0.1}},
		Source:     "as for heat", Words: map[string][]string{"problem": brakeProblems},
	}
	unhealthy = &Condition{
		Name: "GPUUnhealthy", Severity: Warning, For: 10 * time.Minute,
		Summary: "The GPU has another problem: a link down, fewer PCIe lanes, a corrupted InfoROM.",
		Source:  "driver state", Words: map[string][]string{"problem": namedProblems},
	}
	memoryUnowned = &Condition{
		Name: "GPUMemoryUnowned", Severity: Info, For: 30 * time.Minute,
		Summary:    "GPU memory has no known owner: a process ended without freeing it, or the sensor cannot see the process.",
		Thresholds: []Threshold{{Of: "memory without an owner / total memory", Value: 0.1}},
		Source:     "our limit",
		Words:      map[string][]string{"mode": {"numa"}},
	}
)

// Conditions of workloads.
var (
	queuePairsStalled = &Condition{
		Name: "RDMAQueuePairsStalled", Severity: Warning, For: 5 * time.Minute,
		Summary:    "The workload's outstanding work requests do not complete: a transfer is stalled.",
		Thresholds: []Threshold{{Of: "queue pairs", Value: 0}},
		Source:     "time without a completion: --rdma.stall-after",
	}
	completionErrors = &Condition{
		Name: "RDMACompletionErrors", Severity: Warning, Window: 10 * time.Minute,
		Summary:    "The workload's work requests complete with errors: their queue pairs become unusable.",
		Thresholds: []Threshold{{Of: "completions with an error", Value: 0, Unit: "in 10m"}},
		Source:     "most libraries end the job at the first error", Words: map[string][]string{"status": harmlessStatus},
	}
	verbsErrors = &Condition{
		Name: "RDMAVerbsErrors", Severity: Warning, Window: 15 * time.Minute,
		Summary:    "The workload's verbs fail; feature probes of libraries do not count.",
		Thresholds: []Threshold{{Of: "failed verbs", Value: 5.5, Unit: "in 15m"}},
		Source:     "a few failures at program start are normal",
		Words:      map[string][]string{"errno": harmlessErrnos, "verb": {"query_.*", "async_event", "poll_cq"}},
	}
	allocationFailures = &Condition{
		Name: "GPUAllocationFailures", Severity: Warning, Window: 15 * time.Minute, For: 30 * time.Minute,
		Summary:    "The workload's GPU memory allocations fail for lack of memory.",
		Thresholds: []Threshold{{Of: "failed allocations", Value: 0, Unit: "in 15m"}},
		Source:     "programs that free a cache and retry are slow, others fail",
	}
	rdmaIdle = &Condition{
		Name: "RDMAAllocatedIdle", Severity: Info, Window: 30 * time.Minute, For: 90 * time.Minute,
		Summary:    "For two hours the workload had no queue pair on its allocated HCA.",
		Thresholds: []Threshold{{Of: "queue pairs and DEVX objects", Value: 0}},
		Source:     "job pauses are shorter", Words: map[string][]string{"type": {"qp", "devx_obj"}},
	}
	gpuIdle = &Condition{
		Name: "GPUAllocatedIdle", Severity: Info, Window: 30 * time.Minute, For: 90 * time.Minute,
		Summary:    "For two hours the workload did not use its allocated GPU.",
		Thresholds: []Threshold{{Of: "busiest engine", Value: 0.01}, {Of: "processes, if the driver reports no engines", Value: 0}},
		Source:     "job pauses are shorter; drivers round to percents",
	}
	placedBadly = &Condition{
		Name: "WorkloadPlacedBadly", Severity: Info, For: 15 * time.Minute,
		Summary: "The workload's HCA is far from its GPU, and a nearer HCA exists.",
		Source:  "docs/placement.md", Words: map[string][]string{"problem": {placement.ProblemNUMA, placement.ProblemSwitch}},
	}
	withoutGPUDirect = &Condition{
		Name: "WorkloadWithoutGPUDirect", Severity: Info, For: 30 * time.Minute,
		Summary: "The workload has GPUs and HCAs, but does not use GPUDirect, or not all rails.",
		Source:  "docs/placement.md", Words: map[string][]string{"problem": {placement.ProblemDirect, placement.ProblemRails}},
	}
	dataDirectPath = &Condition{
		Name: "WorkloadDataDirectPath", Severity: Info, For: 15 * time.Minute,
		Summary: "ACS redirects the workload's GPUDirect transfers between its GPU and its HCA's Data Direct function.",
		Source:  "docs/placement.md", Words: map[string][]string{"problem": {placement.ProblemPath}},
		NoAlert: "accelscope_placement_problem has it, and a node that is set up wrongly was so from its start",
	}
	coverageGap = &Condition{
		Name: "RDMACoverageGap", Severity: Info, For: 5 * time.Minute,
		Summary: "Some bytes of the workload on the HCA are not counted.",
		Source:  "configured gaps (off, not_selected), surveys (survey) and idle queues (direct_wqe) do not count",
		NoAlert: "container_rdma_datapath_coverage has the reasons; AccelscopeUnattributedHigh is the alert for what they amount to",
	}
)

// Conditions of the sensor.
var (
	sourceLost = &Condition{
		Name: "AccelscopeSourceLost", Severity: Warning, Window: day, For: 15 * time.Minute,
		Summary:    "A source fails, or stopped working within the last day: its data is missing and is not judged.",
		Thresholds: []Threshold{{Of: "time since an absent or unsupported source worked", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "what a node never had is not missing",
	}
	sourceStuck = &Condition{
		Name: "AccelscopeSourceStuck", Severity: Warning, For: 5 * time.Minute,
		Summary: "A source's call into the kernel, a driver or a daemon does not return. Other sources continue.",
		Source:  "sensor state",
	}
	deviceUnreadable = &Condition{
		Name: "AccelscopeDeviceUnreadable", Severity: Warning, For: 15 * time.Minute,
		Summary: "The sensor cannot read a device, socket or part: its data is missing or old.",
		Source:  "sensor state; a lost GPU has GPULost", Words: map[string][]string{"problem": lostProblems},
	}
	hooksLost = &Condition{
		Name: "AccelscopeHooksLost", Severity: Warning, Window: hour, For: 10 * time.Minute,
		Summary: "The kernel rejects hooks: verbs, objects or opens are not counted.",
		Source:  "sensor state",
	}
	losing = &Condition{
		Name: "AccelscopeLosing", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The sensor loses data: counters of workloads are too low.",
		Thresholds: []Threshold{{Of: "unrecorded events", Value: 0, Unit: "in 15m"}},
		Source:     "every loss counts", Words: map[string][]string{"reason": {".*_share"}},
	}
	mapNearlyFull = &Condition{
		Name: "AccelscopeMapNearlyFull", Severity: Info, For: 15 * time.Minute,
		Summary:    "A BPF map is nearly full: a full map loses new entries.",
		Thresholds: []Threshold{{Of: "entries / capacity", Value: 0.9}},
		Source:     "our limit",
	}
	budgetExceeded = &Condition{
		Name: "AccelscopeBudgetExceeded", Severity: Warning, For: 10 * time.Minute,
		Summary:    "Probes exceed their CPU budget in the workload.",
		Thresholds: []Threshold{{Of: "CPU time / --rdma.datapath-budget", Value: 1.5}},
		Source:     "surveys should prevent this",
	}
	eventsLost = &Condition{
		Name: "AccelscopeEventsLost", Severity: Warning, Window: 15 * time.Minute, For: 5 * time.Minute,
		Summary:    "The OpenTelemetry Collector did not get events: it is unreachable, too slow or refuses them.",
		Thresholds: []Threshold{{Of: "events", Value: 0, Unit: "in 15m"}},
		Source:     "every loss counts",
	}
	nothingWrong = &Condition{
		Name: "NothingWrong", Severity: OK,
		Summary: "The sensor found no problem in what it watches.",
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
	jobStalled, jobMemberBehind, queuePairsStalled, completionErrors, verbsErrors, allocationFailures,
	sourceLost, sourceStuck, deviceUnreadable, hooksLost, losing, budgetExceeded, eventsLost,

	xidNoncritical, portDisabled, counterSaturated, jobMemberLate, jobMemberSlow, pathSlow, rdmaIdle, gpuIdle, placedBadly,
	withoutGPUDirect, dataDirectPath, memoryUnowned, coverageGap, mapNearlyFull,

	nothingWrong,
}

// runbookOf has Condition.Runbook of all conditions, so that a refresh makes no addresses.
var runbookOf = func() map[*Condition]string {
	all := make(map[*Condition]string, len(Conditions))
	for _, c := range Conditions {
		all[c] = c.Runbook()
	}
	return all
}()
