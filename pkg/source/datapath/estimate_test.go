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
	lives     time.Duration // then each process ends and another one begins; 0: until the end
}

func (c estimateCase) String() string {
	name := fmt.Sprintf("%s, %d x %d per second, %d %% of a CPU", c.pattern, c.processes, c.rate, c.percent)
	if c.passive {
		name += ", and a process that posts nothing"
	}
	if c.lives > 0 {
		name += fmt.Sprintf(", jobs of %v", c.lives)
	}
	return name
}

// BenchmarkEstimate compares the estimates of the budget with the number of posts that FAKE providers counted: the
// largest error of a process after 30 s, 60 s and, with ACCELSCOPE_ESTIMATE=10m, ten minutes; the number of processes whose
// estimate is absent then; the longest time for which one did not change, and what probes took of the limit in the last
// minute. A FAKE port sends what was posted: the largest error of a process's part of it, and how much is split.
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
		{processes: 32, pattern: "steady", rate: 31_250, percent: 2},
		{processes: 2, pattern: "steady", rate: 20_000, percent: 10, lives: 30 * time.Second},
		{processes: 1, pattern: "bursty", rate: 20_000, percent: 20},
		{processes: 2, pattern: "bursty", rate: 20_000, percent: 20},
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
	j := &estimatedJob{source: s, fakes: map[model.CgroupID]*loadedFake{}}
	for range c.processes {
		j.start(b, path)
	}
	processes := uint64(len(j.fakes))
	if c.passive {
		j.watch(startFake(b, path))
		processes++
	}
	eventually(b, "never watched", func() bool { return s.snapshot(b).DataPath.Processes == processes })
	for _, f := range j.fakes {
		f.begin(c)
	}
	port := newFakePort(j)
	begun := time.Now()
	var unchanged time.Duration
	var spent float64
	checks := []time.Duration{30 * time.Second, time.Minute, 10 * time.Minute}
	lives := c.lives
	for elapsed := time.Duration(0); elapsed < length; {
		time.Sleep(100 * time.Millisecond)
		elapsed = time.Since(begun)
		estimates, absent, highest := s.posts(b)
		spent = highest
		worst, missing := 0.0, 0
		for id, f := range j.fakes {
			if absent[id] {
				f.changed = time.Now()
				missing++
				continue
			}
			if !f.over {
				unchanged = max(unchanged, time.Since(f.changed))
			}
			if estimates[id] != f.estimate {
				f.changed, f.estimate = time.Now(), estimates[id]
			}
			if elapsed >= checks[0] {
				posted := float64(f.posted())
				if e := (float64(f.estimate) - posted) / posted; math.Abs(e) > math.Abs(worst) {
					worst = e
				}
			}
		}
		port.scrape(b, elapsed)
		if elapsed >= checks[0] {
			if missing < len(j.fakes) {
				b.ReportMetric(100*worst, fmt.Sprintf("error-%v-%%", checks[0]))
			}
			b.ReportMetric(float64(missing), fmt.Sprintf("absent-%v", checks[0]))
			checks = checks[1:]
		}
		if lives > 0 && elapsed >= lives && elapsed < length {
			lives += c.lives
			j.replace(b, c, path)
		}
	}
	b.ReportMetric(unchanged.Seconds(), "unchanged-s")
	b.ReportMetric(100*spent/0.01, "spent-%")
	port.report(b)
	b.ReportMetric(0, "ns/op")
}

// estimatedJob is the processes of a case. The cgroup of each has a number of its own.
type estimatedJob struct {
	source *Source
	fakes  map[model.CgroupID]*loadedFake
	last   model.CgroupID
}

// loadedFake is a fake that posts, and its estimate.
type loadedFake struct {
	*fake
	over     bool
	count    uint64 // of posts, when it ended
	estimate uint64
	changed  time.Time
}

func (j *estimatedJob) watch(f *fake) {
	j.last++
	j.source.events <- event{key: f.key, cgroup: j.last, device: 3, qp: f.qp, existed: true}
}

func (j *estimatedJob) start(b *testing.B, path string) *loadedFake {
	b.Helper()
	f := &loadedFake{fake: startFake(b, path)}
	j.watch(f.fake)
	j.fakes[j.last] = f
	return f
}

// replace ends the processes and starts others.
func (j *estimatedJob) replace(b *testing.B, c estimateCase, path string) {
	b.Helper()
	n := 0
	for _, f := range j.fakes {
		if !f.over {
			f.end()
			n++
		}
	}
	for range n {
		j.start(b, path).begin(c)
	}
}

func (f *loadedFake) begin(c estimateCase) {
	f.do("percent", c.percent)
	f.do(c.pattern, c.rate)
	f.changed = time.Now()
}

func (f *loadedFake) end() {
	f.count, f.over = f.posted(), true
	_ = f.in.Close()
}

// posts returns the exact and estimated work requests of each cgroup, those without an estimate, and the highest ratio that
// was spent.
func (s *Source) posts(b *testing.B) (estimates map[model.CgroupID]uint64, absent map[model.CgroupID]bool, highest float64) {
	b.Helper()
	snap := s.snapshot(b)
	estimates, absent = map[model.CgroupID]uint64{}, map[model.CgroupID]bool{}
	for _, r := range snap.Sampling {
		absent[r.Cgroup] = true
	}
	for _, r := range snap.WorkRequests {
		estimates[r.Cgroup] += r.Value.Count
		if !r.Resting {
			delete(absent, r.Cgroup)
		}
	}
	for _, r := range snap.WorkRequests { // of a process that ended, the exact part does not rest
		if r.Key.Sampled && r.Resting {
			absent[r.Cgroup] = true
		}
	}
	for _, u := range snap.Budgets {
		highest = max(highest, u.SpentRatio)
	}
	return estimates, absent, highest
}

// posted returns the number of work requests that a fake posted.
func (f *loadedFake) posted() (n uint64) {
	f.t.Helper()
	if f.over {
		return f.count
	}
	if _, err := fmt.Sscan(f.do("posted", 0), &n); err != nil {
		f.t.Fatal(err)
	}
	return n
}
