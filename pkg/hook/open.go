// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Spec says how to open a compiled object.
type Spec struct {
	// Load returns the compiled object.
	Load func() (*ebpf.CollectionSpec, error)
	// BTFDir has the types of modules without BTF in the kernel, see ReadKernel.
	BTFDir string
	// Subsystem is the cgroup v1 controller that identifies workloads, or "" for cgroup v2.
	Subsystem string
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *Workloads
	// Entries are the sizes of maps, by name. The elements of the maps Growing are allocated when they are added, where
	// the kernel allows it.
	Entries map[string]uint32
	Growing []string
	// Shares are the maximum numbers of entries of an owner, see SetShares.
	Shares []uint32
	// Prepare sets the constants of the programs that only this object has. It may be nil.
	Prepare func(*ebpf.CollectionSpec, *Kernel) error
	// Report is what Object.Fill reads.
	Report Report
}

// Open makes the maps of an object and calls attach, which attaches hooks or loads programs. If attach fails, Open
// closes the object and returns the states of the hooks after that (Closed). If there are no maps, it returns no hooks.
func Open(s Spec, attach func(*Object) ([]model.Hook, error)) (*Object, []model.Hook, error) {
	defer Hold()()
	kernel, err := ReadKernel(s.BTFDir)
	if err != nil {
		return nil, nil, err
	}
	compiled, err := s.Compile(kernel)
	if err != nil {
		return nil, nil, err
	}
	o, err := s.Workloads.newObject(compiled, kernel)
	if err != nil {
		return nil, nil, err
	}
	o.report = s.Report
	hooks, err := attach(o)
	o.Kernel, o.Compiled, o.targets = nil, nil, nil
	if err != nil {
		o.Close()
		return nil, Closed(hooks, err), err
	}
	return o, hooks, nil
}

// Maps makes the maps of an object whose programs are loaded later, by Load.
func Maps(s Spec) (*Object, error) {
	o, _, err := Open(s, func(*Object) ([]model.Hook, error) { return nil, nil })
	return o, err
}

// Load calls load, which loads programs with Variant. s is the Spec of the object.
func (o *Object) Load(s Spec, load func()) error {
	defer Hold()()
	kernel, err := ReadKernel(s.BTFDir)
	if err != nil {
		return err
	}
	compiled, err := s.Compile(kernel)
	if err != nil {
		return err
	}
	targets, err := kernel.targets(compiled)
	if err != nil {
		return fmt.Errorf("types of the kernel: %w", err)
	}
	o.Kernel, o.Compiled, o.targets = kernel, compiled, targets
	defer func() { o.Kernel, o.Compiled, o.targets = nil, nil, nil }()
	load()
	return nil
}

// stackSize is the size of a kernel stack on machines with pages of 4 KiB.
const stackSize = 16384

// Variables of bpf/cgroup.h and bpf/registers.h.
const (
	subsystemVariable = "cgroup_subsys"
	stackSizeVariable = "stack_size"
)

// Compile returns the compiled object with the sizes of its maps and the constants of its programs.
func (s *Spec) Compile(kernel *Kernel) (*ebpf.CollectionSpec, error) {
	compiled, err := s.Load()
	if err != nil {
		return nil, err
	}
	subsystem, err := kernel.Subsystem(s.Subsystem)
	if err != nil {
		return nil, err
	}
	for name, entries := range s.Entries {
		compiled.Maps[name].MaxEntries = entries
	}
	for _, name := range s.Growing {
		if kernel.GrowingMaps() {
			compiled.Maps[name].Flags |= unix.BPF_F_NO_PREALLOC
		}
	}
	set := func(name string, value any) {
		if v := compiled.Variables[name]; v != nil && err == nil {
			err = v.Set(value)
		}
	}
	set(subsystemVariable, subsystem)
	set(stackSizeVariable, uint32(max(stackSize, os.Getpagesize())))
	if s.Shares != nil && err == nil {
		err = SetShares(compiled, s.Shares...)
	}
	if s.Prepare != nil && err == nil {
		err = s.Prepare(compiled, kernel)
	}
	return compiled, err
}
