// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// full marks the row of a metric that is exported with Options.GPUDetail only. No alert, dashboard or compatibility set uses it.
func full(m metric) metric {
	m.full = true
	return m
}

// omitting returns a row whose series with these values are exported with Options.GPUDetail only.
func omitting(m metric, values ...string) metric {
	m.omit = values
	return m
}

// addedUp returns the label of links that is added up without Options.GPUDetail: that of counters.
func addedUp(typ dto.MetricType, label string) string {
	if typ == counter {
		return label
	}
	return ""
}

// detailedEngines lists the engines of which a GPU has several, and the pipes of tensors and numbers: NVIDIA's with GPM.
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

// rareLinkErrors are parts of other errors of NVLink 5, and events that the link has repaired.
var rareLinkErrors = []string{
	"malformed_packet", "buffer_overrun", "receive_remote", "receive_general", "local_link_integrity", "transmit_discard",
	"link_recovery_successful", "effective",
}

// chosenClocks are the reasons that are no limit of the GPU: it is idle, or its user or other GPUs set the clocks.
var chosenClocks = []string{"gpu_idle", "applications_clocks_setting", "display_clocks_setting", "sync_boost"}
