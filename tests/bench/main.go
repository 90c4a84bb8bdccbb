// SPDX-License-Identifier: Apache-2.0

// Command bench measures the cost of a scrape of the sensor, of other exporters and of the floor program, on fake
// nodes. Only ratios within a run are comparable, not values of different machines or runs. It asserts nothing.
//
// All exporters of a round run at the same time and are scraped in turn, so that disturbances affect all. Paced scrapes
// are 15 s apart, as users scrape, or a little more than a second, because the sensor reuses a read for one second.
// Between two scrapes 15 counters of every port of an HCA change.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// pause is the shortest time between two paced scrapes of an exporter; usual is Prometheus' time in its documentation.
const (
	pause = 1100 * time.Millisecond
	usual = 15 * time.Second
)

// A plan is the number and duration of measurements.
type plan struct {
	rounds     int
	every      time.Duration // between two paced scrapes
	paced      int           // scrapes
	counted    int           // the same, with system calls counted
	backToBack int           // scrapes without a pause
	idle       time.Duration // without a scrape
	background time.Duration // the same, for sources that work between scrapes
}

// A node is a fake node to measure.
type node struct {
	name    string
	options fixtures.Options
	plan    plan
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	short := flag.Bool("short", false, "only show that the bench works: one round, few scrapes")
	rounds := flag.Int("rounds", 2, "rounds on each node with 1.1 s between two scrapes; there is one round with 15 s")
	scrapes := flag.Int("scrapes", 120, "scrapes of each round, of each exporter")
	only := flag.String("only", "", "comma-separated names of the exporters to run (default all)")
	grow := flag.Bool("growth", false, "only measure how the cost grows with containers, ports, GPUs and queue pairs")
	each := flag.Bool("sources", false, "only measure what each source of the sensor adds")
	watched := flag.Bool("viewers", false, "only measure what open pages cost")
	plots := flag.String("plots", "", "directory for drawings of the growth (default: none)")
	links := flag.Bool("links", false, "only measure what the state of links costs per port and minute, in a guest")
	linksModule := flag.String("links-inside", "", "this is the guest, the kernel module is there (for its own use)")
	inside := flag.String("inside", "", "this is the guest, the workloads are there (for its own use)")
	var programs paths
	flag.StringVar(&programs.accelscope, "accelscope", "", "binary of accelscope (default: build it)")
	flag.StringVar(&programs.before, "before", "", "binary of another accelscope, such as the one before a change (default: leave it out)")
	flag.StringVar(&programs.nodeExporter, "node-exporter", os.Getenv("NODE_EXPORTER"),
		"binary of node_exporter, also by NODE_EXPORTER (default: build "+nodeExporterModule+
			" in the cache directory; with -short take that of the distribution)")
	flag.StringVar(&programs.floor, "floor", "", "binary of the floor program (default: build it)")
	flag.StringVar(&programs.rdmaExporter, "rdma-exporter", os.Getenv("RDMA_EXPORTER"),
		"binary of github.com/yuuki/rdma_exporter, also by RDMA_EXPORTER (default: leave it out)")
	flag.Parse()

	if *inside != "" {
		return queuesInside(ctx, *inside, programs, growthPlanOf(5*time.Second, *short))
	}
	if *linksModule != "" {
		return linksInside(ctx, *linksModule, programs.accelscope, *short, os.Stdout)
	}
	if *links {
		return measureLinks(ctx, programs.accelscope, *short, os.Stdout)
	}
	nodes := []node{
		{"10 HCAs", fixtures.Node(), plan{*rounds, pause, *scrapes, 5, 1000, time.Minute, time.Minute}},
		{"10 HCAs, 128 VFs, 500 containers", fixtures.CrowdedNode(), plan{*rounds, pause, *scrapes, 5, 100, 5 * time.Second, time.Minute}},
		{"10 HCAs, scraped as users do", fixtures.Node(), plan{1, usual, *scrapes, 5, 100, time.Minute, time.Minute}},
		{"no device", fixtures.Options{Seed: 1}, plan{1, usual, 8, 5, 100, time.Minute, time.Minute}},
	}
	viewing := viewerTime
	if *short {
		viewing = 2 * time.Second
		for i := range nodes {
			nodes[i].plan = plan{1, pause, 2, 1, 10, time.Second / 2, time.Second}
		}
	}
	dir, err := os.MkdirTemp("", "accelscope-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if programs.nodeExporter == "" {
		programs.nodeExporter = findNodeExporter(ctx, !*short)
	}
	use, err := prepare(ctx, dir, exporters(programs), *only)
	if err != nil {
		return err
	}
	if *grow {
		return measureGrowth(ctx, use, growthPlanOf(15*time.Second, *short), *plots, os.Stdout)
	}
	if *watched {
		return ofSensor(use, func(e exporter) error { return measureViewers(ctx, e, viewing, os.Stdout) })
	}
	if *each {
		return measureSources(ctx, use, nodes[0], os.Stdout)
	}
	printLoad(os.Stdout)
	var results []*result
	for i, n := range nodes {
		progress("writing a node of " + n.name)
		m, err := fixtures.Write(filepath.Join(dir, fmt.Sprint("node", i)), n.options)
		if err != nil {
			return err
		}
		res := newResult(n, m)
		for r := range n.plan.rounds {
			progress("%s: round %d of %d", n.name, r+1, n.plan.rounds)
			if err := round(ctx, use, m, n.plan, res); err != nil {
				return err
			}
		}
		results = append(results, res)
	}
	for _, res := range results {
		res.print(os.Stdout, use)
	}
	printGates(os.Stdout, "The crowded node has 128 VFs. The sensor has no sources of GPUs, containers, the node,\n"+
		"runtimes and the kubelet, also where the limit is for all sources. The limits beside cAdvisor are in the\n"+
		"curves of containers.", gates(results[0], results[1], results[2], results[3]))
	if err := printFiles(os.Stdout); err != nil {
		return err
	}
	if err := measureSources(ctx, use, nodes[0], os.Stdout); err != nil {
		return err
	}
	return ofSensor(use, func(e exporter) error {
		if err := measureHealth(ctx, e, results[0].manifest, os.Stdout); err != nil {
			return err
		}
		if err := measurePods(ctx, e, nodes[0].plan, os.Stdout); err != nil {
			return err
		}
		if err := measureGPUs(ctx, e, nodes[0].plan.rounds, nodes[0].plan.paced, os.Stdout); err != nil {
			return err
		}
		return measureViewers(ctx, e, viewing, os.Stdout)
	})
}

// ofSensor measures only the sensor, if it is among the exporters.
func ofSensor(use []exporter, measure func(exporter) error) error {
	if i := slices.IndexFunc(use, func(e exporter) bool { return e.name == accelscope }); i >= 0 {
		return measure(use[i])
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// prepare builds our programs, installs all in dir and returns the exporters to measure. It reports and skips programs
// that this machine lacks.
func prepare(ctx context.Context, dir string, all []exporter, only string) ([]exporter, error) {
	names := strings.Split(only, ",")
	var use []exporter
	for _, e := range all {
		if only != "" && !slices.Contains(names, e.name) {
			continue
		}
		if e.path == "" {
			progress("%s is left out: %s", e.name, missing[e.name])
			continue
		}
		installed := filepath.Join(dir, strings.ReplaceAll(e.path, "/", "_"))
		if _, err := os.Stat(installed); err != nil { // two exporters may be the same program
			if pkg, ours := strings.CutPrefix(e.path, "build:"); ours {
				e.path = installed + ".linked"
				if err := build(ctx, "", pkg, e.path); err != nil {
					return nil, err
				}
			}
			if err := install(e.path, installed); err != nil {
				return nil, err
			}
		}
		e.path = installed
		use = append(use, e)
	}
	if len(use) == 0 {
		return nil, errors.New("no exporter to measure")
	}
	return use, nil
}

// install copies a program in small pieces, as packages and images are unpacked. The page cache keeps a just linked
// file in larger pieces, and a touch makes a whole piece resident: 7 MB more for the sensor.
func install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 32<<10))
	return errors.Join(err, out.Close())
}

// build builds a package of the module in dir, by default of this module.
func build(ctx context.Context, dir, pkg, out string) error {
	progress("building " + filepath.Base(out))
	cmd := child.Command(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, msg)
	}
	return nil
}
