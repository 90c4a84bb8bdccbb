// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// The GPU node, and the time without scrapes: long enough that 5-second work runs twice.
const (
	gpuContainers        = 50
	gpuProcsPerContainer = 4
	quietGPUs            = 10 * time.Second
)

type gpuFigures struct {
	name string
	costs
}

// measureGPUs runs the sensor with and without GPUs: eight of a fake NVML (four time-sliced, one with MPS, two with
// MIG), and 200 processes in 50 containers. The fake answers at once: the driver's time is not included.
func measureGPUs(ctx context.Context, sensor exporter, rounds, scrapes int, out io.Writer) error {
	dir, err := os.MkdirTemp("", "gpus-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	progress("writing a node of %d GPUs", nvml.GPUs)
	m, fake, processes, err := gpuNode(ctx, dir)
	if err != nil {
		return err
	}
	figs := []*gpuFigures{{name: "no GPUs"}, {name: fmt.Sprintf("%d GPUs, %d processes", nvml.GPUs, processes)}}
	args := [][]string{{"--no-collector.gpu"}, fake.Arguments}
	for round := range rounds {
		for i, f := range figs {
			progress("GPUs, %s: round %d of %d", f.name, round+1, rounds)
			e := onGPUNode(sensor, m, fake, args[i])
			if err := f.measure(ctx, e, m, scrapes); err != nil {
				return err
			}
		}
	}
	printGPUs(out, figs, rounds, scrapes)
	return nil
}

// gpuNode writes a node with GPUs and containers below dir. It also returns the fake NVML and the number of processes.
func gpuNode(ctx context.Context, dir string) (m fixtures.Manifest, fake nvml.Sensor, processes int, err error) {
	o := fixtures.Node()
	o.Containers, o.ProcsPerContainer = gpuContainers, gpuProcsPerContainer
	if m, err = fixtures.Write(filepath.Join(dir, "node"), o); err != nil {
		return m, fake, 0, err
	}
	var pids []int
	for _, c := range m.Containers {
		pids = append(pids, c.PIDs...)
	}
	fake, err = nvml.Bench(ctx, dir, m.SysFS(), m.ProcFS(), nvml.GPUs, func(s *nvml.Scenario) { s.Node(pids...) })
	return m, fake, len(pids), err
}

// onGPUNode returns the sensor on that node, with more arguments.
func onGPUNode(sensor exporter, m fixtures.Manifest, fake nvml.Sensor, more []string) exporter {
	return exporter{
		name: sensor.name, path: sensor.path, environment: fake.Environment,
		args: func(_ fixtures.Manifest, addr string) []string {
			return append([]string{
				"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(),
				"--web.listen-address=" + addr, "--no-collector.container", "--no-collector.node", "--no-collector.runtime",
				"--no-collector.kubelet", "--no-collector.access",
			}, more...)
		},
	}
}

func (f *gpuFigures) measure(ctx context.Context, e exporter, m fixtures.Manifest, scrapes int) error {
	p, err := e.start(ctx, m)
	if err != nil {
		return err
	}
	defer p.stop()
	sleep(ctx, 3*pause) // until processes have been listed
	if err := f.scrape(ctx, p, scrapes); err != nil {
		return err
	}
	return f.rest(ctx, p, quietGPUs)
}

func printGPUs(out io.Writer, figs []*gpuFigures, rounds, scrapes int) {
	fmt.Fprintf(out, "\n%d GPUs of a fake NVML that answers at once; medians of %d rounds of %d scrapes %v apart.\n\n", nvml.GPUs,
		rounds, scrapes, pause)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "sensor with\tp50 ms\tp99 ms\tCPU ms/scrape\tseries\ttext kB\tRSS MB\tprivate MB\tof the child: RSS MB\tprivate MB\tidle CPU ms/s\t")
	for _, f := range figs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.name, number(quantile(f.p50, 0.5), 2), number(quantile(f.p99, 0.5), 2),
			number(quantile(f.cpu, 0.5), 2), number(f.series, 0), number(f.text, 0), number(f.memory.rss, 1),
			number(f.memory.anon, 1), number(f.memory.childRSS, 1), number(f.memory.childAnon, 1), number(quantile(f.idle, 0.5), 2))
	}
	w.Flush()
}
