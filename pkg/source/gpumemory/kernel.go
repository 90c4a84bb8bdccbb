// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

type kernel struct {
	object   *hook.Object
	programs [][2]*ebpf.Program // by function, at its entry and at its return
	// multi: probes are uprobe_multi links (Linux 6.6), otherwise perf events.
	multi        bool
	generationMu sync.Mutex
	generation   uint32

	keys     []gen.GPUMemoryFailureKey
	values   []gen.GPUMemoryFailures
	callKeys []gen.GPUMemoryCallKey
	calls    []uint64
}

// newKernel makes the maps.
func newKernel(spec hook.Spec) (*kernel, error) {
	object, err := hook.Maps(spec)
	if err != nil {
		return nil, err
	}
	return &kernel{object: object, programs: make([][2]*ebpf.Program, len(functions)), multi: uprobe.HasMulti()}, nil
}

func (o *Options) spec() hook.Spec {
	entries := cmp.Or(o.MaxEntries, defaultMaxEntries)
	return hook.Spec{
		Load: gen.LoadGPUMemory, Subsystem: o.Subsystem, Workloads: o.Workloads,
		Entries: map[string]uint32{failuresMap: entries},
		Shares:  []uint32{entries / share},
		Prepare: uprobe.Prepare,
		Report: hook.Report{
			Maps: []string{failuresMap}, Losses: gen.GPUMemoryVarAllocationLosses, Reasons: lossNames[:],
			Shares: []int{int(gen.GPUMemoryAllocationLossLOSS_FAILURES_SHARE)},
		},
	}
}

// An owner may have a quarter of the map.
const share = 4

const failuresMap = gen.GPUMemoryMapAllocationFailures

const failuresOfOwner = uint32(gen.GPUMemoryAllocationMapFAILURES_OF_OWNER)

// load loads the programs of a function: before Linux 5.15 a probe cannot pass a value to its program.
func (k *kernel) load(i int) error {
	spec := k.object.Compiled.Copy()
	f := &functions[i]
	err := errors.Join(
		spec.Variables[gen.GPUMemoryVarFunction].Set(uint32(i)),
		spec.Variables[gen.GPUMemoryVarApi].Set(uint32(slices.Index(apis, f.api))),
		spec.Variables[gen.GPUMemoryVarPitched].Set(f.pitched))
	if err != nil {
		return err
	}
	coll, err := k.object.Variant(spec, locate.CheckStack, gen.GPUMemoryProgAllocate, gen.GPUMemoryProgAllocateReturn)
	if err != nil {
		return err
	}
	defer coll.Close()
	k.programs[i] = [2]*ebpf.Program{coll.DetachProgram(gen.GPUMemoryProgAllocate), coll.DetachProgram(gen.GPUMemoryProgAllocateReturn)}
	return nil
}

// probe returns how to attach the probe at the entry or at the return of a function, in one process, or (pid 0) in all
// processes that map the file.
func (k *kernel) probe(p *library.Place, pid int, ret bool) func(path string) (io.Closer, error) {
	function, at := p.Function, uprobe.Place{Offset: p.Offset, Return: ret, PID: pid}
	return func(path string) (io.Closer, error) {
		program := k.programs[function][0]
		if ret {
			program = k.programs[function][1]
		}
		at.Path = path
		l, err := uprobe.Attach(program, at, k.multi, 0)
		if err != nil {
			return nil, fmt.Errorf("probing %s: %w", functions[function].name, err)
		}
		return l, nil
	}
}

// forgetCalls makes the programs forget the calls in progress, because no probe may see their returns. If such a call fails
// and its return is seen, it counts as a loss. Safe for concurrent use.
func (k *kernel) forgetCalls() error {
	k.generationMu.Lock()
	defer k.generationMu.Unlock()
	k.generation++
	return k.object.Coll.Variables[gen.GPUMemoryVarGeneration].Set(k.generation)
}

// each calls f for the failures of each cgroup and API, and deletes the entry if f returns true.
func (k *kernel) each(f func(gen.GPUMemoryFailureKey, *gen.GPUMemoryFailures) (drop bool)) error {
	_, left, err := hook.Sweep(k.object.Coll.Maps[failuresMap], &k.keys, &k.values,
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
	k.object.Entries[failuresMap] = left
	return nil
}

// eachCalls calls f with the calls of each process and function, and deletes them if f returns true.
func (k *kernel) eachCalls(f func(pid, function int, calls uint64) (drop bool)) error {
	_, _, err := hook.Sweep(k.object.Coll.Maps[gen.GPUMemoryMapAllocationCalls], &k.callKeys, &k.calls,
		func(key *gen.GPUMemoryCallKey, n *uint64) bool { return f(int(key.Tgid), int(key.Function), *n) })
	if err != nil {
		return fmt.Errorf("calls of allocating functions: %w", err)
	}
	return nil
}

var lossNames = [gen.GPUMemoryAllocationLossALLOCATION_LOSSES]string{
	gen.GPUMemoryAllocationLossLOSS_FAILURES_FULL:  "allocation_failures_full",
	gen.GPUMemoryAllocationLossLOSS_FAILURES_SHARE: "allocation_failures_share",
	gen.GPUMemoryAllocationLossLOSS_ENTRY_MISSED:   "allocation_entry_missed",
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
