// SPDX-License-Identifier: Apache-2.0

// Package nvidia reads NVIDIA GPUs through NVML, the library of the driver.
//
// Any call into the driver may hang for ever. So each GPU has one goroutine, a worker, which
// makes all calls for it: Read asks all workers concurrently for values that are cheap, waits
// for half a second at most, and does not wait for a worker that is still busy from an earlier
// Read. Between reads a worker reads slow values (processes, ECC, links) every
// Options.Interval. A keeper opens the library, and reopens it when the driver was reloaded,
// when a GPU was added or removed, or when the library does not match the driver anymore.
//
// A GPU that runtime power management has suspended is not read.
package nvidia

import (
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	// Library is the path of libnvidia-ml.so.1; empty for the usual directories, also below
	// Root.
	Library string
	Root    string // root of the node: /
	Sysfs   string // mount point of sysfs: /sys
	Procfs  string // mount point of procfs: /proc
	// Interval is how often processes and other slow values are read.
	Interval time.Duration
	// CgroupOf returns the cgroup ID of a process; may be nil.
	CgroupOf func(pid int) (model.CgroupID, error)
	Logger   *zap.Logger
}
