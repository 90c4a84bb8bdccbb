// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// polls returns the mean number of polls of an empty CQ per second of CPU time, over several reports of the program.
func (c *container) polls(t *testing.T, d time.Duration) (mean float64, samples int) {
	t.Helper()
	for len(c.lines) > 0 {
		<-c.lines
	}
	c.line(t, "polls") // the first report may cover time before the call
	var sum float64
	for end := time.Now().Add(d); time.Now().Before(end); samples++ {
		var rate float64
		if _, err := fmt.Sscanf(c.line(t, "polls"), "polls %f", &rate); err != nil {
			t.Fatal(err)
		}
		sum += rate
	}
	return sum / float64(samples), samples
}

// cpu returns the CPU time of a process in seconds.
func cpu(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		t.Fatal(err)
	}
	system, err := strconv.ParseFloat(f[12], 64)
	if err != nil {
		t.Fatal(err)
	}
	return (user + system) / 100
}

// budget: a process that only polls an empty CQ keeps its CPU time and most of its throughput. The speed of an
// emulator, and the delay until the sensor wakes up, depend on the load of the machine: two equal runs differ by a
// tenth. So the limits are far from the measured values and far from the throughput without a budget (a hundredth).
// make bench measures a real machine, and the simulations of the budget assert the limit in each minute.
func (n node) budget(t *testing.T) {
	const (
		limit, round = 0.01, 8 * time.Second
		kept, late   = 0.5, 1.5 // minimum of the throughput; factor on the limit when ticks are late
	)
	rounds := size(2, 1)
	c := enter(t, "busy", "posts", "-d", "rxe0", "-n", "1", "-p")
	c.line(t, "polls")
	pid := c.cmd.Process.Pid

	watched := func(mode string) *sensor {
		t.Helper()
		s := start(t, n.args("--rdma.datapath="+mode, "--rdma.datapath-budget="+strconv.FormatFloat(limit, 'g', -1, 64))...)
		eventually(t, 20*time.Second, func() error {
			if got := s.scrape().sum("accelscope_datapath_processes"); got != 1 {
				return fmt.Errorf("%v processes are watched", got)
			}
			return nil
		})
		return s
	}
	alone := func() float64 {
		t.Helper()
		mean, _ := c.polls(t, round)
		t.Logf("without the sensor: %.4g polls per CPU second", mean)
		return mean
	}
	var ratios float64
	without := alone()
	for i := range rounds {
		s := watched("budget")
		before, used, began := s.fresh(), cpu(t, pid), time.Now()
		length := round
		if i == rounds-1 && whole() {
			length = time.Minute + 2*time.Second
		}
		mean, _ := c.polls(t, length)
		m := s.fresh()
		used = cpu(t, pid) - used
		spent := m.sum("accelscope_datapath_spent_seconds_total", "container_id", c.id) -
			before.sum("accelscope_datapath_spent_seconds_total", "container_id", c.id)
		ratio := m.sum("accelscope_budget_spent_ratio", "container_id", c.id)
		t.Logf("with a budget: %.4g polls per CPU second; in %v spent %.4f s of %.2f s (%.2f %%); in the last minute %.2f %%; "+
			"watched %v of the time", mean, time.Since(began).Round(time.Second), spent, used, 100*spent/used, 100*ratio,
			m.by("accelscope_datapath_sampling_ratio", "calls", "container_id", c.id))
		if got := m.sum("accelscope_budget_limit_ratio", "container_id", c.id); got != limit {
			t.Errorf("limit %v, want %v", got, limit)
		}
		if whole := length > time.Minute; whole && (ratio > late*limit || spent > late*limit*used) {
			t.Errorf("spent %v of the CPU time, the sensor reports %v: more than %v", spent/used, ratio, limit)
		}
		s.stop()
		last := without
		without = alone()
		ratios += mean / ((last + without) / 2)
	}
	t.Logf("throughput with a budget is %.2f %% of that without", 100*ratios/float64(rounds))
	if ratios/float64(rounds) < kept {
		t.Errorf("with a budget %.4f of the polls", ratios/float64(rounds))
	}

	s := watched("always")
	used := cpu(t, pid)
	mean, _ := c.polls(t, round)
	used = cpu(t, pid) - used
	if mean > kept*without {
		t.Errorf("without a limit %.4f of the polls: the process is not watched", mean/without)
	}
	t.Logf("without a limit: %.4g polls per CPU second, %.2f %% of those without the sensor; the sensor reports a cost of %.2f %%", mean,
		100*mean/without, 100*s.fresh().sum("accelscope_datapath_spent_seconds_total", "container_id", c.id)/used)
	s.stop()
	c.signal(t)
}
