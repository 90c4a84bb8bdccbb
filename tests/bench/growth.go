// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// A growth is a series of nodes with more and more of one thing.
type growth struct {
	name   string // of the thing, plural
	points []int
	// setup makes a node with n things, and names the exporters that read it.
	setup func(ctx context.Context, dir string, n int) (site, error)
}

// A site is a node to measure.
type site struct {
	fixtures.Manifest
	use    []exporter
	shown  []string   // what each exporter's text must contain: no exporter is fast because it does nothing
	blind  []exporter // exporters that do not read these things: their curve is flat
	remove func()     // may be nil
}

// growthPlan is how long each node of a growth is measured.
type growthPlan struct {
	short   bool          // only two nodes, to show that the bench works
	every   time.Duration // between two scrapes, with the work in between
	scrapes int
}

// growthPlanOf returns the plan of a minute with a scrape interval, or a plan for a short bench.
func growthPlanOf(every time.Duration, short bool) growthPlan {
	if short {
		return growthPlan{true, pause, 1}
	}
	return growthPlan{false, every, int(time.Minute / every)}
}

// A load is an exporter's cost on a node: CPU time per scrape, with the work between scrapes, and memory with its
// children.
type load struct{ CPU, Resident, Private float64 } // ms, MB, MB

// A curve has an exporter's loads by the number of things.
type curve struct {
	Name   string
	Points []int
	Loads  []load
}

// slope returns the cost of one more thing over the whole curve: µs per scrape and kB of private memory.
func (c curve) slope() (cpu, private float64) {
	last := len(c.Points) - 1
	more := float64(c.Points[last] - c.Points[0])
	return 1e3 * (c.Loads[last].CPU - c.Loads[0].CPU) / more, 1e3 * (c.Loads[last].Private - c.Loads[0].Private) / more
}

// bend returns the slope between the last two points, divided by the slope of the points before: 1 on a straight line.
// NaN with two points, or if the value grows by less than a tenth in all, or not at all up to the last point but one.
func (c curve) bend(value func(load) float64) float64 {
	last := len(c.Points) - 1
	growth := func(from, to int) float64 { return value(c.Loads[to]) - value(c.Loads[from]) }
	if last < 2 || growth(0, last) < value(c.Loads[last])/10 || growth(0, last-1) <= 0 {
		return math.NaN()
	}
	slope := func(from, to int) float64 { return growth(from, to) / float64(c.Points[to]-c.Points[from]) }
	return slope(last-1, last) / slope(0, last-1)
}

// measureGrowth measures and prints all curves, and draws them into plots, if not empty.
func measureGrowth(ctx context.Context, use []exporter, p growthPlan, plots string, out io.Writer) error {
	use, err := growthExporters(ctx, use)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nGrowth: CPU per scrape with all work between two scrapes, %v apart, means of %d; memory with that of children.\n"+
		"Queue pairs: in an emulated guest, where CPU time is about ten times as much, with scrapes more often.\n", p.every, p.scrapes)
	for _, g := range growths(use) {
		curves, err := g.measure(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		if err := show(g.name, curves, plots, out); err != nil {
			return err
		}
	}
	curves, err := measureQueues(ctx, use, p.short)
	if err != nil {
		return err
	}
	return show(queuePairs, curves, plots, out)
}

// show prints and draws the curves of a growth.
func show(name string, curves []curve, plots string, out io.Writer) error {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, name+"\texporter\tCPU ms/scrape\tRSS MB\tprivate MB\t")
	for _, c := range curves {
		for i, l := range c.Loads {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t\n", c.Points[i], c.Name, number(l.CPU, 2), number(l.Resident, 1), number(l.Private, 1))
		}
	}
	w.Flush()
	for _, c := range curves {
		cpu, private := c.slope()
		fmt.Fprintf(out, "One more costs %s %s us of CPU per scrape and %s kB of private memory", c.Name, number(cpu, 1), number(private, 1))
		if last := len(c.Points) - 1; last > 1 {
			fmt.Fprintf(out, ": above %d %s and %s times as much as below", c.Points[last-1],
				number(c.bend(func(l load) float64 { return l.CPU }), 2), number(c.bend(func(l load) float64 { return l.Private }), 2))
		}
		fmt.Fprintln(out, ".")
	}
	printContainers(out, curves, compared)
	if plots == "" {
		return nil
	}
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(plots, strings.ReplaceAll(name, " ", "-")+".svg"), []byte(plot(name, curves)), 0o644)
}

func (g growth) measure(ctx context.Context, p growthPlan) (curves []curve, err error) {
	points := g.points
	if p.short {
		points = points[:2]
	}
	for _, n := range points {
		progress("%d %s", n, g.name)
		if err := g.point(ctx, n, p, func(i int, exporter string, l load) {
			if i == len(curves) {
				curves = append(curves, curve{Name: exporter})
			}
			curves[i].Points, curves[i].Loads = append(curves[i].Points, n), append(curves[i].Loads, l)
		}); err != nil {
			return nil, err
		}
	}
	return curves, nil
}

// point measures all exporters on a node with n things at the same time.
func (g growth) point(ctx context.Context, n int, p growthPlan, add func(i int, exporter string, l load)) error {
	dir, err := os.MkdirTemp("", "growth-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := g.setup(ctx, dir, n)
	if s.remove != nil {
		defer s.remove()
	}
	if err != nil {
		return err
	}
	procs, stop, err := startAll(ctx, slices.Concat(s.use, s.blind), s.Manifest)
	defer stop()
	if err != nil {
		return err
	}
	for _, proc := range procs[:len(s.use)] {
		if err := proc.showsAll(ctx, s.shown); err != nil {
			return err
		}
	}
	sleep(ctx, p.every) // the cost of the start is over
	before := make([]time.Duration, len(procs))
	for i, proc := range procs {
		if before[i], err = totalTime(proc.pid()); err != nil {
			return err
		}
	}
	for range p.scrapes {
		sleep(ctx, p.every)
		for _, proc := range procs {
			if _, err := proc.scrape(); err != nil {
				return err
			}
		}
	}
	for i, proc := range procs {
		after, err := totalTime(proc.pid())
		if err != nil {
			return err
		}
		m, err := readMemory(proc.pid())
		if err != nil {
			return err
		}
		add(i, proc.name, load{ms(after-before[i]) / float64(p.scrapes), m.rss + m.childRSS, m.anon + m.childAnon})
	}
	return ctx.Err()
}

// showsAll waits until an answer of p contains all texts.
func (p *process) showsAll(ctx context.Context, wanted []string) error {
	for begin := time.Now(); ; sleep(ctx, pause) {
		a, err := p.scrape()
		if err != nil {
			return err
		}
		text, err := a.text()
		if err != nil {
			return err
		}
		missing := ""
		for _, s := range wanted {
			if !strings.Contains(string(text), s) {
				missing = s
				break
			}
		}
		if missing == "" {
			return nil
		}
		if time.Since(begin) > 2*time.Minute || ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%s does not show %s\n%s", p.name, missing, p.output.String()))
		}
	}
}

// printContainers compares the sensor with cAdvisor on n containers, if both were measured.
func printContainers(out io.Writer, curves []curve, n int) {
	var own, other load
	for _, c := range curves {
		if i := slices.Index(c.Points, n); i >= 0 && c.Name == accelscope {
			own = c.Loads[i]
		} else if i >= 0 && c.Name == cadvisor {
			other = c.Loads[i]
		}
	}
	if other.CPU > 0 {
		fmt.Fprintf(out, "With %d containers, CPU per scrape / cAdvisor's: %s (limit 0.15); private memory: %s (0.45); resident: %s (0.7), the sensor's: %s MB (42).\n",
			n, number(own.CPU/other.CPU, 2), number(own.Private/other.Private, 2), number(own.Resident/other.Resident, 2), number(own.Resident, 1))
	}
}
