// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"cmp"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// The engines that the driver samples per process, in the order of the array use.
var sampledEngines = [...]string{"sm", "memory", "encoder", "decoder"}

// use is the busy ratio of each sampled engine for one process, 0 to 1.
type use [len(sampledEngines)]float64

const (
	// The sampling period is one second on some chips, a sixth of a second on others. shortestPeriod is used for
	// implausible timestamps.
	longestPeriod  = uint64(time.Second / time.Microsecond)
	shortestPeriod = longestPeriod / 10
	// remembered is how long the driver certainly keeps samples. It keeps 72 or 100 samples and overwrites older ones.
	remembered = 10 * longestPeriod
)

// cursor is the position in the samples of one device. Devices that are read later have their own cursor.
type cursor struct {
	// stamp is the newest timestamp, in microseconds; 0 before the first.
	stamp uint64
	// wall reports that timestamps are wall clock time, as documented.
	wall bool
	// series reports that the driver returns the samples, one per period. period is the shortest time between two
	// samples.
	series bool
	period uint64
}

// next processes the samples after the cursor and moves the cursor. It returns the usage of each process in the window
// from the cursor to the newest sample. The samples of the first call cover an unknown time, so the first call returns
// nil.
//
// Drivers answer in one of two forms. NVML documents one record per process with its mean usage since the cursor and
// the time of its last activity: this mean is the usage, whatever the timestamp. If a process has more records, they
// are samples: each stands for the period before it, and a process without a sample at an instant did not run.
func (c *cursor) next(samples []nvml.ProcessUtilizationSample, now time.Time) map[int]use {
	fresh := c.fresh(samples)
	if len(fresh) == 0 {
		return c.nothing(now)
	}
	from := c.stamp
	c.stamp = fresh[len(fresh)-1].TimeStamp
	c.wall = now.Sub(time.UnixMicro(int64(c.stamp))).Abs() < time.Minute
	records := make(map[int]int)
	for _, s := range fresh {
		records[int(s.Pid)]++
		c.series = c.series || records[int(s.Pid)] > 2
	}
	if from == 0 {
		return nil
	}
	uses := make(map[int]use, len(records))
	weight := c.weights(fresh, from)
	for i, s := range fresh {
		pid := int(s.Pid)
		u := uses[pid]
		if c.series {
			u.add(s, weight[i])
		} else {
			u.add(s, 1/float64(records[pid]))
		}
		uses[pid] = u
	}
	return uses
}

func (c *cursor) weights(fresh []nvml.ProcessUtilizationSample, from uint64) []float64 {
	if c.period == 0 {
		c.period = longestPeriod
	}
	for i := range fresh[1:] {
		if gap := fresh[i+1].TimeStamp - fresh[i].TimeStamp; gap >= shortestPeriod {
			c.period = min(c.period, gap)
		}
	}
	if first := fresh[0].TimeStamp; c.stamp-from > remembered && first-from > c.period {
		from = first - c.period
	}
	weights := make([]float64, len(fresh))
	at, stands := from, uint64(0)
	for i, s := range fresh {
		if s.TimeStamp != at {
			stands = min(s.TimeStamp-at, c.period)
			at = s.TimeStamp
		}
		weights[i] = float64(stands) / float64(c.stamp-from)
	}
	return weights
}

// fresh returns the samples after the cursor, sorted by time, one per process and instant. The driver repeats some
// older samples, and leaves array elements unwritten, with PID 0 and percentages in the millions.
func (c *cursor) fresh(samples []nvml.ProcessUtilizationSample) []nvml.ProcessUtilizationSample {
	fresh := make([]nvml.ProcessUtilizationSample, 0, len(samples))
	for _, s := range samples {
		if s.Pid != 0 && s.TimeStamp > c.stamp && max(s.SmUtil, s.MemUtil, s.EncUtil, s.DecUtil) <= 100 {
			fresh = append(fresh, s)
		}
	}
	slices.SortStableFunc(fresh, func(a, b nvml.ProcessUtilizationSample) int {
		return cmp.Or(cmp.Compare(a.TimeStamp, b.TimeStamp), cmp.Compare(a.Pid, b.Pid))
	})
	return slices.CompactFunc(fresh, func(a, b nvml.ProcessUtilizationSample) bool {
		return a.Pid == b.Pid && a.TimeStamp == b.TimeStamp
	})
}

// nothing handles an answer without running processes. The idle time must not be part of the next window: the cursor
// follows the clock, with a margin because the newest samples may be missing. Timestamps of another clock, or ahead of
// a clock that was set back, reset the cursor.
func (c *cursor) nothing(now time.Time) map[int]use {
	wall := uint64(max(now.UnixMicro(), 0))
	if !c.wall || c.stamp > wall {
		c.stamp = 0
	} else if wall > longestPeriod {
		c.stamp = max(c.stamp, wall-longestPeriod)
	}
	return map[int]use{}
}

func (u *use) add(s nvml.ProcessUtilizationSample, weight float64) {
	for i, percent := range [...]uint32{s.SmUtil, s.MemUtil, s.EncUtil, s.DecUtil} {
		u[i] = min(1, u[i]+float64(percent)/100*weight)
	}
}

func (u use) figures() []model.Figure {
	figures := make([]model.Figure, len(sampledEngines))
	for i, name := range sampledEngines {
		figures[i] = model.Figure{Name: name, Value: u[i]}
	}
	return figures
}
