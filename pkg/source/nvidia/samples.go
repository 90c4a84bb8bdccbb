// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// What the driver samples of a process, in the order of use.
var sampledEngines = [...]string{"sm", "memory", "encoder", "decoder"}

// use is the part of the time, 0 to 1, in which a process used each sampled engine.
type use [len(sampledEngines)]float64

const (
	// How long one sample stands for: the driver samples each second on some chips,
	// six times a second on others. The shorter one is for stamps that are odd.
	longestPeriod  = uint64(time.Second / time.Microsecond)
	shortestPeriod = longestPeriod / 10
	// remembered is how far back samples are there for sure. The driver keeps 72 or
	// 100 of them; what is older than that may have been overwritten.
	remembered = 10 * longestPeriod
)

// cursor is how far the samples of one device were read. Each device has its own: the
// samples of one that is read later are not older for that.
type cursor struct {
	// stamp is the newest one that was seen, in microseconds; 0 before the first.
	stamp uint64
	// wall says that stamps are of the clock, as they should be.
	wall bool
	// series says that the driver answers with the samples themselves, which are taken
	// each period: the shortest time between two of them so far.
	series bool
	period uint64
}

// next takes the samples after the cursor, and moves it. It gives the use of the
// processes in the window from the cursor to the newest sample, nil where there is no
// such window: at the first look the samples are of nobody knows how long.
//
// A driver answers in one of two forms. NVML describes one record for each process, with
// what it used on average since the cursor, stamped with the last moment at which it
// used anything: that is the use, whatever the stamp. Where a process has more records
// than that they are the samples: then one stands for the period before it, and a
// process that has none of an instant did not run.
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

// weights are the parts of the window that samples stand for.
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

// fresh are the samples after the cursor, by time, one for a process and an instant:
// the driver is asked for these alone, and yet repeats some, and leaves places of its
// array as it found them, with processes 0 and percentages in the millions.
func (c *cursor) fresh(samples []nvml.ProcessUtilizationSample) []nvml.ProcessUtilizationSample {
	fresh := make([]nvml.ProcessUtilizationSample, 0, len(samples))
	for _, s := range samples {
		if s.Pid != 0 && s.TimeStamp > c.stamp && max(s.SmUtil, s.MemUtil, s.EncUtil, s.DecUtil) <= 100 {
			fresh = append(fresh, s)
		}
	}
	slices.SortStableFunc(fresh, func(a, b nvml.ProcessUtilizationSample) int {
		switch {
		case a.TimeStamp < b.TimeStamp:
			return -1
		case a.TimeStamp > b.TimeStamp:
			return 1
		}
		return int(int64(a.Pid) - int64(b.Pid))
	})
	return slices.CompactFunc(fresh, func(a, b nvml.ProcessUtilizationSample) bool {
		return a.Pid == b.Pid && a.TimeStamp == b.TimeStamp
	})
}

// nothing is the answer where no process ran since the cursor. That time must not be
// part of the next window: the cursor follows the clock, at a distance, because the
// newest samples may not be there yet. Stamps that are of another clock, or ahead of
// one that was set back, are found anew.
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
