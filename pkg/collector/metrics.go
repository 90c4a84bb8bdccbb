// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// The compatibility sets: names of other exporters, for dashboards that exist.
const (
	CompatLens         = "lens"
	CompatNodeExporter = "node_exporter"
	CompatRDMAExporter = "rdma_exporter"
	CompatDCGM         = "dcgm"
)

// Process is the set of what every Prometheus client tells of its own process.
const Process = "process"

// CompatSets are the compatibility sets that Options.Compat may name.
func CompatSets() []string {
	return []string{CompatLens, CompatNodeExporter, CompatRDMAExporter, CompatDCGM}
}

// metric is a row of the metric table.
type metric struct {
	// name, or for a family per counter of a driver a pattern: its varying
	// part is the word in angle brackets.
	name   string
	help   string
	typ    dto.MetricType
	compat string   // the compatibility set it belongs to, or Process
	owned  bool     // has the identity labels
	gpu    bool     // has gpuLabels
	labels []string // beyond those; all of them bounded by the node
	emit   func(*view, *builder)

	schema *schema // of labelNames, once it is in a builder
}

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	untyped   = dto.MetricType_UNTYPED
	histogram = dto.MetricType_HISTOGRAM
)

// metrics is the metric table. labels are those of Options.
func metrics(labels []string) []metric {
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
		return slices.Concat(identity, gpuLabels, m.labels)
	case m.owned:
		return slices.Concat(identity, m.labels)
	case m.gpu:
		return slices.Concat(gpuLabels, m.labels)
	}
	return m.labels
}

// pattern says whether the row stands for a family per counter.
func (m *metric) pattern() bool { return strings.ContainsRune(m.name, '<') }

// nameOf puts a counter's name into the pattern. A driver may call a counter
// what it likes; what is no part of a metric name becomes an underscore.
func (m *metric) nameOf(counter string) string {
	before, rest, _ := strings.Cut(m.name, "<")
	_, after, _ := strings.Cut(rest, ">")
	return before + strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_':
			return r
		}
		return '_'
	}, counter) + after
}
