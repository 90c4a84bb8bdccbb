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

// Process is the set of process metrics that Prometheus clients export.
const Process = "process"

// CompatSets returns the compatibility sets that Options.Compat may name.
func CompatSets() []string {
	return []string{CompatLens, CompatNodeExporter, CompatRDMAExporter, CompatDCGM}
}

// metric is a row of the metric table.
type metric struct {
	// name is the name, or a pattern for one family per counter of a driver: the word in
	// angle brackets is its variable part.
	name   string
	help   string
	typ    dto.MetricType
	compat string   // the compatibility set it belongs to, or Process
	owned  bool     // has the identity labels
	gpu    bool     // has exposition.GPULabels
	labels []string // further labels; the node bounds the number of their values
	emit   func(*view, *exposition.Builder)

	declared *exposition.Metric // set by New
}

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	untyped   = dto.MetricType_UNTYPED
	histogram = dto.MetricType_HISTOGRAM
)

// group is a section of gen/metrics.md: the metrics of one subject and notes about them. The
// notes hold what is too long for HELP, which is sent with every scrape.
type group struct {
	title string
	notes []string
	rows  []metric
}

// groups returns the metric table by subject. labels are those of Options.
func groups(labels []string) []group {
	return []group{
		{"RDMA devices and ports", portNotes, portMetrics()},
		{"RDMA virtual functions", vfNotes, vfMetrics()},
		{"RDMA objects and verbs of workloads", workloadNotes, slices.Concat(resourceMetrics(), workloadMetrics())},
		{"RDMA traffic of workloads", trafficNotes, trafficMetrics()},
		{"RDMA traffic of workloads, sampled", sampledTrafficNotes, sampledTrafficMetrics()},
		{"Probes on the RDMA data path", budgetNotes, budgetMetrics()},
		{"Workloads and their devices", infoNotes, slices.Concat(infoMetrics(labels), devicesMetrics(), accessMetrics())},
		{"Containers", containerNotes, containerMetrics()},
		{"GPUs", gpuNotes, gpuMetrics()},
		{"GPU health", gpuHealthNotes, gpuHealthMetrics()},
		{"GPUs of workloads", gpuShareNotes, gpuShareMetrics()},
		{"Failed allocations of GPU memory", allocationNotes, allocationMetrics()},
		{"Faults in the kernel log", faultNotes, faultMetrics()},
		{"Ioctls of GPU drivers", driverNotes, driverMetrics()},
		{"Kubelet", kubeletNotes, kubeletMetrics()},
		{"Node", nodeNotes, nodeMetrics()},
		{"InfiniBand fabric", fabricNotes, fabricMetrics()},
		{"Events", eventNotes, eventMetrics()},
		{"The sensor", selfNotes, selfMetrics()},
		{"Without --web.disable-exporter-metrics (the default)", processNotes, inSet(Process, processMetrics())},
		{"With --metrics.compat=lens (the default)", lensNotes, inSet(CompatLens, lensMetrics())},
		{"With --metrics.compat=node_exporter", nodeExporterNotes, inSet(CompatNodeExporter, nodeExporterMetrics())},
		{"With --metrics.compat=rdma_exporter", rdmaExporterNotes, inSet(CompatRDMAExporter, rdmaExporterMetrics())},
		{"With --metrics.compat=dcgm", dcgmNotes, inSet(CompatDCGM, dcgmMetrics())},
	}
}

// inSet returns rows as metrics of a compatibility set, or of Process.
func inSet(set string, rows []metric) []metric {
	for i := range rows {
		rows[i].compat = set
	}
	return rows
}

// table returns the rows of all groups.
func table(labels []string) []metric {
	var rows []metric
	for _, g := range groups(labels) {
		rows = append(rows, g.rows...)
	}
	return rows
}

func (m *metric) labelNames() []string {
	var names []string
	if m.owned {
		names = append(names, exposition.Identity...)
	}
	if m.gpu {
		names = append(names, exposition.GPULabels...)
	}
	return append(names, m.labels...)
}
