// SPDX-License-Identifier: Apache-2.0

// Fleet fills a Prometheus with the series of many nodes, and measures what it costs to evaluate the rules, to draw the dashboards and to
// show the page of all nodes.
//
// The series come from one recorded scrape (a test of pkg/metrics records it), with names and values varied: each node has
// its own instance, UUIDs and pods, counters grow, workloads come and go, and ten of a hundred nodes are sick. They arrive by remote
// write, five minutes of a node in each request, so the memory of the generator does not grow with time. Then come the
// recording rules of that past, evaluated by the same Prometheus, and from then on each interval as it passes, with the rules
// loaded.
//
//	go run ./tests/suites/fleet -nodes 1000 -minutes 60           # fills a Prometheus and leaves it running
//	go run ./tests/suites/fleet -nodes 1000 -minutes 60 -measure  # measures and ends
//
// By default the nodes have the series that the rules and dashboards read: the filter in deploy/prometheus/scale.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	interval  = 30 * time.Second // the scrape interval of the nodes
	usualJobs = 8                // nodes of a job
)

type options struct {
	nodes, minutes int
	jobs           int    // nodes of a job
	all            bool   // all series of the larger node
	scrape         string // file; empty: record it
	listen, data   string // of Prometheus
	quiet          bool
	open           func(context.Context, *fleet) (store, error)
	lag            float64        // by which part rates may differ from the truth: they are of some seconds ago
	unknown        *regexp.Regexp // what the store does not know in rule files; nil: nothing
	// every is the evaluation interval of the rules; an alert's minutes then become seconds. 0: as the rules say.
	every    time.Duration
	minutely bool // the job rules are still evaluated each minute: unused hours are a count of minutes
}

func main() {
	o := options{open: openPrometheus}
	var only bool
	flag.IntVar(&o.nodes, "nodes", 100, "number of nodes")
	flag.IntVar(&o.jobs, "job-nodes", usualJobs, "number of nodes of a job")
	flag.IntVar(&o.minutes, "minutes", 60, "length of the past, at most 60")
	flag.BoolVar(&o.all, "all", false, "all series of a node with 8 GPUs, 10 HCAs and 16 workloads, not only those that rules and dashboards read")
	flag.StringVar(&o.scrape, "scrape", "", "`file` with the metrics of a node (default: recorded by a test)")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:9090", "address of Prometheus")
	flag.StringVar(&o.data, "data", "", "`directory` of its data, which must not exist (default: a temporary one)")
	flag.DurationVar(&o.every, "every", 0, "time between two evaluations of the rules (default: as the rules say)")
	flag.BoolVar(&only, "measure", false, "measure rules and dashboards, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, only); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, measure bool) error {
	f, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer f.stop()
	if measure {
		return f.measure(ctx)
	}
	fmt.Printf("Prometheus: http://%s (until interrupted)\n", o.listen)
	select {
	case <-ctx.Done():
		return nil
	case err := <-f.live:
		return err
	}
}

// recordScrapes writes the scrapes of the nodes into a directory.
func recordScrapes(ctx context.Context, dir string) error {
	cmd := child.Command(ctx, "go", "test", "-count=1", "-run", "^TestFleetNodes$", "github.com/accelscope/accelscope/pkg/metrics")
	cmd.Env = append(os.Environ(), "ACCELSCOPE_RECORD="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("recording a scrape: %w: %s", err, out)
	}
	return nil
}

// root returns the directory of the repository.
func root(ctx context.Context) (string, error) {
	out, err := child.Command(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("go list: %w: %s", err, failed.Stderr)
	}
	return filepath.Clean(string(out[:max(0, len(out)-1)])), err
}
