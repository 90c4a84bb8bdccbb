// SPDX-License-Identifier: Apache-2.0

// Package nvidia reads NVIDIA GPUs through NVML, the library of the driver.
//
// Only a child process opens the library: the sensor's own program, started again. NVML cannot give back a single handle. While it has a
// handle, the driver cannot be unloaded, a GPU cannot be reset and a MIG instance cannot be destroyed. The end of a process closes all
// handles, also if a call hangs, and a library that crashes takes only the child with it. So the child ends when Release is called, when
// no GPU is bound to the driver, when a call has hung for long, and with the sensor. It sends readings as a whole; package wire has the
// messages.
//
// MIG instances are read by another child, which runs one round and ends: see instances.go.
//
// A keeper in the sensor starts the child. It starts another child when the driver was reloaded, when a GPU was added or removed, when
// the library no longer matches the driver, or when the child ended. Package nvml is the child.
package nvidia

import (
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// Options configure a Source.
type Options struct {
	wire.Options
	// CgroupOf returns the cgroup ID of a process; may be nil.
	CgroupOf func(pid int) (model.CgroupID, error)
	// FirstFault is FirstFault of a model.FaultLog; may be nil.
	FirstFault func(driver model.FaultDriver, codes []string, since time.Time) (pciAddress string, ok bool)
	// Nonfatal is Nonfatal of a model.FaultLog; may be nil.
	Nonfatal func(driver model.FaultDriver, pciAddress, code string, since time.Time) bool
	Logger   *zap.Logger

	hangLimit time.Duration // for tests; 0: hangLimit
}

// hangLimit is how long a call may hang before the child is killed. It also limits opening the library and answering.
const hangLimit = 30 * time.Second
