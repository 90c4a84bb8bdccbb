// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// steps are the sources in the order in which they are switched on, as those before are needed by those after. The first row has the
// HCAs only. Sources that find nothing on the node, such as a GPU, are measured as well: they should cost nothing.
var steps = []struct{ name, argument string }{
	{"cgroup", "collector.cgroup"},
	{"probe", "collector.probe"},
	{"link", "collector.link"},
	{"pci", "collector.pci"},
	{"kernellog", "collector.kernellog"},
	{"access", "collector.access"},
	{"container", "collector.container"},
	{"node", "collector.node"},
	{"gpu, none there", "collector.gpu"},
	{"runtime, none there", "collector.runtime"},
	{"kubelet, none there", "collector.kubelet"},
}

// more are sources and options that are off by default.
var more = []struct{ name, argument string }{
	{"gpudriver, no driver there", "--collector.gpudriver"},
	{"datapath, no process there", "--rdma.datapath=budget"},
}

// measureSources prints what each source adds to the cost of a scrape and to memory on a node of HCAs: the sensor runs with one source more
// in each row. All run at the same time and are scraped in turn.
func measureSources(ctx context.Context, use []exporter, m fixtures.Manifest, rounds, scrapes int, out io.Writer) error {
	rows := []string{"HCAs"}
	var all []exporter
	if err := ofSensor(use, func(sensor exporter) error {
		all = sourceRows(sensor)
		return nil
	}); err != nil || all == nil {
		return err
	}
	for _, s := range append(slices.Clone(steps), more...) {
		rows = append(rows, "and "+s.name)
	}
	if i := slices.IndexFunc(use, func(e exporter) bool { return e.name == floor }); i >= 0 {
		all, rows = append(all, use[i]), append(rows, floor)
	}
	figs := make([]costs, len(all))
	for round := range rounds {
		progress("sources: round %d of %d", round+1, rounds)
		if err := roundOfSources(ctx, all, m, scrapes, figs); err != nil {
			return err
		}
	}
	printSources(out, rows, figs, rounds, scrapes)
	return nil
}

// sourceRows returns the sensor with more and more sources.
func sourceRows(sensor exporter) (rows []exporter) {
	for on := range len(steps) + len(more) + 1 {
		var args []string
		for i, s := range steps {
			if i >= on {
				args = append(args, "--no-"+s.argument)
			}
		}
		for i, s := range more {
			if i < on-len(steps) {
				args = append(args, s.argument)
			}
		}
		rows = append(rows, exporter{name: sensor.name, path: sensor.path, args: func(m fixtures.Manifest, addr string) []string {
			return append([]string{
				"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(), "--web.listen-address=" + addr,
			}, args...)
		}})
	}
	return rows
}

// roundOfSources starts all rows, and adds the costs of each to its figures.
func roundOfSources(ctx context.Context, rows []exporter, m fixtures.Manifest, scrapes int, figs []costs) error {
	procs := make([]*process, len(rows))
	defer func() {
		for _, p := range procs {
			if p != nil {
				p.stop()
			}
		}
	}()
	for i, e := range rows {
		var err error
		if procs[i], err = e.start(ctx, m); err != nil {
			return err
		}
	}
	sleep(ctx, 3*pause) // until what runs at the start has ended
	before := make([]float64, len(rows))
	for i, p := range procs {
		begin, err := totalTime(p.pid())
		if err != nil {
			return err
		}
		before[i] = ms(begin)
	}
	for range scrapes {
		for i, p := range procs {
			got, err := p.scrape()
			if err != nil {
				return err
			}
			text, err := got.text()
			if err != nil {
				return err
			}
			figs[i].series = 0
			samples(text, func(string, float64) { figs[i].series++ })
		}
		sleep(ctx, pause)
	}
	for i, p := range procs {
		end, err := totalTime(p.pid())
		if err != nil {
			return err
		}
		figs[i].cpu = append(figs[i].cpu, (ms(end)-before[i])/float64(scrapes))
		if figs[i].memory, err = readMemory(p.pid()); err != nil {
			return err
		}
	}
	return ctx.Err()
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
