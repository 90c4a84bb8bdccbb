// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// A result has all rounds on one node.
type result struct {
	node     string
	plan     plan
	manifest fixtures.Manifest
	counters int // values in the counter files of all ports
	figures  map[string][]*figures
}

func newResult(n node, m fixtures.Manifest) *result {
	r := &result{node: n.name, plan: n.plan, manifest: m, figures: map[string][]*figures{}}
	for _, h := range m.HCAs {
		r.counters += len(h.Counters) + len(h.HWCounters)
	}
	return r
}

// each returns the value of every round, nil for an exporter that did not run.
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

// ratio is the median over the rounds of a's value divided by b's value.
func (r *result) ratio(a, b string, get func(*figures) float64) float64 {
	as, bs := r.each(a, get), r.each(b, get)
	n := min(len(as), len(bs))
	for i := range n {
		as[i] /= bs[i]
	}
	return quantile(as[:n], 0.5)
}

// latency is a quantile of the paced scrapes of all rounds, in milliseconds.
func (r *result) latency(exporter string, q float64) float64 {
	return r.scrapes(exporter, q, func(f *figures) []float64 { return f.paced })
}

// inScrape is a quantile of the CPU time from the request to the answer, in milliseconds.
func (r *result) inScrape(exporter string, q float64) float64 {
	return r.scrapes(exporter, q, func(f *figures) []float64 { return f.inScrape })
}

func (r *result) scrapes(exporter string, q float64, get func(*figures) []float64) float64 {
	var all []float64
	for _, f := range r.figures[exporter] {
		all = append(all, get(f)...)
	}
	return quantile(all, q)
}

// everyMinute is the CPU time per scrape with a minute between two scrapes, computed from the scrapes of r and the time
// without a scrape.
func (r *result) everyMinute(exporter string) float64 {
	return r.inScrape(exporter, 0.5) + 60*r.median(exporter, idleCPU)
}

// quantile returns the nearest-rank quantile; for an even median the mean of two values; NaN without values.
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

// A column is one value of every exporter.
type column struct {
	head   string
	digits int
	value  func(r *result, exporter string) float64
}

func each(head string, digits int, get func(*figures) float64) column {
	return column{head, digits, func(r *result, exporter string) float64 { return r.median(exporter, get) }}
}

var tables = [][]column{
	{
		{"p50 ms", 2, func(r *result, e string) float64 { return r.latency(e, 0.5) }},
		{"p90 ms", 2, func(r *result, e string) float64 { return r.latency(e, 0.9) }},
		{"p99 ms", 2, func(r *result, e string) float64 { return r.latency(e, 0.99) }},
		each("CPU ms", 2, cpu),
		{"in scrape p25", 2, func(r *result, e string) float64 { return r.inScrape(e, 0.25) }},
		{"p50", 2, func(r *result, e string) float64 { return r.inScrape(e, 0.5) }},
		{"p90", 2, func(r *result, e string) float64 { return r.inScrape(e, 0.9) }},
		{"/ floor", 2, func(r *result, e string) float64 { return r.ratio(e, floor, cpu) }},
		{"/ node_exporter", 2, func(r *result, e string) float64 { return r.ratio(e, nodeExporter, cpu) }},
		each("us/series", 1, func(f *figures) float64 { return 1e3 * f.pacedCPU / f.series }),
		each("b2b p50 ms", 2, func(f *figures) float64 { return f.fastP50 }),
		each("b2b CPU ms", 2, fastCPU),
		{"b2b / floor", 2, func(r *result, e string) float64 { return r.ratio(e, floor, fastCPU) }},
		each("syscalls", 0, syscalls),
		{"/ counter", 2, func(r *result, e string) float64 { return r.median(e, syscalls) / float64(r.counters) }},
		each("firmware", 0, firmware),
	}, {
		each("series", 0, func(f *figures) float64 { return f.series }),
		each("text kB", 1, func(f *figures) float64 { return f.text }),
		each("wire kB", 1, func(f *figures) float64 { return f.wire }),
		each("allocs/scrape", 0, allocs),
		each("RSS MB", 1, rss),
		each("start HWM MB", 1, startHWM),
		each("HWM MB", 1, hwm),
		each("private MB", 1, private),
		each("binary MB", 1, size),
		each("idle CPU ms/s", 2, idleCPU),
		each("start ms", 0, started),
	},
}

func cpu(f *figures) float64      { return f.pacedCPU }
func fastCPU(f *figures) float64  { return f.fastCPU }
func idleCPU(f *figures) float64  { return f.idleCPU }
func syscalls(f *figures) float64 { return f.syscalls }
func rss(f *figures) float64      { return f.memory.rss }
func private(f *figures) float64  { return f.memory.anon }
func startHWM(f *figures) float64 { return f.startPeak }
func hwm(f *figures) float64      { return f.memory.peak }
func size(f *figures) float64     { return f.size }
func started(f *figures) float64  { return f.started }
func firmware(f *figures) float64 { return f.firmware }
func allocs(f *figures) float64   { return f.allocs }

// print prints the tables: medians over the rounds.
func (r *result) print(out io.Writer, use []exporter) {
	fmt.Fprintf(out, "\n%s: %d counters in files. Medians of %d rounds, each %d scrapes %v apart, "+
		"then %d back to back (b2b).\nCPU, with the work between scrapes, and system calls are per scrape; in scrape: CPU from the request to the answer.\n"+
		"Firmware: commands of one mlx5 InfiniBand port, by the files that are read and a table from the driver's source.\n",
		r.node, r.counters, r.plan.rounds, r.plan.paced, r.plan.every, r.plan.backToBack)
	for _, columns := range tables {
		fmt.Fprintln(out)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(w, "exporter\t")
		for _, c := range columns {
			fmt.Fprint(w, c.head, "\t")
		}
		fmt.Fprintln(w)
		for _, e := range use {
			fmt.Fprint(w, e.name, "\t")
			for _, c := range columns {
				fmt.Fprint(w, number(c.value(r, e.name), c.digits), "\t")
			}
			fmt.Fprintln(w)
		}
		w.Flush()
	}
	for _, e := range use {
		if r.figures[e.name][0].reuses {
			fmt.Fprintf(out, "%s answers from what it read up to a second before: its b2b figures do not compare.\n", e.name)
		}
	}
}

func number(v float64, digits int) string {
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
