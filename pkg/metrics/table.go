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
	// A name with a word in angle brackets is a pattern: one family per counter of a driver.
	name   string
	help   string
	typ    dto.MetricType
	compat string // its compatibility set, or Process
	// collector is the name in collect[] of a scrape, as in --collector.NAME.
	collector string
	owned     bool     // has the identity labels
	gpu       bool     // has exposition.GPULabels
	labels    []string // further labels; the node bounds the number of their values
	// detail are the labels of an owned metric that become "other", in this order, when a workload has too many series.
	detail []string
	// full metrics need Options.GPUDetail. Without GPUDetail, values are added up over the label sum, and series with a
	// value of omit are left out.
	full bool
	sum  string
	omit []string
	emit func(*view, *exposition.Builder)

	declared *exposition.Metric // set by New
}

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	untyped   = dto.MetricType_UNTYPED
	histogram = dto.MetricType_HISTOGRAM
)

// group is a section of gen/metrics.md: the metrics of one subject and notes. Notes have what is too long for HELP,
// which every scrape sends.
type group struct {
	title string
	notes []string
	rows  []metric
}

// groups returns the metric table by subject. labels is Options.Labels. If a node has too many series with a detail,
// the first metrics keep theirs.
func groups(labels []string) []group {
	return []group{
		{"RDMA devices and ports", portNotes, of("rdma", portMetrics())},
		{"RDMA counters of all drivers", sharedNotes, of("rdma", sharedMetrics())},
		{"PCIe links", pcieNotes, of("pci", pcieMetrics())},
		{"Placement of workloads", placementNotes, of("pci", placementMetrics())},
		{"RDMA links", linkNotes, of("link", linkMetrics())},
		{"Modules of RDMA links", moduleNotes, of("link", moduleMetrics())},
		{"Bit errors of RDMA links, with --link.mlxlink", bitErrorNotes, of("link", bitErrorMetrics())},
		{"RDMA virtual functions", vfNotes, of("rdma", vfMetrics())},
		{"RDMA traffic of workloads", trafficNotes, of("datapath", trafficMetrics())},
		{"RDMA objects and verbs of workloads", workloadNotes, of("probe", slices.Concat(resourceMetrics(), workloadMetrics()))},
		{"Probes on the RDMA data path", budgetNotes, of("datapath", budgetMetrics())},
		{
			"Workloads and their devices", infoNotes,
			slices.Concat(of("cgroup", infoMetrics(labels)), of("cgroup", devicesMetrics()), of("access", accessMetrics())),
		},
		{"Containers", containerNotes, of("container", containerMetrics())},
		{"GPUs", gpuNotes, of("gpu", gpuMetrics())},
		{"GPU health", gpuHealthNotes, of("gpu", gpuHealthMetrics())},
		{"GPUs of workloads", gpuShareNotes, of("gpu", gpuShareMetrics())},
		{"Failed allocations of GPU memory", allocationNotes, of("gpumemory", allocationMetrics())},
		{"Collectives", collectiveNotes, of("collective", collectiveMetrics())},
		{"Faults in the kernel log", faultNotes, of("kernellog", faultMetrics())},
		{"Ioctls of GPU drivers", driverNotes, of("gpudriver", driverMetrics())},
		{"Kubelet", kubeletNotes, of("kubelet", kubeletMetrics())},
		{"Node", nodeNotes, of("node", nodeMetrics())},
		{"InfiniBand fabric", fabricNotes, of("fabric", fabricMetrics())},
		{"Events", eventNotes, of("events", eventMetrics())},
		{"The sensor", selfNotes, of("sensor", selfMetrics())},
		{"Without --web.disable-exporter-metrics (the default)", processNotes, of("sensor", inSet(Process, processMetrics()))},
		{"With --metrics.compat=lens (the default)", lensNotes, inSet(CompatLens, lensMetrics())},
		{"With --metrics.compat=node_exporter", nodeExporterNotes, of("rdma", inSet(CompatNodeExporter, nodeExporterMetrics()))},
		{"With --metrics.compat=rdma_exporter", rdmaExporterNotes, of("rdma", inSet(CompatRDMAExporter, rdmaExporterMetrics()))},
		{"With --metrics.compat=dcgm", dcgmNotes, of("gpu", inSet(CompatDCGM, dcgmMetrics()))},
	}
}

// of returns rows as metrics of a collector.
func of(collector string, rows []metric) []metric {
	for i := range rows {
		rows[i].collector = collector
	}
	return rows
}

// inSet returns rows as metrics of a compatibility set, or of Process.
func inSet(set string, rows []metric) []metric {
	for i := range rows {
		rows[i].compat = set
	}
	return rows
}

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

// shown returns which series of m are shown one by one.
func (m *metric) shown(gpuDetail bool) exposition.Detail {
	if gpuDetail {
		return exposition.Detail{Labels: m.detail, Collector: m.collector}
	}
	return exposition.Detail{Labels: m.detail, Sum: m.sum, Omit: m.omit, Collector: m.collector}
}
