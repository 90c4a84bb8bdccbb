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
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

type kernel struct {
	object *hook.Object
	// programs are two for each function, at its entry and at its return. refused is why a function has no programs.
	programs [][2]*ebpf.Program
	refused  []error
	// multi: probes are uprobe_multi links (Linux 6.6), otherwise perf events.
	multi        bool
	generationMu sync.Mutex
	generation   uint32

	keys     []gen.GPUMemoryFailureKey
	values   []gen.GPUMemoryFailures
	callKeys []gen.GPUMemoryCallKey
	calls    []uint64
}

// newKernel creates the maps and loads the programs once for each function: before Linux 5.15 a probe cannot pass a
// value to its program. It fails only if no function has programs.
func newKernel(spec hook.Spec) (*kernel, error) {
	k := &kernel{multi: uprobe.HasMulti()}
	if _, _, err := hook.Open(spec, k.loadAll); err != nil {
		return nil, err
	}
	return k, nil
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

func (k *kernel) loadAll(object *hook.Object) ([]model.Hook, error) {
	k.object = object
	for i := range functions {
		programs, err := k.load(object.Compiled, i)
		if err != nil {
			err = fmt.Errorf("loading the programs of %s: %w", functions[i].name, err)
		}
		k.programs, k.refused = append(k.programs, programs), append(k.refused, err)
	}
	if slices.Contains(k.refused, nil) {
		return nil, nil
	}
	return nil, hook.Unsupported(k.refused[0])
}

// An owner may have a quarter of the map.
const share = 4

const failuresMap = gen.GPUMemoryMapAllocationFailures

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

// probe returns how to attach the probe at the entry or at the return of a function, in one process, or (pid 0) in all
// processes that map the file.
func (k *kernel) probe(p *place, pid int, ret bool) func(path string) (io.Closer, error) {
	function, at := p.function, uprobe.Place{Offset: p.Offset, Return: ret, PID: pid}
	return func(path string) (io.Closer, error) {
		if err := k.refused[function]; err != nil {
			return nil, err
		}
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

// close closes the maps and the programs. The caller has closed the probes.
func (k *kernel) close() {
	for _, of := range k.programs {
		for _, p := range of {
			_ = p.Close()
		}
	}
	k.object.Close()
}
