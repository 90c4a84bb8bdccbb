// SPDX-License-Identifier: Apache-2.0

package fleet

import "strings"

// The alerts that count ports, and find nodes that do not answer.
const (
	degradedAlert = "RDMALinkDegraded"
	flappingAlert = "RDMALinkUnstable"
	downAlert     = "AccelscopeDown"
)

// alertNames are the alerts of deploy/prometheus/rules/alerts.yaml. Other alerts of a Prometheus do not belong to this
// project.
var alertNames = strings.Fields(`
RDMADeviceGone RDMAPortDown RDMAPortDisabled RDMALinkDegraded RDMABondDegraded RDMALinkUnstable RDMASymbolErrors RDMAPacketErrors
RDMAErrorCounterSaturated RDMALinkTraining RDMASubnetManagerLost
RDMAGIDMissing RDMAPKeyMissing RDMASubnetManagerChanges RDMAPauseStorm RDMAPauseSustained RDMAUncorrectableBlocks RDMABitErrors
RDMABitErrorsRising RDMAModuleAlarm RDMAModuleGone RDMAPCIeDegraded RDMAPCIeErrors GPUPCIeErrors GPUPCIeSlow RDMACongestion
RDMACongestionStorm RDMACongestionIgnored RDMAOutOfBuffer RDMARetransmissions RDMABelowLineRate RDMAVerbsSlow
RDMAVerbsErrors RDMACompletionErrors RDMACompletionsSlow RDMACompletionsSlowerThanOthers RDMAQueuePairsStalled
RDMAFault RDMAAllocatedIdle WorkloadPlacedBadly WorkloadWithoutGPUDirect
GPUGone GPULost GPUFabricNotReady GPUFabricInProgress GPUFabricManagerLost GPURecoveryAction GPUXidCritical GPUXidNoncritical GPUFault
GPUDriverStuck GPUMemoryFailing GPUMemoryRepairPending
GPUUncorrectedECC GPUThermalSlowdown GPUPowerBrake GPUUnhealthy GPUAllocatedIdle GPUMemoryUnowned GPUAllocationFailures JobMemberBehind
JobMemberLate JobMemberSlow
AccelscopeDown AccelscopeAbsent AccelscopeSourceLost AccelscopeSourceStuck AccelscopeDeviceUnreadable AccelscopeHooksLost
AccelscopeLosing AccelscopeMapNearlyFull AccelscopeBudgetExceeded AccelscopeUnattributedHigh AccelscopeEventsLost
FabricSwitchLost FabricPortDown FabricLinkDegraded FabricLinkErrors FabricSwitchNotAnswering FabricStale
`)
