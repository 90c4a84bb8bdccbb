// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

type kernel struct {
	object *hook.Object
	// programs are two for each function, at its entry and at its return. refused is why a function has no programs.
	programs [][2]*ebpf.Program
	refused  []error
	// multi: probes are uprobe_multi links (Linux 6.6), otherwise perf events.
	multi      bool
	generation uint32

	keys     []gen.GPUMemoryFailureKey
	values   []gen.GPUMemoryFailures
	entries  uint64 // at the last read
	callKeys []gen.GPUMemoryCallKey
	calls    []uint64
}

// newKernel creates the maps and loads the programs once for each function: before Linux 5.15 a probe cannot pass a
// value to its program.
func newKernel(opts Options) (*kernel, error) {
	// The kernel's type information takes some megabytes and is needed only here.
	defer debug.FreeOSMemory()
	types, err := hook.LoadTypes("")
	if err != nil {
		return nil, err
	}
	spec, err := loadSpec(opts, types)
	if err != nil {
		return nil, err
	}
	return load(opts, spec, types)
}

func loadSpec(opts Options, types *hook.Types) (*ebpf.CollectionSpec, error) {
	spec, err := gen.LoadGPUMemory()
	if err != nil {
		return nil, err
	}
	subsystem, err := types.Subsystem(opts.Subsystem)
	if err != nil {
		return nil, err
	}
	entries := cmp.Or(opts.MaxEntries, defaultMaxEntries)
	spec.Maps[gen.GPUMemoryMapAllocationFailures].MaxEntries = entries
	return spec, errors.Join(spec.Variables[gen.GPUMemoryVarCgroupSubsys].Set(subsystem), hook.SetShares(spec, entries/share))
}

// load makes the maps and loads the programs of all functions. It fails only if no function has programs.
func load(opts Options, spec *ebpf.CollectionSpec, types *hook.Types) (k *kernel, err error) {
	k = &kernel{multi: features.HaveBPFLinkUprobeMulti() == nil}
	for _, p := range spec.Programs {
		if k.multi {
			p.AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	if k.object, err = opts.Workloads.NewObject(spec, types); err != nil {
		return nil, err
	}
	for i := range functions {
		programs, err := k.load(spec, i)
		if err != nil {
			err = fmt.Errorf("loading the programs of %s: %w", functions[i].name, err)
		}
		k.programs, k.refused = append(k.programs, programs), append(k.refused, err)
	}
	k.object.Attached()
	if slices.Contains(k.refused, nil) {
		return k, nil
	}
	k.close()
	return nil, hook.Unsupported(k.refused[0])
}

// An owner may have a quarter of the map.
const share = 4

const failuresOfOwner = uint32(gen.GPUMemoryAllocationMapFAILURES_OF_OWNER)

func (k *kernel) load(spec *ebpf.CollectionSpec, i int) (programs [2]*ebpf.Program, err error) {
	spec = spec.Copy()
	f := &functions[i]
	err = errors.Join(
		spec.Variables[gen.GPUMemoryVarFunction].Set(uint32(i)),
		spec.Variables[gen.GPUMemoryVarApi].Set(uint32(slices.Index(apis, f.api))),
		spec.Variables[gen.GPUMemoryVarPitched].Set(f.pitched))
	if err != nil {
		return programs, err
	}
	coll, err := k.object.Variant(spec, locate.CheckStack, gen.GPUMemoryProgAllocate, gen.GPUMemoryProgAllocateReturn)
	if err != nil {
		return programs, err
	}
	defer coll.Close()
	return [2]*ebpf.Program{coll.DetachProgram(gen.GPUMemoryProgAllocate), coll.DetachProgram(gen.GPUMemoryProgAllocateReturn)}, nil
}

// probe returns the probe of a function at an offset of a file, at the function's end or beginning, in one process, or
// (pid 0) in all processes that map the file.
func (k *kernel) probe(offset uint64, function, pid, at int) uprobe.Probe {
	return uprobe.Probe{Offset: offset, Attach: func(path string) (io.Closer, error) {
		if err := k.refused[function]; err != nil {
			return nil, err
		}
		program := k.programs[function][0]
		if at == atEnd {
			program = k.programs[function][1]
		}
		l, err := uprobe.Attach(program, uprobe.Place{Path: path, Offset: offset, Return: at == atEnd, PID: pid}, k.multi, 0)
		if err != nil {
			return nil, fmt.Errorf("probing %s: %w", functions[function].name, err)
		}
		return l, nil
	}}
}

// detached makes the programs forget the calls in progress, because no probe may see their returns.
func (k *kernel) detached() error {
	k.generation++
	return k.object.Coll.Variables[gen.GPUMemoryVarGeneration].Set(k.generation)
}

// each calls f for the failures of each cgroup and API, and deletes the entry if f returns true.
func (k *kernel) each(f func(gen.GPUMemoryFailureKey, *gen.GPUMemoryFailures) (drop bool)) error {
	_, left, err := hook.Sweep(k.object.Coll.Maps[gen.GPUMemoryMapAllocationFailures], &k.keys, &k.values,
		func(key *gen.GPUMemoryFailureKey, v *gen.GPUMemoryFailures) bool {
			drop := f(*key, v)
			if drop {
				k.object.Owners.Add(v.Owner, failuresOfOwner, -1)
			}
			return drop
		})
	if err != nil {
		return fmt.Errorf("failed allocations: %w", err)
	}
	k.entries = left
	return nil
}

func (k *kernel) eachCalls(f func(gen.GPUMemoryCallKey, uint64)) error {
	_, err := hook.Batches(k.object.Coll.Maps[gen.GPUMemoryMapAllocationCalls], &k.callKeys, &k.calls,
		func(key gen.GPUMemoryCallKey, n *uint64) { f(key, *n) })
	if err != nil {
		return fmt.Errorf("calls of allocating functions: %w", err)
	}
	return nil
}

// removeCalls removes the call counts of a process.
func (k *kernel) removeCalls(pid int) error {
	keys := make([]gen.GPUMemoryCallKey, len(functions))
	for i := range keys {
		keys[i] = gen.GPUMemoryCallKey{Tgid: uint32(pid), Function: uint32(i)}
	}
	return hook.Remove(k.object.Coll.Maps[gen.GPUMemoryMapAllocationCalls], keys)
}

var lossNames = [gen.GPUMemoryAllocationLossALLOCATION_LOSSES]string{
	gen.GPUMemoryAllocationLossLOSS_FAILURES_FULL:  "allocation_failures_full",
	gen.GPUMemoryAllocationLossLOSS_FAILURES_SHARE: "allocation_failures_share",
	gen.GPUMemoryAllocationLossLOSS_ENTRY_MISSED:   "allocation_entry_missed",
}

// fill adds the size of the map and the losses to a snapshot.
func (k *kernel) fill(snap *model.Snapshot) error {
	snap.Maps = append(snap.Maps, model.Map{
		Name: gen.GPUMemoryMapAllocationFailures, Entries: k.entries,
		Capacity: uint64(k.object.Coll.Maps[gen.GPUMemoryMapAllocationFailures].MaxEntries()),
	})
	var lost [gen.GPUMemoryAllocationLossALLOCATION_LOSSES]uint64
	if k.object.Coll.Variables[gen.GPUMemoryVarAllocationLosses].Get(&lost) == nil {
		for i, n := range lost {
			snap.Losses = append(snap.Losses, model.Loss{Reason: lossNames[i], Count: n})
		}
	}
	const reason = gen.GPUMemoryAllocationLossLOSS_FAILURES_SHARE
	return k.object.Owners.AddLosses(snap, lost[reason], lossNames[reason])
}

// close closes the maps and the programs. The caller has closed the probes.
func (k *kernel) close() {
	for _, of := range k.programs {
		for _, p := range of {
			_ = p.Close()
		}
	}
	k.object.Close()
}
