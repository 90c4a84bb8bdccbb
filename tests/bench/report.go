// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// A result is all rounds on one node.
type result struct {
	node     string
	plan     plan
	counters int // values in the counter files of all ports
	figures  map[string][]*figures
}

func newResult(n node, m fixtures.Manifest) *result {
	r := &result{node: n.name, plan: n.plan, figures: map[string][]*figures{}}
	for _, h := range m.HCAs {
		r.counters += len(h.Counters) + len(h.HWCounters)
	}
	return r
}

// each returns the figure of every round; none for an exporter that did not run.
func (r *result) each(exporter string, get func(*figures) float64) []float64 {
	var values []float64
	for _, f := range r.figures[exporter] {
		values = append(values, get(f))
	}
	return values
}

func (r *result) median(exporter string, get func(*figures) float64) float64 {
	return quantile(r.each(exporter, get), 0.5)
}

// ratio is the median of a's figure by b's figure of the same round.
func (r *result) ratio(a, b string, get func(*figures) float64) float64 {
	as, bs := r.each(a, get), r.each(b, get)
	n := min(len(as), len(bs))
	for i := range n {
		as[i] /= bs[i]
	}
	return quantile(as[:n], 0.5)
}

// latency is a quantile over the paced scrapes of all rounds, in milliseconds.
func (r *result) latency(exporter string, q float64) float64 {
	var all []float64
	for _, f := range r.figures[exporter] {
		all = append(all, f.paced...)
	}
	return quantile(all, q)
}

// quantile is the nearest-rank quantile, between two for an even median; NaN of nothing.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if q == 0.5 && len(s)%2 == 0 {
		return (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return s[max(int(math.Ceil(q*float64(len(s))))-1, 0)]
}

func cpu(f *figures) float64      { return f.pacedCPU }
func fastCPU(f *figures) float64  { return f.fastCPU }
func syscalls(f *figures) float64 { return f.syscalls }
func rss(f *figures) float64      { return f.memory.rss }
func hwm(f *figures) float64      { return f.memory.peak }

// printTable prints a line for every exporter: medians over the rounds.
func (r *result) printTable(out io.Writer, use []exporter) {
	fmt.Fprintf(out, "\n%s: %d counters in files; median of %d rounds, each %d scrapes %v apart, then %d back to back (b2b)\n\n",
		r.node, r.counters, r.plan.rounds, r.plan.paced, pause, r.plan.backToBack)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "exporter\tp50 ms\tp99 ms\tCPU ms\t(min-max)\tb2b p50\tb2b CPU\tsyscalls\tper counter\tallocs\tseries\ttext kB\twire kB\t"+
		"RSS MB\tHWM MB\tanon MB\tidle ms/s\tstart ms\tCPU/floor\tCPU/node_exp\t")
	reuses := false
	for _, e := range use {
		median := func(get func(*figures) float64) float64 { return r.median(e.name, get) }
		cpus := r.each(e.name, cpu)
		mark := ""
		if r.figures[e.name][0].reuses {
			mark, reuses = "*", true
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t(%.2f-%.2f)\t%.2f%s\t%.2f%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t%.2f\t%.2f\t\n",
			e.name, r.latency(e.name, 0.5), r.latency(e.name, 0.99), median(cpu), slices.Min(cpus), slices.Max(cpus),
			median(func(f *figures) float64 { return f.fastP50 }), mark, median(fastCPU), mark,
			median(syscalls), median(syscalls)/float64(r.counters),
			median(func(f *figures) float64 { return f.allocs }),
			median(func(f *figures) float64 { return f.series }),
			median(func(f *figures) float64 { return f.text }),
			median(func(f *figures) float64 { return f.wire }),
			median(rss), median(hwm),
			median(func(f *figures) float64 { return f.memory.anon }),
			median(func(f *figures) float64 { return f.idleCPU }),
			median(func(f *figures) float64 { return f.started }),
			r.ratio(e.name, floor, cpu), r.ratio(e.name, nodeExporter, cpu))
	}
	w.Flush()
	if reuses {
		fmt.Fprintln(out, "* answered from what was read up to a second before: not comparable")
	}
}

// A gate is a figure of the sensor that has a goal: at most now for this
// version, at most release for the first release.
type gate struct {
	id, what     string
	value        float64
	now, release float64
}

func gates(plain, crowded *result) []gate {
	a := accelscope
	best := func(r *result, quotient func(peer string) float64) float64 { // by the best of the peers
		worst := math.NaN()
		for _, peer := range []string{nodeExporter, rdmaExporter} {
			if q := quotient(peer); math.IsNaN(worst) || q > worst {
				worst = q
			}
		}
		return worst
	}
	p99 := func(peer string) float64 { return plain.latency(a, 0.99) / plain.latency(peer, 0.99) }
	crowdedCPU := func(peer string) float64 { return crowded.ratio(a, peer, cpu) }
	size := func(f *figures) float64 { return f.binary }
	return []gate{
		{"A1", "CPU per scrape / node_exporter's", plain.ratio(a, nodeExporter, cpu), 0.4, 0.2},
		{"A2", "CPU per scrape / rdma_exporter's", plain.ratio(a, rdmaExporter, cpu), 1. / 6, 1. / 6},
		{"A3", "CPU per scrape / floor's", plain.ratio(a, floor, cpu), 1.6, 1.6},
		{"A4", "system calls per counter in files", plain.median(a, syscalls) / float64(plain.counters), 1.2, 1.2},
		{"A5", "p99 / the faster peer's", best(plain, p99), 0.25, 0.25},
		{"B1", "crowded: CPU / the cheaper peer's", best(crowded, crowdedCPU), 1. / 6, 1. / 6},
		{"B1", "crowded: p99, ms", crowded.latency(a, 0.99), 25, 25},
		{"E1", "RSS after all scrapes, MB", plain.median(a, rss), 24, 16},
		{"E1", "RSS / node_exporter's", plain.ratio(a, nodeExporter, rss), math.Inf(1), 1},
		{"E1", "peak RSS (HWM), MB", plain.median(a, hwm), math.Inf(1), 24},
		{"E2", "size of the binary, MB", plain.median(a, size), 14, 14},
		{"E2", "size / node_exporter's", plain.ratio(a, nodeExporter, size), 1, 1},
		{"E3", "CPU between scrapes, ms/s", plain.median(a, func(f *figures) float64 { return f.idleCPU }), 0.5, 0.5},
		{"E4", "start to first answer, ms", plain.median(a, func(f *figures) float64 { return f.started }), 150, 150},
	}
}

func printGates(out io.Writer, all []gate) {
	fmt.Fprint(out, "\nGoals of the sensor (\"crowded\" is the node with VFs; peers are node_exporter and rdma_exporter)\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "gate\twhat\tfigure\tgoal now\tgoal release\tverdict")
	limit := func(v float64) string {
		if math.IsInf(v, 1) {
			return "-"
		}
		return fmt.Sprintf("<= %.3g", v)
	}
	for _, g := range all {
		value, verdict := fmt.Sprintf("%.3g", g.value), "missed"
		switch {
		case math.IsNaN(g.value):
			value, verdict = "-", "not measured"
		case g.value <= g.release:
			verdict = "met"
		case g.value <= g.now:
			verdict = "met for now"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", g.id, g.what, value, limit(g.now), limit(g.release), verdict)
	}
	w.Flush()
}
