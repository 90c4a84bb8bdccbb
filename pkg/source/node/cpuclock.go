// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/accelscope/accelscope/pkg/model"

// cpuClock makes counters of the times of a CPU. The kernel may decrease idle and iowait times, and stolen time may
// wrap; a counter must not fall, and must not stand still afterwards.
type cpuClock struct {
	raw   [model.CPUModes]float64 // of the last read, in seconds
	shown [model.CPUModes]float64
	base  [model.CPUModes]float64 // added to raw
	low   [model.CPUModes]int     // consecutive reads with a lower value than shown
}

// lowReads is the number of reads after which a counter continues from a lower value.
const lowReads = 3

// next replaces the times of a read by the counters. A counter keeps its value while the kernel reports a lower value.
// From the third read on it grows like the kernel's. A value below half means that the counter wrapped, and begins
// again.
func (c *cpuClock) next(times *[model.CPUModes]float64) {
	c.raw = *times
	for mode, raw := range c.raw {
		value := raw + c.base[mode]
		if value >= c.shown[mode] {
			c.low[mode] = 0
		} else if c.low[mode]++; c.low[mode] < lowReads {
			value = c.shown[mode]
		} else {
			if value < c.shown[mode]/2 {
				c.base[mode] = 0
			} else {
				c.base[mode] = c.shown[mode] - raw
			}
			c.low[mode], value = 0, raw+c.base[mode]
		}
		c.shown[mode], times[mode] = value, value
	}
}
