// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// gpuColumns are the columns of workloads on GPUs. BUSIEST is the engine that the workload used most, with its busy ratio.
var gpuColumns = []column{
	{name: "WORKLOAD", key: defaultSort, text: true},
	{name: "DEVICE", key: "device", text: true},
	{name: "PROCESSES", key: "processes"},
	{name: "MEMORY", key: "memory"},
	{name: "BUSIEST", key: "busy"},
	{name: "ALLOCATED", key: "allocated", text: true},
	{name: "MODEL", key: "model", text: true},
}

// hcaColumns are the columns of workloads on HCAs. ERRORS counts since the sensor started, without queries; rates and P99 are of the
// sensor's last interval. TX/S and RX/S are bytes, with a ~ if some are estimates, and unmeasured instead of zero if some are not
// counted. MISSING has the reasons.
var hcaColumns = []column{
	{name: "WORKLOAD", key: defaultSort, text: true},
	{name: "DEVICE", key: "device", text: true},
	{name: "QP", key: "qp"},
	{name: "CQ", key: "cq"},
	{name: "MR", key: "mr"},
	{name: "REGISTERED", key: "registered"},
	{name: "TX/S", key: "tx"},
	{name: "RX/S", key: "rx"},
	{name: "VERBS/S", key: "verbs"},
	{name: "ERRORS", key: "errors"},
	{name: "P99", key: "p99"},
	{name: "MISSING", key: "missing", text: true},
}

// uses returns the tables of workloads on GPUs and on HCAs. Rows are sorted by name, so that they keep their positions; the
// unattributed rows are last.
func uses(r *reading) []*sheet {
	gpus, hcas := &sheet{kind: overview.GPU, columns: gpuColumns}, &sheet{kind: overview.HCA, columns: hcaColumns}
	models := map[string]cell{}
	for i := range r.devices {
		models[r.devices[i].Device] = modelOf(&r.devices[i])
	}
	for _, u := range byName(r.workloads.Rows) {
		if u.Kind == overview.GPU {
			gpus.rows = append(gpus.rows, gpuUse(&u, models[u.Device]))
		} else {
			hcas.rows = append(hcas.rows, hcaUse(&u))
		}
	}
	return []*sheet{gpus, hcas}
}

// byName sorts rows by workload. Rows of one workload keep the order of its devices.
func byName(rows []overview.Row) []overview.Row {
	return slices.SortedStableFunc(slices.Values(rows), func(a, b overview.Row) int {
		if (a.Workload == "") != (b.Workload == "") {
			return cmp.Compare(b.Workload, a.Workload) // the empty one is last
		}
		return cmp.Or(cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.ContainerID, b.ContainerID))
	})
}

func gpuUse(u *overview.Row, model cell) row {
	allocated := format.None
	if u.Allocated {
		allocated = "yes"
	}
	name := u.Vendor + u.GPU
	return row{u.Workload, u.ContainerID, name, map[string]cell{
		defaultSort: words(format.Owner(u.Workload)),
		"device":    words(format.Escape(name)),
		"processes": known(u.Processes, format.Count),
		"memory":    known(u.Memory, format.Size),
		"busy":      busiest(u),
		"allocated": words(allocated),
		"model":     model,
	}}
}

func hcaUse(u *overview.Row) row {
	missing := make([]string, len(u.Gaps))
	for i, gap := range u.Gaps {
		missing[i] = format.Escape(string(gap))
	}
	var registered cell
	if bytes, ok := u.Used(); ok {
		registered = figure(bytes, format.Size)
	}
	return row{u.Workload, u.ContainerID, u.Device, map[string]cell{
		defaultSort:  words(format.Owner(u.Workload)),
		"device":     words(format.Escape(u.Device)),
		"qp":         known(u.QueuePairs, format.Count),
		"cq":         known(u.CompletionQueues, format.Count),
		"mr":         known(u.MemoryRegions, format.Count),
		"registered": registered,
		"tx":         bytesOf(u.Transmit, u.Gaps),
		"rx":         bytesOf(u.Receive, u.Gaps),
		"verbs":      known(u.Verbs, format.PerSecond),
		"errors":     known(u.Errors, format.Count),
		"p99":        p99(u.VerbsP99),
		"missing":    words(strings.Join(missing, ",")),
	}}
}

// modelOf returns the cell with the model of a GPU.
func modelOf(d *overview.Device) cell {
	return words(format.Escape(strings.TrimPrefix(d.Name, "NVIDIA ")))
}

func busiest(u *overview.Row) cell {
	switch {
	case u.Utilization == nil:
		return cell{}
	case *u.Utilization == 0: // no engine is the busiest
		return figure(0, format.Percent)
	}
	return figure(*u.Utilization, func(ratio float64) string { return format.Escape(u.Engine) + " " + format.Percent(ratio) })
}

// bytesOf returns the cell of a rate of bytes. Without a byte it is not a measurement while bytes of now are not counted.
func bytesOf(r *overview.Rate, gaps []model.Gap) cell {
	if (r == nil || r.PerSecond == 0) && model.Uncounted(gaps) {
		return cell{text: format.Unmeasured}
	}
	return rateOf(r)
}

func rateOf(r *overview.Rate) cell {
	if r == nil {
		return cell{}
	}
	c := figure(r.PerSecond, format.Size)
	if r.Estimate {
		c.text = format.Estimate + c.text
	}
	return c
}

func p99(q *overview.Quantile) cell {
	if q == nil {
		return cell{}
	}
	c := figure(q.Seconds, format.Duration)
	if q.Above {
		c.text = ">" + c.text
	}
	return c
}
