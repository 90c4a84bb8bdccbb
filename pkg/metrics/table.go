// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
)

// The compatibility sets: names of other exporters, for their dashboards.
const (
	CompatLens         = "lens"
	CompatNodeExporter = "node_exporter"
	CompatRDMAExporter = "rdma_exporter"
	CompatDCGM         = "dcgm"
)

// Process is the set of metrics that every Prometheus client has of its own process.
const Process = "process"

// CompatSets are the compatibility sets that Options.Compat may name.
func CompatSets() []string {
	return []string{CompatLens, CompatNodeExporter, CompatRDMAExporter, CompatDCGM}
}

// metric is a row of the metric table.
type metric struct {
	// name, or for a family per counter of a driver a pattern: its varying part is the
	// word in angle brackets.
	name   string
	help   string
	typ    dto.MetricType
	compat string   // the compatibility set it belongs to, or Process
	owned  bool     // has the identity labels
	gpu    bool     // has exposition.GPULabels
	labels []string // beyond those; all of them bounded by the node
	emit   func(*view, *exposition.Builder)

	declared *exposition.Metric // once it is in an Exporter
}

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	untyped   = dto.MetricType_UNTYPED
	histogram = dto.MetricType_HISTOGRAM
)

// table returns the metric table. labels are those of Options.
func table(labels []string) []metric {
	return slices.Concat(
		portMetrics(),
		resourceMetrics(),
		workloadMetrics(),
		trafficMetrics(),
		infoMetrics(labels),
		containerMetrics(),
		devicesMetrics(),
		gpuMetrics(),
		gpuHealthMetrics(),
		gpuShareMetrics(),
		accessMetrics(),
		kubeletMetrics(),
		nodeMetrics(),
		fabricMetrics(),
		eventMetrics(),
		selfMetrics(),
		processMetrics(),
		lensMetrics(),
		lensGPUMetrics(),
		nodeExporterMetrics(),
		rdmaExporterMetrics(),
		dcgmMetrics(),
	)
}

func (m *metric) labelNames() []string {
	switch {
	case m.owned && m.gpu:
		return slices.Concat(exposition.Identity, exposition.GPULabels, m.labels)
	case m.owned:
		return slices.Concat(exposition.Identity, m.labels)
	case m.gpu:
		return slices.Concat(exposition.GPULabels, m.labels)
	}
	return m.labels
}
