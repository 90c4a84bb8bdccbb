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
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/machines/ibsim"
)

// A source is enabled by a row: off is the argument of earlier rows, on are the arguments of this and later rows.
type source struct {
	name  string
	off   string
	on    []string
	shown string // what the text must then contain: a source that reads something is not fast because it does nothing
}

// steps are ordered by dependency. The first row has only the HCAs. Sources that find nothing on the node, such as a
// GPU, are measured, too: they should cost nothing. r receives events. tools read a fabric; if empty, the row is left
// out.
func steps(r *receiver, tools string) []source {
	all := []source{
		{name: "cgroup", off: "--no-collector.cgroup"},
		{name: "probe", off: "--no-collector.probe"},
		{name: "link, no driver there", off: "--no-collector.link"},
		{name: "modules of links, no driver there", off: "--no-link.modules"},
		{name: "pci", off: "--no-collector.pci"},
		{name: "kernellog", off: "--no-collector.kernellog"},
		{name: "access", off: "--no-collector.access"},
		{name: "container", off: "--no-collector.container"},
		{name: "node", off: "--no-collector.node"},
		{name: "gpu, none there", off: "--no-collector.gpu"},
		{name: "runtime, none there", off: "--no-collector.runtime"},
		{name: "kubelet, none there", off: "--no-collector.kubelet"},
		{name: "gpudriver, no driver there", on: []string{"--collector.gpudriver"}},
		{name: "gpumemory, no process there", on: []string{"--gpu.allocation-failures"}},
		{name: "collective, no process there", on: []string{"--collector.collective"}},
		{name: "datapath, no process there", on: []string{"--rdma.datapath=survey"}},
		{name: "pages, nobody has one open", off: "--no-web.pages"},
		{name: "events, to a receiver", on: r.arguments(), shown: "accelscope_events_connected 1"},
	}
	if tools != "" {
		all = append(all, source{
			name: "fabric", on: []string{"--collector.fabric", "--fabric.tools=" + tools}, shown: "infiniband_switch_",
		})
	}
	return all
}

type sourceCosts struct {
	costs
	calls     []float64 // system calls from request to answer
	restCalls []float64 // in a minute without a scrape
	restCPU   []float64 // ms in that minute, with the children's
}

// measureSources prints what each source adds to the cost of a scrape, to the work between scrapes and to memory on a
// node with HCAs: each row has one more source. All rows run at the same time and are scraped in turn.
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
		r, err := startReceiver()
		if err != nil {
			return err
		}
		defer r.stop()
		var last []exporter
		if i := slices.IndexFunc(use, func(e exporter) bool { return e.name == floor }); i >= 0 {
			last = use[i : i+1]
		}
		var rows []string
		var figs []sourceCosts
		for round := range n.plan.rounds {
			progress("sources: round %d of %d", round+1, n.plan.rounds)
			if rows, err = roundOfSources(ctx, sensor, last, r, m, n.plan, &figs); err != nil {
				return err
			}
		}
		printSources(out, rows, figs, n.plan)
		return nil
	})
}

// withSteps returns the sensor with the sources of the first n steps.
func withSteps(sensor exporter, all []source, n int) exporter {
	var args []string
	for i, s := range all {
		switch {
		case i < n:
			args = append(args, s.on...)
		case s.off != "":
			args = append(args, s.off)
		}
	}
	sensor.args = func(m fixtures.Manifest, addr string) []string {
		return append([]string{
			"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(), "--web.listen-address=" + addr,
		}, args...)
	}
	return sensor
}

// startFabric starts a fabric of 12 switches and 64 hosts, and returns the directory of its tools, or "" if this
// machine lacks the programs.
func startFabric(ctx context.Context) (tools string, stop func()) {
	net := ibsim.FatTree(8, 8, 4)
	f, err := ibsim.Start(ctx, ibsim.Options{Net: net.String(), Host: net.Nodes[net.Find("host0 mlx5_0")].ID()})
	if err != nil {
		progress("fabric is left out: %v", err)
		return "", func() {}
	}
	return f.Tools, func() {
		if err := f.Close(); err != nil {
			progress("%v", err)
		}
	}
}

// roundOfSources starts all rows, and adds their costs to figs. It returns the names of the rows; the last are other
// programs. A fabric serves one round: a tool that is killed at the end may end ibsim.
func roundOfSources(
	ctx context.Context, sensor exporter, last []exporter, r *receiver, m fixtures.Manifest, p plan, figs *[]sourceCosts,
) (rows []string, err error) {
	tools, endFabric := startFabric(ctx)
	defer endFabric()
	switched := steps(r, tools)
	rows, all := []string{"HCAs"}, []exporter{withSteps(sensor, switched, 0)}
	for i, s := range switched {
		rows, all = append(rows, "and "+s.name), append(all, withSteps(sensor, switched, i+1))
	}
	for _, e := range last {
		rows, all = append(rows, e.name), append(all, e)
	}
	if *figs == nil {
		*figs = make([]sourceCosts, len(all))
	}
	procs, stop, err := startAll(ctx, all, m)
	defer stop()
	if err != nil {
		return nil, err
	}
	for i, s := range switched {
		if s.shown == "" {
			continue
		}
		if err := procs[i+1].showsAll(ctx, []string{s.shown}); err != nil {
			return nil, err
		}
	}
	sleep(ctx, 3*pause) // the work of the start has ended
	scraped := make([]*figures, len(all))
	for i := range scraped {
		scraped[i] = &figures{}
	}
	visit := session{plan: p, procs: procs, figs: scraped, move: func() error { return nil }}
	if err := visit.paced(ctx); err != nil {
		return nil, err
	}
	for i, f := range scraped {
		c := &(*figs)[i]
		c.cpu, c.series = append(c.cpu, f.pacedCPU), f.series
		if c.memory, err = readMemory(procs[i].pid()); err != nil {
			return nil, err
		}
	}
	return rows, countSources(ctx, &visit, *figs)
}

// countSources counts the system calls of scrapes, and of rows without scrapes, without Go's scheduler.
func countSources(ctx context.Context, visit *session, figs []sourceCosts) error {
	procs, p := visit.procs, visit.plan
	meters := make([]*syscallMeter, len(procs))
	for i, proc := range procs {
		m, err := newSyscallMeter(proc.pid(), schedulerCalls...)
		if err != nil {
			progress("system calls are not counted: %v", err)
			return nil
		}
		defer m.close()
		meters[i] = m
	}
	if err := visit.inTurn(ctx, p.counted, pause, func(i int, p *process) error {
		before, err := meters[i].count()
		if err != nil {
			return err
		}
		if _, err := p.scrape(); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // the server waits again
		after, err := meters[i].count()
		figs[i].calls = append(figs[i].calls, float64(after-before))
		return err
	}); err != nil {
		return err
	}
	sleep(ctx, time.Second) // work after a scrape has ended
	calls, spent := make([]uint64, len(procs)), make([]time.Duration, len(procs))
	var err error
	for i, proc := range procs {
		if calls[i], err = meters[i].count(); err != nil {
			return err
		}
		if spent[i], err = totalTime(proc.pid()); err != nil {
			return err
		}
	}
	sleep(ctx, p.background)
	minutes := p.background.Minutes()
	for i, proc := range procs {
		n, err := meters[i].count()
		if err != nil {
			return err
		}
		t, err := totalTime(proc.pid())
		if err != nil {
			return err
		}
		figs[i].restCalls = append(figs[i].restCalls, float64(n-calls[i])/minutes)
		figs[i].restCPU = append(figs[i].restCPU, ms(t-spent[i])/minutes)
	}
	return ctx.Err()
}

func printSources(out io.Writer, rows []string, figs []sourceCosts, p plan) {
	fmt.Fprintf(out, "\nWhat each source adds: 10 HCAs, medians of %d rounds of %d scrapes, with the work between two scrapes. System calls are those from a\n"+
		"request to its answer; between: those of a minute without a scrape, with the programs that the sensor starts, measured over %v. Those\n"+
		"of Go's scheduler (futex, nanosleep, epoll and so on) do not count. Added figures are those of the row less those of the row before.\n\n",
		p.rounds, p.paced, p.background)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "sensor with\tseries\tCPU ms/scrape\tadded\tadded to A3\tsystem calls/scrape\tadded\tprivate MB\tadded\tRSS MB\t"+
		"between: CPU ms/min\tadded\tsystem calls/min\tadded\t")
	base := math.NaN()
	if last := len(rows) - 1; rows[last] == floor {
		base = quantile(figs[last].cpu, 0.5)
	}
	columns := []struct {
		value  func(*sourceCosts) float64
		digits int
		ratio  bool // also what it adds to the ratio to the floor program
	}{
		{func(c *sourceCosts) float64 { return quantile(c.cpu, 0.5) }, 2, true},
		{func(c *sourceCosts) float64 { return quantile(c.calls, 0.5) }, 0, false},
		{func(c *sourceCosts) float64 { return c.memory.anon }, 1, false},
		{func(c *sourceCosts) float64 { return quantile(c.restCPU, 0.5) }, 1, false},
		{func(c *sourceCosts) float64 { return quantile(c.restCalls, 0.5) }, 0, false},
	}
	for i := range figs {
		fmt.Fprintf(w, "%s\t%s\t", rows[i], number(figs[i].series, 0))
		for n, c := range columns {
			value, added := c.value(&figs[i]), math.NaN()
			if i > 0 && rows[i] != floor {
				added = value - c.value(&figs[i-1])
			}
			fmt.Fprintf(w, "%s\t%s\t", number(value, c.digits), number(added, c.digits))
			if c.ratio {
				fmt.Fprintf(w, "%s\t", number(added/base, 2))
			}
			if n == 2 {
				fmt.Fprintf(w, "%s\t", number(figs[i].memory.rss, 1))
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}
