// SPDX-License-Identifier: Apache-2.0

// Package wire is shared by the sensor and the child process that has NVML open: the messages between them, what a
// session of the child starts with, and what a session leaves for the next session. It needs no cgo.
package wire

import (
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// Argument is the argument with which the sensor's program becomes the child that reads NVML.
const Argument = "read-nvml"

// ReadTimeout bounds a reading of all devices together.
const ReadTimeout = 500 * time.Millisecond

// ErrStuck reports that a call into the driver hangs.
var ErrStuck = errors.New("a call into the driver has not returned")

// Options are the options of the child.
type Options struct {
	// Library is the path of libnvidia-ml.so.1; empty for the usual directories, also below
	// Root.
	Library string
	Root    string // root of the node: /
	Sysfs   string // mount point of sysfs: /sys
	Procfs  string // mount point of procfs: /proc
	// Interval is how often processes and other slow values are read.
	Interval time.Duration
}

// Start is what a session starts with.
type Start struct {
	Options   Options
	Addresses []string               // as listed by the kernel
	Before    map[string]KnownDevice // devices of the previous session with the same driver
	Loaded    time.Time              // when the driver was loaded again; zero if the sensor has not seen a load
	Operator  bool                   // an operator has reset GPUs since the previous session
	Skip      map[string]time.Time   // time until which a device, by its key, is not called
	XIDs      map[string][]model.XID // counts of previous sessions, by UUID
	MaxProcs  int                    // GOMAXPROCS
	HangLimit time.Duration
	Instances Instances
}

// Instances is what a session reads from MIG instances.
type Instances int

// MIG instances are read together with their GPU, or in their own child.
const (
	WithGPU  Instances = iota // all values, together with their GPU
	GPMOnly                   // only the GPM counters, as parts without a UUID
	OneRound                  // all values, in one round; XIDs are not counted
)

// KnownDevice is a device of the previous session.
type KnownDevice struct {
	GPU model.GPU // its identity
	Era Era
}

// Identity returns the identity of a device or of a MIG instance.
func Identity(g model.GPU) model.GPU {
	return model.GPU{
		Vendor: g.Vendor, ID: g.ID, UUID: g.UUID, Parent: g.Parent, Name: g.Name, Serial: g.Serial,
		PCIAddress: g.PCIAddress, PCIDevice: g.PCIDevice, NUMANode: g.NUMANode, VBIOS: g.VBIOS, Nodes: g.Nodes,
		OffPCIe: g.OffPCIe, Profile: g.Profile, Instance: g.Instance, ComputeInstance: g.ComputeInstance,
	}
}

// Fatal is the problems of a device that are known even if the device cannot be read.
type Fatal struct{ Lost, Stuck, Unreadable, Reset bool }

// Conditions returns the problems, active or not.
func (f Fatal) Conditions() []model.GPUCondition {
	return []model.GPUCondition{
		{Name: model.ProblemLost, Active: f.Lost},
		{Name: model.ProblemStuck, Active: f.Stuck},
		{Name: model.ProblemUnreadable, Active: f.Unreadable},
		{Name: model.ProblemResetRequired, Active: f.Reset},
	}
}

// Below returns the path of a library below the root of the node. If the library exists, Below follows symbolic links
// as on the node: the linker would follow them in the image of the sensor.
func Below(root, path string) string {
	root = filepath.Join("/", root)
	if found, err := boundedfile.Below(root, path); err == nil && root != "/" {
		return found
	}
	return filepath.Join(root, path)
}

// fileMax is the maximum number of bytes read from a kernel file.
const fileMax = 4096

// Attribute returns the content of a small kernel file, or "" if it cannot be read.
func Attribute(path string) string {
	b, err := boundedfile.ReadOnce(path, make([]byte, fileMax))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
