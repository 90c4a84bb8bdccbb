// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// An estimateCase is a job of processes that post at a rate, each in a cgroup of its own.
type estimateCase struct {
	processes int
	pattern   string
	rate      int // mean posts per second of a process
	percent   int // of a CPU that a process takes without its posts; 100: it polls all the time
	passive   bool
}

func (c estimateCase) String() string {
	name := fmt.Sprintf("%s, %d x %d per second, %d %% of a CPU", c.pattern, c.processes, c.rate, c.percent)
	if c.passive {
		name += ", and a process that posts nothing"
	}
	return name
}

// BenchmarkEstimate compares the estimates of the budget with the number of posts that FAKE providers counted: the
// largest error of a process after 30 s, 60 s and, with ACCELSCOPE_ESTIMATE=10m, ten minutes; the number of processes whose
// estimate is absent then; the longest time for which one did not change, and what probes took of the limit in the last
// minute.
func BenchmarkEstimate(b *testing.B) {
	length := time.Minute
	if long := os.Getenv("ACCELSCOPE_ESTIMATE"); long != "" {
		var err error
		if length, err = time.ParseDuration(long); err != nil {
			b.Fatal(err)
		}
	}
	measured, err := calibrate(startKernel(b).calibration)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []estimateCase{
		{processes: 1, pattern: "steady", rate: 1000, percent: 10},
		{processes: 1, pattern: "steady", rate: 20_000, percent: 10},
		{processes: 1, pattern: "steady", rate: 200_000, percent: 10},
		{processes: 1, pattern: "steady", rate: 20_000, percent: 100},
		{processes: 1, pattern: "steady", rate: 20_000, percent: 10, passive: true},
		{processes: 8, pattern: "steady", rate: 20_000, percent: 5},
		{processes: 1, pattern: "bursty", rate: 20_000, percent: 20},
		{processes: 1, pattern: "ramp", rate: 20_000, percent: 10},
	} {
		b.Run(c.String(), func(b *testing.B) {
			for range b.N {
				c.run(b, &measured, length)
			}
		})
	}
}

func (c estimateCase) run(b *testing.B, costs *trapCosts, length time.Duration) {
	path, sites := buildProvider(b, "testdata/load.c")
	s := startSource(b, 0.01, costs, path, sites)
	defer s.Close() //nolint:errcheck // closed again by the test
	var fakes []*fake
	for range c.processes {
		fakes = append(fakes, startFake(b, path))
	}
	watched := fakes
	if c.passive {
		watched = append(watched, startFake(b, path))
	}
	for i, f := range watched {
		s.events <- event{key: f.key, cgroup: model.CgroupID(i + 1), device: 3, qp: f.qp, existed: true}
	}
	eventually(b, "never watched", func() bool { return s.snapshot(b).DataPath.Processes == uint64(len(watched)) })
	for _, f := range fakes {
		f.do("percent", c.percent)
		f.do(c.pattern, c.rate)
	}
	begun := time.Now()
	changed, last := make([]time.Time, len(fakes)), make([]uint64, len(fakes))
	for i := range changed {
		changed[i] = begun
	}
	var unchanged time.Duration
	var spent float64
	checks := []time.Duration{30 * time.Second, time.Minute, 10 * time.Minute}
	for elapsed := time.Duration(0); elapsed < length; {
		time.Sleep(100 * time.Millisecond)
		elapsed = time.Since(begun)
		estimates, absent, highest := s.posts(b)
		spent = highest
		worst, missing := 0.0, 0
		for i, f := range fakes {
			cgroup := model.CgroupID(i + 1)
			if absent[cgroup] {
				changed[i] = time.Now()
				missing++
				continue
			}
			estimate := estimates[cgroup]
			unchanged = max(unchanged, time.Since(changed[i]))
			if estimate != last[i] {
				changed[i], last[i] = time.Now(), estimate
			}
			if elapsed >= checks[0] {
				posted := float64(f.posted())
				if e := (float64(estimate) - posted) / posted; math.Abs(e) > math.Abs(worst) {
					worst = e
				}
			}
		}
		if elapsed >= checks[0] {
			b.ReportMetric(100*worst, fmt.Sprintf("error-%v-%%", checks[0]))
			b.ReportMetric(float64(missing), fmt.Sprintf("absent-%v", checks[0]))
			checks = checks[1:]
		}
	}
	b.ReportMetric(unchanged.Seconds(), "unchanged-s")
	b.ReportMetric(100*spent/0.01, "spent-%")
	b.ReportMetric(0, "ns/op")
}

// posts returns the exact and estimated work requests of each cgroup, those without an estimate, and the highest ratio that
// was spent.
func (s *Source) posts(b *testing.B) (estimates map[model.CgroupID]uint64, absent map[model.CgroupID]bool, highest float64) {
	b.Helper()
	snap := s.snapshot(b)
	estimates, absent = map[model.CgroupID]uint64{}, map[model.CgroupID]bool{}
	for _, r := range snap.Sampling {
		if r.Calls == model.PostCalls && r.Uncertain {
			absent[r.Cgroup] = true
		}
	}
	for _, r := range snap.WorkRequests {
		estimates[r.Cgroup] += r.Value.Count
	}
	for _, u := range snap.Budgets {
		highest = max(highest, u.SpentRatio)
	}
	return estimates, absent, highest
}

// posted returns the number of work requests that a fake with a load posted.
func (f *fake) posted() (n uint64) {
	f.t.Helper()
	if _, err := fmt.Sscan(f.do("posted", 0), &n); err != nil {
		f.t.Fatal(err)
	}
	return n
}
