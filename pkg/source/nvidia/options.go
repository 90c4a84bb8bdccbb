// SPDX-License-Identifier: Apache-2.0

// Package nvidia reads NVIDIA GPUs through NVML, the library of the driver.
//
// A driver may hang, in any call and for ever. So each GPU has one goroutine, a
// worker, which makes all calls for it: Read asks all workers at once what is
// cheap, waits for half a second at most, and does not wait again for one that has
// not come back. Between the questions a worker reads what is slow (processes, ECC,
// links) every Options.Interval. A keeper opens the library, and opens it again when
// the driver was reloaded, when a GPU came or went, or when the library does not
// match the driver any more.
//
// A GPU that runtime power management has suspended is not asked anything.
package nvidia

import (
	"time"

	"go.uber.org/zap"
)

// Options configure a Source.
type Options struct {
	// Library is the path of libnvidia-ml.so.1, empty for the usual places, those
	// below Root included.
	Library string
	Root    string // of the node: /
	Sysfs   string // where sysfs is mounted: /sys
	Procfs  string // /proc
	// Interval is how often processes, and all that is slow to tell, are read.
	Interval time.Duration
	// CgroupOf gives the id of the cgroup of a process; nil when nobody knows.
	CgroupOf func(pid int) (uint64, error)
	Logger   *zap.Logger
}
