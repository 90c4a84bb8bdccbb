// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
)

// useColumns are those of the table of workloads and devices. ERRORS counts since the sensor started, without queries; rates and P99 are
// those of the last interval. TX/S and RX/S are bytes, with a ~ if some are estimates, and unmeasured instead of zero if some are
// not counted. MISSING has the reasons. BUSIEST is the engine of the GPU that the workload used most, with its busy ratio.
var useColumns = []column{
	{name: "WORKLOAD", key: defaultSort, text: true},
	{name: "DEVICE", key: "device", text: true},
	{name: "QP", key: "qp", kind: kindHCA},
	{name: "CQ", key: "cq", kind: kindHCA},
	{name: "MR", key: "mr", kind: kindHCA},
	{name: "REGISTERED", key: "registered", kind: kindHCA},
	{name: "TX/S", key: "tx", kind: kindHCA},
	{name: "RX/S", key: "rx", kind: kindHCA},
	{name: "VERBS/S", key: "verbs", kind: kindHCA},
	{name: "ERRORS", key: "errors", kind: kindHCA},
	{name: "P99", key: "p99", kind: kindHCA},
	{name: "MISSING", key: "missing", kind: kindHCA, text: true},
	{name: "PROCESSES", key: "processes", kind: kindGPU},
	{name: "MEMORY", key: "memory", kind: kindGPU},
	{name: "BUSIEST", key: "busy", kind: kindGPU},
	{name: "ALLOCATED", key: "allocated", kind: kindGPU, text: true},
	{name: "MODEL", key: "model", kind: kindGPU, text: true},
}

// The kinds of devices.
const (
	kindHCA = "hca"
	kindGPU = "gpu"
)

// uses returns the table of workloads and devices of now, with the growth since last, which may be nil. Rows are sorted by name, so
// that they keep their positions; the unattributed rows are last.
func uses(last, now *sample) *sheet {
	s := &sheet{columns: useColumns, rows: append(hcaRows(last, now), now.gpus.rows()...)}
	slices.SortStableFunc(s.rows, func(a, b row) int { return byName(a.key, b.key) })
	return s
}

// hcaRows returns the uses of HCAs.
func hcaRows(last, now *sample) []row {
	keys := map[key]bool{}
	addKeys(keys, now.objects)
	addKeys(keys, now.registered)
	addKeys(keys, now.errors)
	addKeys(keys, now.gaps)
	verbs := rates(last, now, keys, func(s *sample) map[series]float64 { return s.verbs })
	transmitted := rates(last, now, keys, func(s *sample) map[series]float64 { return s.transmitted })
	received := rates(last, now, keys, func(s *sample) map[series]float64 { return s.received })
	durations := map[key]histogram{}
	for s, h := range now.durations {
		keys[s.key] = true
		if last != nil {
			durations[s.key] = add(durations[s.key], h, last.durations[s])
		}
	}

	out := make([]row, 0, len(keys))
	for _, k := range slices.SortedFunc(maps.Keys(keys), byName) {
		out = append(out, row{key: k, kind: kindHCA, cells: map[string]cell{
			defaultSort:  words(format.Owner(k.workload)),
			"device":     words(format.Escape(k.device)),
			"qp":         figureOf(now.objects[k], "qp", format.Count),
			"cq":         figureOf(now.objects[k], "cq", format.Count),
			"mr":         figureOf(now.objects[k], "mr", format.Count),
			"registered": figureOf(now.registered, k, format.Size),
			"tx":         now.bytes(transmitted, k),
			"rx":         now.bytes(received, k),
			"verbs":      rateOf(verbs, k, rate.number),
			"errors":     figureOf(now.errors, k, format.Count),
			"p99":        p99(durations[k]),
			"missing":    words(now.missing(k)),
		}})
	}
	return out
}

// bytes renders the rate of bytes of a row.
func (s *sample) bytes(rates map[key]rate, k key) cell {
	if rates[k].perSecond == 0 && uncounted(s.gaps[k]) {
		return cell{text: format.Unmeasured}
	}
	return rateOf(rates, k, rate.size)
}

// uncounted reports whether bytes of now are not counted: the reason unattributed is of earlier ones.
func uncounted(gaps []string) bool {
	return slices.ContainsFunc(gaps, func(reason string) bool { return reason != "unattributed" })
}

// rateOf returns the rate of a key, an empty cell without.
func rateOf(rates map[key]rate, k key, render func(rate) string) cell {
	if r, ok := rates[k]; ok {
		return cell{render(r), r.perSecond, true}
	}
	return cell{text: format.None}
}

// missing renders why bytes of a row are not counted, none if all are.
func (s *sample) missing(k key) string {
	if len(s.gaps[k]) == 0 {
		return format.None
	}
	return strings.Join(s.gaps[k], ",")
}

func addKeys[V any](keys map[key]bool, rows map[key]V) {
	for k := range rows {
		keys[k] = true
	}
}

func byName(a, b key) int {
	if (a.workload == "") != (b.workload == "") {
		return cmp.Compare(b.workload, a.workload) // the empty one is last
	}
	return cmp.Or(
		cmp.Compare(a.workload, b.workload),
		cmp.Compare(a.containerID, b.containerID),
		cmp.Compare(a.device, b.device),
	)
}

// growth returns the growth of a counter. A counter that fell was reset by a restart of its
// sensor.
func growth(last, now float64) float64 {
	if now < last {
		return now
	}
	return now - last
}

// add adds the growth of now since last to sum.
func add(sum, now, last histogram) histogram {
	if now[math.Inf(1)] < last[math.Inf(1)] {
		last = nil // reset
	}
	if sum == nil {
		sum = histogram{}
	}
	for bound, n := range now {
		sum[bound] += math.Max(0, n-last[bound])
	}
	return sum
}

// quantile interpolates linearly within the bucket, like PromQL's histogram_quantile. above
// reports that the result is above the highest bound, which is returned then. ok is false for
// an empty histogram.
func (h histogram) quantile(q float64) (seconds float64, above, ok bool) {
	rank := q * h[math.Inf(1)]
	if !(rank > 0) {
		return 0, false, false
	}
	var low, below float64
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		switch n := h[bound]; {
		case math.IsInf(bound, 1):
			return low, true, true
		case n >= rank:
			return low + (bound-low)*(rank-below)/(n-below), false, true
		default:
			low, below = bound, n
		}
	}
	return low, true, true
}

func p99(h histogram) cell {
	seconds, above, ok := h.quantile(0.99)
	switch {
	case !ok:
		return cell{text: format.None}
	case above:
		return cell{">" + format.Duration(seconds), seconds, true}
	}
	return figure(seconds, format.Duration)
}

// A rate is the growth of a counter per second, which may be an estimate.
type rate struct {
	perSecond float64
	estimate  bool
}

// rates sums the growth of counters by row, and adds the rows to keys.
func rates(last, now *sample, keys map[key]bool, of func(*sample) map[series]float64) map[key]rate {
	sums := map[key]rate{}
	for s, n := range of(now) {
		keys[s.key] = true
		if last == nil {
			continue
		}
		grown := growth(of(last)[s], n)
		sum := sums[s.key]
		sum.perSecond += grown / now.at.Sub(last.at).Seconds()
		sum.estimate = sum.estimate || grown > 0 && s.labels == split
		sums[s.key] = sum
	}
	return sums
}

func (r rate) number() string { return format.PerSecond(r.perSecond) }

func (r rate) size() string {
	if r.estimate {
		return format.Estimate + format.Size(r.perSecond)
	}
	return format.Size(r.perSecond)
}
