// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/machines/containerd"
)

// The Kubernetes node: as many pods as the kubelet allows by default.
const (
	pods             = 110
	containersPerPod = 3
	quietPods        = 10 * time.Second // without a scrape: events look for new users of devices every 5 s
)

func podNode() fixtures.Options {
	o := fixtures.Node()
	o.Containers, o.ContainersPerPod, o.ProcsPerContainer = pods*containersPerPod, containersPerPod, 1
	return o
}

// podFigures are the sensor's costs on a node full of pods.
type podFigures struct {
	name string
	costs
	calls    float64 // RPCs per scrape
	settling float64 // RPCs before the first scrape
}

// measurePods runs the sensor with a real containerd with 330 containers and a fake kubelet, on fake cgroups without
// processes. Each row enables one more source: the source's cost is the difference between rows.
func measurePods(ctx context.Context, sensor exporter, p plan, out io.Writer) error {
	dir, err := os.MkdirTemp("", "pods-") // a short path, because sockets are in it
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	progress("writing a node of %d pods", pods)
	m, err := fixtures.Write(filepath.Join(dir, "node"), podNode())
	if err != nil {
		return err
	}
	daemon, err := containerd.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer daemon.Kill()
	for i, c := range m.Containers {
		pod := fmt.Sprintf("train-%d", i/containersPerPod)
		if err := daemon.Create(ctx, c.ID, "ml", pod, c.PodUID, fmt.Sprintf("c%d", i%containersPerPod)); err != nil {
			return err
		}
	}
	counter, err := countCalls(filepath.Join(dir, "counted.sock"), daemon.Socket)
	if err != nil {
		return err
	}
	defer counter.close()
	kube, err := startKubelet(filepath.Join(dir, "kubelet.sock"), m)
	if err != nil {
		return err
	}
	defer kube()
	events, err := startReceiver()
	if err != nil {
		return err
	}
	defer events.stop()

	common := []string{
		"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(),
		"--path.host=" + dir, "--runtime.socket=containerd:" + counter.path,
		"--kubelet.pod-resources=" + filepath.Join(dir, "kubelet.sock"),
	}
	const off = "--no-collector."
	figs := []*podFigures{{name: "names only"}, {name: "and the kubelet"}, {name: "and container metrics"}, {name: "and events"}}
	args := [][]string{
		{off + "node", off + "container", off + "kubelet"},
		{off + "node", off + "container"},
		{off + "node"},
		append(events.arguments(), off+"node"),
	}
	for round := range p.rounds {
		for i, f := range figs {
			progress("%d pods, %s: round %d of %d", pods, f.name, round+1, p.rounds)
			e := exporter{name: sensor.name, path: sensor.path, args: func(_ fixtures.Manifest, addr string) []string {
				return append(append([]string{"--web.listen-address=" + addr}, common...), args[i]...)
			}}
			if err := f.measure(ctx, e, m, counter, p); err != nil {
				return err
			}
		}
	}
	if n := events.events.Load(); n < pods*containersPerPod {
		return fmt.Errorf("%d events of %d containers", n, pods*containersPerPod)
	}
	printPods(out, figs, p)
	return nil
}

func (f *podFigures) measure(ctx context.Context, e exporter, m fixtures.Manifest, calls *callCounter, plan plan) error {
	before := calls.count()
	p, err := e.start(ctx, m)
	if err != nil {
		return err
	}
	defer p.stop()
	name := []byte(`workload="ml/train-109/c2"`)
	for wait := time.Now(); ; sleep(ctx, pause) {
		last, err := p.scrape()
		if err != nil {
			return err
		}
		text, err := last.text()
		if err != nil {
			return err
		}
		if bytes.Contains(text, name) {
			break
		}
		if time.Since(wait) > 30*time.Second || ctx.Err() != nil {
			return fmt.Errorf("the containers have no names:\n%s", p.output.String())
		}
	}
	sleep(ctx, pause)
	settled := calls.count()
	if err := f.scrape(ctx, p, plan.paced); err != nil {
		return err
	}
	f.calls = float64(calls.count()-settled) / float64(plan.paced)
	for range plan.backToBack {
		if _, err := p.scrape(); err != nil {
			return err
		}
	}
	if f.memory, err = readMemory(p.pid()); err != nil {
		return err
	}
	f.settling = float64(settled - before)
	return f.rest(ctx, p, quietPods)
}

func printPods(out io.Writer, figs []*podFigures, p plan) {
	fmt.Fprintf(out, "\n%d pods of %d containers, known to a real containerd; fake cgroups. Medians of %d rounds of %d scrapes "+
		"%v apart. Memory is that after %d more without a pause.\n\n", pods, containersPerPod, p.rounds, p.paced, pause, p.backToBack)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "sensor with\tp50 ms\tCPU ms/scrape\tseries\ttext kB\tRSS MB\tprivate MB\tHWM MB\tidle CPU ms/s\tRPCs/scrape\tRPCs to settle\t")
	for _, f := range figs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.name, number(quantile(f.p50, 0.5), 2), number(quantile(f.cpu, 0.5), 2),
			number(f.series, 0), number(f.text, 0), number(f.memory.rss, 1), number(f.memory.anon, 1), number(f.memory.peak, 1),
			number(quantile(f.idle, 0.5), 2), number(f.calls, 2), number(f.settling, 0))
	}
	w.Flush()
	if base := quantile(figs[0].cpu, 0.5); base > 0 {
		all := quantile(figs[2].cpu, 0.5)
		fmt.Fprintf(out, "Container metrics: %s us per container and scrape.\n",
			number(1e3*math.Max(all-base, 0)/(pods*containersPerPod), 1))
	}
	all := figs[2].memory
	printGates(out, "The node has 330 containers with container metrics, and the kubelet.", []gate{
		{"resident after all scrapes, MB", all.rss, 42},
	})
}
