// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

type (
	communicator = gen.CollectiveCommunicator
	launchKey    = gen.CollectiveLaunchKey
	launchCounts = gen.CollectiveLaunches
	processKey   = gen.CollectiveCollectiveProcessKey
	rank         = gen.CollectiveRank
)

type kernel struct {
	object *hook.Object
	// programs are by function and library; a function that launches a graph has the first only.
	programs [][libraryCount]*ebpf.Program
	multi    bool // probes are uprobe_multi links (Linux 6.6), otherwise perf events

	numbers       []uint64
	communicators []communicator
	launchKeys    []launchKey
	launches      []launchCounts
	rankNumbers   []uint64
	ranks         []rank
	handleKeys    []gen.CollectiveHandleKey
	handles       []gen.CollectiveHandle
	pendingKeys   []gen.CollectivePendingKey
	pending       []gen.CollectivePending
	gone          map[uint64]bool // communicators that were removed, but may have handles
	processKeys   []processKey
	processes     []gen.CollectiveCollectiveProcess
}

// newKernel makes the maps.
func newKernel(spec hook.Spec) (*kernel, error) {
	object, err := hook.Maps(spec)
	if err != nil {
		return nil, err
	}
	return &kernel{object: object, programs: make([][libraryCount]*ebpf.Program, len(functions)), multi: uprobe.HasMulti()}, nil
}

// An owner may have a quarter of the maps. A communicator has some four operations.
const (
	share            = 4
	launchesOfMember = 4
)

const (
	communicatorsMap = gen.CollectiveMapCommunicators
	pendingMap       = gen.CollectiveMapCommunicatorsPending
	handlesMap       = gen.CollectiveMapCommunicatorHandles
	launchesMap      = gen.CollectiveMapCollectiveLaunches
	ranksMap         = gen.CollectiveMapCollectiveRanks
	firstsMap        = gen.CollectiveMapCollectiveFirsts

	communicatorsOfOwner = uint32(gen.CollectiveCollectiveMapCOMMUNICATORS_OF_OWNER)
	launchesOfOwner      = uint32(gen.CollectiveCollectiveMapLAUNCHES_OF_OWNER)
)

func (o *Options) spec() hook.Spec {
	n := cmp.Or(o.MaxEntries, defaultMaxEntries)
	return hook.Spec{
		Load: gen.LoadCollective, Subsystem: o.Subsystem, Workloads: o.Workloads,
		Entries: map[string]uint32{
			communicatorsMap: n, pendingMap: n, handlesMap: n, ranksMap: n, firstsMap: n, launchesMap: launchesOfMember * n,
		},
		Shares:  []uint32{n / share, launchesOfMember * n / share},
		Prepare: uprobe.Prepare,
		Report: hook.Report{
			Maps: []string{communicatorsMap, launchesMap}, Losses: gen.CollectiveVarCollectiveLosses, Reasons: lossNames[:],
			Shares: []int{
				int(gen.CollectiveCollectiveLossLOSS_COMMUNICATORS_SHARE), int(gen.CollectiveCollectiveLossLOSS_LAUNCHES_SHARE),
			},
		},
	}
}

var lossNames = [gen.CollectiveCollectiveLossCOLLECTIVE_LOSSES]string{
	gen.CollectiveCollectiveLossLOSS_COMMUNICATORS_FULL:  "communicators_full",
	gen.CollectiveCollectiveLossLOSS_COMMUNICATORS_SHARE: "communicators_share",
	gen.CollectiveCollectiveLossLOSS_LAUNCHES_FULL:       "collective_launches_full",
	gen.CollectiveCollectiveLossLOSS_LAUNCHES_SHARE:      "collective_launches_share",
	gen.CollectiveCollectiveLossLOSS_PENDING:             "communicators_pending",
	gen.CollectiveCollectiveLossLOSS_UNREADABLE:          "collective_unreadable",
	gen.CollectiveCollectiveLossLOSS_TIMES_FULL:          "collective_times_full",
}

// load loads the program of a function for each library: before Linux 5.15 a probe cannot pass a value to its program.
func (k *kernel) load(i int) error {
	f := &functions[i]
	for library := range k.programs[i] {
		if f.kind == gen.CollectiveFunctionKindKIND_GRAPH && library > 0 {
			continue
		}
		spec := k.object.Compiled.Copy()
		var err error
		for name, value := range map[string]any{
			gen.CollectiveVarFunction: uint32(i), gen.CollectiveVarKind: uint32(f.kind), gen.CollectiveVarLibrary: uint32(library),
			gen.CollectiveVarOperation:            uint32(max(slices.Index(operations, f.operation), 0)),
			gen.CollectiveVarCommunicatorArgument: f.communicator,
			gen.CollectiveVarCountArgument:        f.count, gen.CollectiveVarTypeArgument: f.typ,
			gen.CollectiveVarNumbered:       f.operation != "" && !pairwise[f.operation],
			gen.CollectiveVarCallsBroadcast: f.name == bcast, gen.CollectiveVarIsBroadcast: f.name == broadcast,
		} {
			err = errors.Join(err, spec.Variables[name].Set(value))
		}
		if err != nil {
			return err
		}
		coll, err := k.object.Variant(spec, locate.CheckStack, gen.CollectiveProgCollective)
		if err != nil {
			return err
		}
		k.programs[i][library] = coll.DetachProgram(gen.CollectiveProgCollective)
		coll.Close()
	}
	return nil
}

// probe returns how to attach the probe of a function of a library in all processes that map the file.
func (k *kernel) probe(p *library.Place, number int) func(path string) (io.Closer, error) {
	function, at := p.Function, uprobe.Place{Offset: p.Offset}
	return func(path string) (io.Closer, error) {
		at.Path = path
		l, err := uprobe.Attach(k.programs[function][number], at, k.multi, 0)
		if err != nil {
			return nil, fmt.Errorf("probing %s: %w", functions[function].name, err)
		}
		return l, nil
	}
}

// eachCommunicator calls f for each communicator with its number, and deletes the communicator and its launches if f returns true.
func (k *kernel) eachCommunicator(f func(uint64, *communicator) (drop bool)) error {
	gone, left, err := hook.Sweep(k.object.Coll.Maps[communicatorsMap], &k.numbers, &k.communicators,
		func(number *uint64, c *communicator) bool {
			drop := f(*number, c)
			if drop {
				k.object.Owners.Add(c.Owner, communicatorsOfOwner, -1)
			}
			return drop
		})
	if err != nil {
		return fmt.Errorf("communicators: %w", err)
	}
	k.object.Entries[communicatorsMap] = left
	k.gone = map[uint64]bool{}
	for _, number := range gone {
		k.gone[number] = true
	}
	return k.removeLaunches(gone)
}

// removeLaunches removes the launches in communicators.
func (k *kernel) removeLaunches(numbers []uint64) error {
	m := k.object.Coll.Maps[launchesMap]
	for _, number := range numbers {
		for operation := range operations {
			key, l := launchKey{Communicator: number, Operation: uint64(operation)}, launchCounts{}
			if m.Lookup(key, &l) == nil && m.Delete(key) == nil {
				k.object.Owners.Add(l.Owner, launchesOfOwner, -1)
			}
		}
	}
	return nil
}

func (k *kernel) eachLaunches(f func(launchKey, *launchCounts)) error {
	n, err := hook.Batches(k.object.Coll.Maps[launchesMap], &k.launchKeys, &k.launches, f)
	if err != nil {
		return fmt.Errorf("launches: %w", err)
	}
	k.object.Entries[launchesMap] = n
	return nil
}

// eachRank calls f for each rank of a communicator with an id. It removes the ranks of removed communicators, and the times of the first
// launches that no rank needs.
func (k *kernel) eachRank(f func(number uint64, r *rank)) error {
	used, unused := map[uint64]bool{}, []uint64{}
	_, _, err := hook.Sweep(k.object.Coll.Maps[ranksMap], &k.rankNumbers, &k.ranks, func(number *uint64, r *rank) (drop bool) {
		if k.gone[*number] {
			unused = append(unused, r.Identity)
			return true
		}
		used[r.Identity] = true
		f(*number, r)
		return false
	})
	if err != nil {
		return fmt.Errorf("ranks of communicators: %w", err)
	}
	unused = slices.DeleteFunc(unused, func(identity uint64) bool { return used[identity] })
	if err := hook.Remove(k.object.Coll.Maps[firstsMap], unused); err != nil {
		return fmt.Errorf("first launches: %w", err)
	}
	return nil
}

// removeProcesses removes the pending communicators of ended processes, and their handles. A process that has left its cgroup may launch on
// a communicator that was removed with the cgroup: without its handle, it is counted as late.
func (k *kernel) removeProcesses(ended func(tgid uint32) bool) error {
	_, _, err := hook.Sweep(k.object.Coll.Maps[handlesMap], &k.handleKeys, &k.handles,
		func(key *gen.CollectiveHandleKey, h *gen.CollectiveHandle) bool {
			return k.gone[h.Communicator] || ended(key.Tgid)
		})
	if err != nil {
		return fmt.Errorf("handles of communicators: %w", err)
	}
	_, _, err = hook.Sweep(k.object.Coll.Maps[pendingMap], &k.pendingKeys, &k.pending,
		func(key *gen.CollectivePendingKey, p *gen.CollectivePending) bool {
			drop := ended(key.Tgid)
			if drop {
				k.object.Owners.Add(p.Communicator.Owner, communicatorsOfOwner, -1)
			}
			return drop
		})
	if err != nil {
		return fmt.Errorf("pending communicators: %w", err)
	}
	return nil
}

// eachProcess calls f with what the programs know of each process, and deletes it if f returns true. Only the Prober calls it.
func (k *kernel) eachProcess(f func(tgid int, p *gen.CollectiveCollectiveProcess) (drop bool)) error {
	_, _, err := hook.Sweep(k.object.Coll.Maps[gen.CollectiveMapCollectiveProcesses], &k.processKeys, &k.processes,
		func(key *processKey, p *gen.CollectiveCollectiveProcess) bool { return f(int(key.Tgid), p) })
	if err != nil {
		return fmt.Errorf("calls of processes: %w", err)
	}
	return nil
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
