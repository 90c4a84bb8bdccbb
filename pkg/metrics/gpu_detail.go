// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// full marks a row that only Options.GPUDetail exports. No alert, dashboard or compatibility set uses such a metric.
func full(m metric) metric {
	m.full = true
	return m
}

// omitting returns a row with values of the label that only Options.GPUDetail exports.
func omitting(m metric, values ...string) metric {
	m.omit = values
	return m
}

// addedUp returns the label over which counters of links are added up without Options.GPUDetail, or "" for other types.
func addedUp(typ dto.MetricType, label string) string {
	if typ == counter {
		return label
	}
	return ""
}

// detailedEngines lists the engines that a GPU has several times, and the pipes of tensors and numbers (NVIDIA with
// GPM).
func detailedEngines() []string {
	engines := []string{
		"jpeg", "ofa", "fp64_active", "fp32_active", "fp16_active", "integer_active", "tensor_dfma_active", "tensor_hmma_active",
		"tensor_imma_active",
	}
	for i := range 8 {
		engines = append(engines, "nvdec"+strconv.Itoa(i)+"_active", "nvjpg"+strconv.Itoa(i)+"_active")
	}
	return append(engines, "nvofa0_active", "nvofa1_active")
}

// rareLinkErrors are part of other errors of NVLink 5, or events that the link repaired.
var rareLinkErrors = []string{
	"malformed_packet", "buffer_overrun", "receive_remote", "receive_general", "local_link_integrity", "transmit_discard",
	"link_recovery_successful", "effective",
}

// chosenClocks are the reasons that are not a limit of the GPU: it is idle, or its user or other GPUs set the clocks.
var chosenClocks = []string{"gpu_idle", "applications_clocks_setting", "display_clocks_setting", "sync_boost"}
