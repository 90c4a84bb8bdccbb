// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// The driver's own verdicts on a GPU. If the driver reports a recovery action, it replaces the list of critical XIDs.

// recoveryActions are the values of nvmlDeviceGpuRecoveryAction_t in nvml.h. NVIDIA's headers differ about 5 (a reset
// of the bus, or the recovery of an IMEX domain), so 5 is model.RecoveryOther, like later values.
var recoveryActions = []string{
	nvml.GPU_RECOVERY_ACTION_NONE:            model.RecoveryNone,
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:       model.RecoveryReset,
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:     model.RecoveryReboot,
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:       model.RecoveryDrainP2P,
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET: model.RecoveryDrainAndReset,
}

// actionOf returns the action for a number of nvmlDeviceGpuRecoveryAction_t (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION). It
// returns "" if the driver did not report an action; drivers before 570 do not.
func actionOf(n uint64, reported bool) string {
	switch {
	case !reported:
		return ""
	case n < uint64(len(recoveryActions)):
		return recoveryActions[n]
	}
	return model.RecoveryOther
}

// sramThreshold reads whether the uncorrected errors on the chip exceed NVIDIA's criterion for a replacement
// (nvmlDeviceGetSramEccErrorStatus, for root only). It returns nil if the driver does not report this.
func sramThreshold(d nvml.Device) *bool {
	status, ret := d.GetSramEccErrorStatus()
	if ret != nvml.SUCCESS {
		return nil
	}
	exceeded := status.BThresholdExceeded != 0
	return &exceeded
}

// fabricStates are the values of nvmlGpuFabricState_t in nvml.h.
var fabricStates = []string{
	nvml.GPU_FABRIC_STATE_NOT_STARTED: "not_started",
	nvml.GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
	nvml.GPU_FABRIC_STATE_COMPLETED:   "completed",
}

type fabricFacts struct {
	state     string // empty without a fabric
	unhealthy *bool  // nil without a fabric
	cluster   string
	clique    uint32
}

// fabric reads the registration of the GPU in the NVLink fabric of its NVSwitches (nvmlDeviceGetGpuFabricInfoV, version 2).
func fabric(d nvml.Device) fabricFacts {
	info, ret := d.GetGpuFabricInfoV().V2()
	if ret != nvml.SUCCESS || info.State == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED || int(info.State) >= len(fabricStates) {
		return fabricFacts{}
	}
	bad := fabricUnhealthy(info.HealthMask)
	f := fabricFacts{state: fabricStates[info.State], unhealthy: &bad}
	switch { // only a completed registration has status, cluster and clique
	case info.State != nvml.GPU_FABRIC_STATE_COMPLETED:
	case nvml.Return(info.Status) != nvml.SUCCESS:
		bad = true
	case info.ClusterUuid == [16]uint8{}: // NVSwitches of one node have no cluster
	default:
		u := info.ClusterUuid
		f.cluster = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
		f.clique = info.CliqueId
	}
	return f
}

// fabricUnhealthy reports whether a part of NVML_GPU_FABRIC_HEALTH_MASK is bad. The values of the parts differ in
// nvml.h: 0 means not supported for all; 1 is bad for the first four parts, and the only good value for the
// configuration.
func fabricUnhealthy(mask uint32) bool {
	for _, part := range []struct{ shift, width uint32 }{
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW},
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY},
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY},
		{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY},
	} {
		if mask>>part.shift&part.width == nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE {
			return true
		}
	}
	return mask>>nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION&
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION > nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE
}
