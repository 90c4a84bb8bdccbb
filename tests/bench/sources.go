// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// A source is switched on by a row: off is the argument of the rows before it, on that of the others.
type source struct{ name, off, on string }

// steps are in an order in which those before are needed by those after. The first row has the HCAs only. Sources that find nothing on the
// node, such as a GPU, are measured as well: they should cost nothing.
var steps = []source{
	{name: "cgroup", off: "--no-collector.cgroup"},
	{name: "probe", off: "--no-collector.probe"},
	{name: "link", off: "--no-collector.link"},
	{name: "pci", off: "--no-collector.pci"},
	{name: "kernellog", off: "--no-collector.kernellog"},
	{name: "access", off: "--no-collector.access"},
	{name: "container", off: "--no-collector.container"},
	{name: "node", off: "--no-collector.node"},
	{name: "gpu, none there", off: "--no-collector.gpu"},
	{name: "runtime, none there", off: "--no-collector.runtime"},
	{name: "kubelet, none there", off: "--no-collector.kubelet"},
	{name: "gpudriver, no driver there", on: "--collector.gpudriver"},
	{name: "datapath, no process there", on: "--rdma.datapath=budget"},
}

// measureSources prints what each source adds to the cost of a scrape and to memory on a node of HCAs: the sensor runs with one source more
// in each row. All run at the same time and are scraped in turn.
func measureSources(ctx context.Context, use []exporter, n node, out io.Writer) error {
	return ofSensor(use, func(sensor exporter) error {
		dir, err := os.MkdirTemp("", "sources-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		m, err := fixtures.Write(filepath.Join(dir, "node"), n.options)
		if err != nil {
			return err
		}
		rows, all := []string{"HCAs"}, []exporter{withSteps(sensor, 0)}
		for i, s := range steps {
			rows, all = append(rows, "and "+s.name), append(all, withSteps(sensor, i+1))
		}
		if i := slices.IndexFunc(use, func(e exporter) bool { return e.name == floor }); i >= 0 {
			rows, all = append(rows, floor), append(all, use[i])
		}
		figs := make([]costs, len(all))
		for round := range n.plan.rounds {
			progress("sources: round %d of %d", round+1, n.plan.rounds)
			if err := roundOfSources(ctx, all, m, n.plan, figs); err != nil {
				return err
			}
		}
		printSources(out, rows, figs, n.plan.rounds, n.plan.paced)
		return nil
	})
}

// withSteps returns the sensor with the sources of the first n steps.
func withSteps(sensor exporter, n int) exporter {
	var args []string
	for i, s := range steps {
		argument := s.on
		if i >= n {
			argument = s.off
		}
		if argument != "" {
			args = append(args, argument)
		}
	}
	sensor.args = func(m fixtures.Manifest, addr string) []string {
		return append([]string{
			"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(), "--web.listen-address=" + addr,
		}, args...)
	}
	return sensor
}

// roundOfSources starts all rows, and adds the costs of each to its figures.
func roundOfSources(ctx context.Context, rows []exporter, m fixtures.Manifest, p plan, figs []costs) error {
	procs, stop, err := startAll(ctx, rows, m)
	defer stop()
	if err != nil {
		return err
	}
	sleep(ctx, 3*pause) // until what runs at the start has ended
	scraped := make([]*figures, len(rows))
	for i := range scraped {
		scraped[i] = &figures{}
	}
	if err := paced(ctx, procs, scraped, p); err != nil {
		return err
	}
	for i, f := range scraped {
		figs[i].cpu, figs[i].series = append(figs[i].cpu, f.pacedCPU), f.series
		if figs[i].memory, err = readMemory(procs[i].pid()); err != nil {
			return err
		}
	}
	return nil
}

func printSources(out io.Writer, rows []string, figs []costs, rounds, scrapes int) {
	fmt.Fprintf(out, "\nWhat each source adds: 10 HCAs, medians of %d rounds of %d scrapes, with the work between two scrapes. Added figures are\n"+
		"those of the row less those of the row before.\n\n", rounds, scrapes)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "sensor with\tseries\tCPU ms/scrape\tadded\tadded to A3\tprivate MB\tadded\tRSS MB\t")
	base := math.NaN()
	if last := len(rows) - 1; rows[last] == floor {
		base = quantile(figs[last].cpu, 0.5)
	}
	var cpu, private float64
	for i, f := range figs {
		now := quantile(f.cpu, 0.5)
		added, ratio, memory := "-", "-", "-"
		if i > 0 && rows[i] != floor {
			added, ratio, memory = number(now-cpu, 2), number((now-cpu)/base, 2), number(f.memory.anon-private, 1)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", rows[i], number(f.series, 0), number(now, 2), added, ratio,
			number(f.memory.anon, 1), memory, number(f.memory.rss, 1))
		cpu, private = now, f.memory.anon
	}
	w.Flush()
}
