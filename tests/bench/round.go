// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// Figures are an exporter's measurements in a round. Times are in milliseconds, memory in MB, text in kB; NaN: not
// measured.
type figures struct {
	started   float64   // process start to first answered scrape
	startPeak float64   // HWM at the first answered scrape
	paced     []float64 // latencies
	pacedCPU  float64   // CPU per paced scrape, including the work between scrapes
	inScrape  []float64 // CPU from the request to the answer of each paced scrape
	firmware  float64   // commands of an mlx5 InfiniBand port per paced scrape, by the files that are read
	reuses    bool      // scrapes without a pause return cached values
	fastP50   float64   // latency back to back
	fastCPU   float64
	idleCPU   float64 // per second without a scrape
	syscalls  float64 // per paced scrape
	allocs    float64 // heap objects per paced scrape
	series    float64
	text      float64
	wire      float64
	memory    memory  // after all scrapes
	size      float64 // size of the program's file
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// startAll starts exporters. stop stops the running exporters, and must be called after an error, too.
func startAll(ctx context.Context, use []exporter, m fixtures.Manifest) (procs []*process, stop func(), err error) {
	stop = func() {
		for _, p := range procs {
			p.stop()
		}
	}
	for _, e := range use {
		p, err := e.start(ctx, m)
		if err != nil {
			return procs, stop, err
		}
		procs = append(procs, p)
	}
	return procs, stop, nil
}

// A session has the running exporters of a round.
type session struct {
	plan
	procs []*process
	figs  []*figures   // of procs
	move  func() error // changes counters
	reads *readWatch
}

// round starts all exporters, scrapes them in turn, and stops them.
func round(ctx context.Context, use []exporter, m fixtures.Manifest, p plan, res *result) error {
	procs, stop, err := startAll(ctx, use, m)
	defer stop()
	if err != nil {
		return err
	}
	figs := make([]*figures, 0, len(use))
	for _, proc := range procs {
		f := &figures{started: ms(proc.started), startPeak: proc.startPeak, syscalls: math.NaN(), firmware: math.NaN()}
		figs = append(figs, f)
		fi, err := os.Stat(proc.path)
		if err != nil {
			return err
		}
		f.size = float64(fi.Size()) / 1e6
	}
	if len(m.HCAs) > 0 {
		if err := truth(ctx, procs, figs, m); err != nil {
			return err
		}
	}
	move, stopMoving, err := newMover(m)
	defer stopMoving()
	if err != nil {
		return err
	}
	reads, err := newReadWatch(m)
	if err != nil {
		return err
	}
	defer reads.close()
	s := session{plan: p, procs: procs, figs: figs, move: move, reads: reads}
	for _, step := range []func(context.Context) error{s.paced, s.counted, s.backToBack, s.idle} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for i, proc := range procs {
		var err error
		if figs[i].memory, err = readMemory(proc.pid()); err != nil {
			return err
		}
		res.figures[proc.name] = append(res.figures[proc.name], figs[i])
	}
	return nil
}

// truth checks that all exporters show a counter file's value, so that no exporter is fast because it does nothing, and
// finds the exporters that return cached values.
func truth(ctx context.Context, procs []*process, figs []*figures, m fixtures.Manifest) error {
	h := m.HCAs[0]
	path := filepath.Join(m.Dir, h.PortDir, "counters/port_rcv_packets")
	sleep(ctx, pause) // the values read at the start are outdated now
	for n, value := range []uint64{1234567, 7654321} {
		if err := os.WriteFile(path, fmt.Appendln(nil, value), 0o644); err != nil {
			return err
		}
		for i, p := range procs {
			shown, err := p.shows(h.Name, value)
			if err != nil {
				return err
			}
			if n == 0 && !shown {
				return fmt.Errorf("%s does not show the packets that %s received", p.name, h.Name)
			}
			figs[i].reuses = !shown
		}
	}
	return nil
}

// inTurn calls f n times for every process, with a pause between a process's calls, evenly distributed over the pause.
// Before each turn counters change.
func (s *session) inTurn(ctx context.Context, n int, pause time.Duration, f func(i int, p *process) error) error {
	tick := time.NewTicker(pause / time.Duration(len(s.procs)))
	defer tick.Stop()
	for range n {
		if err := s.move(); err != nil {
			return err
		}
		for i, p := range s.procs {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			if err := f(i, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) paced(ctx context.Context) error {
	first := make([]answer, len(s.procs)) // a warm-up, not measured
	last := make([]answer, len(s.procs))
	before := make([]time.Duration, len(s.procs))
	err := s.inTurn(ctx, 1, s.every, func(i int, p *process) (err error) {
		if first[i], err = p.scrape(); err == nil {
			before[i], err = totalTime(p.pid())
		}
		return err
	})
	if err != nil {
		return err
	}
	err = s.inTurn(ctx, s.plan.paced, s.every, func(i int, p *process) error {
		began, err := cpuTime(p.pid())
		if err != nil {
			return err
		}
		if last[i], err = p.scrape(); err != nil {
			return err
		}
		ended, err := cpuTime(p.pid())
		s.figs[i].paced = append(s.figs[i].paced, ms(last[i].latency))
		s.figs[i].inScrape = append(s.figs[i].inScrape, ms(ended-began))
		return err
	})
	if err != nil {
		return err
	}
	for i, proc := range s.procs {
		after, err := totalTime(proc.pid())
		if err != nil {
			return err
		}
		s.figs[i].pacedCPU = ms(after-before[i]) / float64(s.plan.paced)
		text, err := last[i].text()
		if err != nil {
			return err
		}
		s.figs[i].wire, s.figs[i].text = float64(len(last[i].body))/1e3, float64(len(text))/1e3
		s.figs[i].allocs = (mallocs(last[i]) - mallocs(first[i])) / float64(s.plan.paced)
		samples(text, func(string, float64) { s.figs[i].series++ })
	}
	return nil
}

// mallocs returns a Go program's number of allocated heap objects.
func mallocs(a answer) float64 {
	n := math.NaN()
	if text, err := a.text(); err == nil {
		samples(text, func(series string, v float64) {
			if series == "go_memstats_mallocs_total" {
				n = v
			}
		})
	}
	return n
}

// counted counts system calls and reads of a port's files, apart from the timing because counting takes time.
func (s *session) counted(ctx context.Context) error {
	meters := make([]*syscallMeter, len(s.procs))
	for i, proc := range s.procs {
		m, err := newSyscallMeter(proc.pid())
		if err != nil {
			progress("system calls are not counted: %v", err)
			return nil
		}
		defer m.close()
		meters[i] = m
	}
	sums, commands := make([]uint64, len(s.procs)), make([]float64, len(s.procs))
	err := s.inTurn(ctx, s.plan.counted, pause, func(i int, p *process) error {
		before, err := meters[i].count()
		if err != nil {
			return err
		}
		s.reads.commands() // other exporters' reads
		if _, err := p.scrape(); err != nil {
			return err
		}
		commands[i] += s.reads.commands()
		time.Sleep(10 * time.Millisecond) // the server waits again
		after, err := meters[i].count()
		sums[i] += after - before
		return err
	})
	for i := range s.procs {
		s.figs[i].syscalls, s.figs[i].firmware = float64(sums[i])/float64(s.plan.counted), commands[i]/float64(s.plan.counted)
	}
	return err
}

func (s *session) backToBack(ctx context.Context) error {
	for i, proc := range s.procs {
		latencies := make([]float64, 0, s.plan.backToBack)
		before, err := cpuTime(proc.pid())
		if err != nil {
			return err
		}
		for range s.plan.backToBack {
			if err := ctx.Err(); err != nil {
				return err
			}
			a, err := proc.scrape()
			if err != nil {
				return err
			}
			latencies = append(latencies, ms(a.latency))
		}
		after, err := cpuTime(proc.pid())
		if err != nil {
			return err
		}
		s.figs[i].fastCPU = ms(after-before) / float64(s.plan.backToBack)
		s.figs[i].fastP50 = quantile(latencies, 0.5)
	}
	return nil
}

func (s *session) idle(ctx context.Context) error {
	cpu := func() ([]time.Duration, error) {
		all := make([]time.Duration, len(s.procs))
		for i, proc := range s.procs {
			var err error
			if all[i], err = totalTime(proc.pid()); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	sleep(ctx, time.Second) // work after a scrape has ended
	before, err := cpu()
	if err != nil {
		return err
	}
	sleep(ctx, s.plan.idle)
	after, err := cpu()
	if err != nil {
		return err
	}
	for i := range s.procs {
		s.figs[i].idleCPU = ms(after[i]-before[i]) / s.plan.idle.Seconds()
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
