// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// parseEvent decodes an event.
func parseEvent(raw []byte, e *gen.DatapathPathEvent) error {
	return binary.Read(bytes.NewReader(raw), binary.NativeEndian, e)
}

// existing lists the queue pairs of all processes with an open uverbs device (class/infiniband_verbs/uverbsN/dev), at most 256 per open
// file. Their contexts are 0, because the addresses are in the processes' memory.
func (k *kernel) existing() ([]event, error) {
	if k.refused[gen.DatapathProgExisting] != nil { // coverage reports the gap
		return nil, nil
	}
	if err := hook.SetUverbs(k.object.Coll, k.sysfs); err != nil {
		return nil, err
	}
	var out []event
	err := iterate(link.IterOptions{Program: k.object.Program(gen.DatapathProgExisting)},
		func(e *gen.DatapathPathEvent) { out = append(out, eventOf(e)) })
	if err != nil {
		return nil, fmt.Errorf("iterator over open files: %w", err)
	}
	return out, nil
}

// iterate calls f with each record that an iterator writes.
func iterate[T any](o link.IterOptions, f func(*T)) error {
	raw, err := hook.Iterate(o)
	if err != nil {
		return err
	}
	var record T
	for size := binary.Size(record); len(raw) >= size; raw = raw[size:] {
		if _, err := binary.Decode(raw, binary.NativeEndian, &record); err != nil {
			return err
		}
		f(&record)
	}
	return nil
}

// outstanding calls f with the state of each queue pair that has a ring and did not fail. It may miss queue pairs that are created or
// destroyed meanwhile.
func (k *kernel) outstanding(f func(*gen.DatapathOutstanding)) error {
	err := iterate(link.IterOptions{
		Program: k.object.Program(gen.DatapathProgListOutstanding), Map: k.object.Coll.Maps[gen.DatapathMapQueues],
	}, f)
	if err != nil {
		return fmt.Errorf("iterator over queue pairs: %w", err)
	}
	return nil
}

// insert adds a context that is older than the hooks, and returns its number. If a hook has added the context meanwhile, insert only
// marks it.
func (k *kernel) insert(e event, chosen bool) (number uint32, err error) {
	number, err = k.run(&gen.DatapathControlArgs{
		Key: e.key, What: uint32(gen.DatapathOrderCONTROL_ADD), Cgroup: uint64(e.cgroup), Owner: cmp.Or(e.owner, uint64(e.cgroup)),
		Device: e.device, Ucontext: e.ucontext, Chosen: toInt[uint8](chosen),
	})
	if err == nil && number == 0 {
		err = fmt.Errorf("verbs context %#x of process %d: no room in the map", e.key.Context, e.key.Tgid)
	}
	return number, err
}

// mark sets whether a context is counted and since when its functions are probed (CLOCK_MONOTONIC, ns), 0 if they are not. A program does
// it, because other programs may count meanwhile.
func (k *kernel) mark(key gen.DatapathContextKey, chosen bool, probed uint64) error {
	return k.order(&gen.DatapathControlArgs{
		Key: key, What: uint32(gen.DatapathOrderCONTROL_MARK), Chosen: toInt[uint8](chosen), ProbedNs: probed,
	})
}

// errRepeated is why a context is not announced again.
var errRepeated = errors.New("the functions of too many queue pairs of a context were not found")

// announceAgain has the kernel announce the next queue pair of a context that changes its state, also if its functions were announced
// before. It returns the address of the queue pair that changed its state last, 0 if destroyed. Errors are model.ErrAbsent if the context
// was closed, and errRepeated after MAX_REPEATED times.
func (k *kernel) announceAgain(key gen.DatapathContextKey) (qp uint64, err error) {
	repeated, err := k.run(&gen.DatapathControlArgs{Key: key, What: uint32(gen.DatapathOrderCONTROL_REPEAT)})
	switch {
	case err != nil:
		return 0, err
	case repeated > 1:
		return 0, errRepeated
	}
	stat, err := k.context(key)
	return stat.Qp, err
}

// context returns the counters of an open context, or model.ErrAbsent.
func (k *kernel) context(key gen.DatapathContextKey) (stat gen.DatapathContextStat, err error) {
	number := key.Number
	key.Number = 0
	err = k.object.Coll.Maps[gen.DatapathMapContexts].Lookup(key, &stat)
	switch {
	case errors.Is(err, ebpf.ErrKeyNotExist), err == nil && stat.Number != number:
		return stat, fmt.Errorf("verbs context %#x of process %d: %w", key.Context, key.Tgid, model.ErrAbsent)
	case err != nil:
		return stat, fmt.Errorf("verbs contexts: %w", err)
	}
	return stat, nil
}

// gap records that some calls of a context were not probed. Durations are then
// measured by wr_id only, until a completion is found.
func (k *kernel) gap(key gen.DatapathContextKey) {
	// A context that no longer exists needs none.
	_ = k.order(&gen.DatapathControlArgs{Key: key, What: uint32(gen.DatapathOrderCONTROL_GAP)})
}

// removeContext removes a context and its durations.
func (k *kernel) removeContext(key gen.DatapathContextKey) error {
	err := k.order(&gen.DatapathControlArgs{Key: key, What: uint32(gen.DatapathOrderCONTROL_REMOVE)})
	if errors.Is(err, model.ErrAbsent) {
		return nil
	}
	return err
}

// removeProcesses removes contexts and all other entries of processes.
func (k *kernel) removeProcesses(tgids []uint32, contexts ...gen.DatapathContextKey) error {
	for _, key := range contexts {
		if err := k.removeContext(key); err != nil {
			return err
		}
	}
	ended := k.object.Coll.Maps[gen.DatapathMapEnded]
	for some := range slices.Chunk(tgids, int(ended.MaxEntries())) {
		if err := k.removeEntries(ended, some); err != nil {
			return err
		}
	}
	return nil
}

// removeEntries removes the entries of some processes in one walk of the maps: a walk for
// each would take seconds after a large job.
func (k *kernel) removeEntries(ended *ebpf.Map, tgids []uint32) error {
	_, err := ended.BatchUpdate(tgids, make([]uint8, len(tgids)), nil)
	for left, walks := uint32(1), 0; err == nil && left > 0 && walks < maxWalks; walks++ {
		left, err = k.run(&gen.DatapathControlArgs{What: uint32(gen.DatapathOrderCONTROL_REMOVE)})
	}
	if err = errors.Join(err, hook.Remove(ended, tgids)); err != nil {
		return fmt.Errorf("processes that have ended: %w", err)
	}
	return nil
}

// correctRings removes the rings of closed contexts, and corrects the number of rings of each owner, which limits them.
func (k *kernel) correctRings() error {
	return k.order(&gen.DatapathControlArgs{What: uint32(gen.DatapathOrderCONTROL_RINGS)})
}

// maxWalks bounds how often the entries of processes are walked.
const maxWalks = 16

// order changes one context.
func (k *kernel) order(args *gen.DatapathControlArgs) error {
	absent, err := k.run(args)
	if err != nil {
		return err
	}
	if absent != 0 {
		return fmt.Errorf("verbs context %#x of process %d: %w", args.Key.Context, args.Key.Tgid, model.ErrAbsent)
	}
	return nil
}

// run runs the program "control".
func (k *kernel) run(args *gen.DatapathControlArgs) (uint32, error) {
	ret, err := k.object.Program(gen.DatapathProgControl).Run(&ebpf.RunOptions{Context: args})
	if err != nil {
		return 0, fmt.Errorf("changing the maps of the data path: %w", err)
	}
	return ret, nil
}

// mapReader reads the maps. It is not safe for concurrent use: the meter uses it.
type mapReader struct {
	object       *hook.Object
	contextKeys  []gen.DatapathContextKey
	contextStats []gen.DatapathContextStat
	latencyKeys  []gen.DatapathLatencyKey
	latencyStats []gen.DatapathLatency
}

// contexts calls f with the numbered key and the counters of each context, open or
// closed. They are overwritten after it returns.
func (r *mapReader) contexts(f func(gen.DatapathContextKey, *gen.DatapathContextStat)) error {
	return r.eachContext(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, _ bool) { f(key, stat) })
}

func (r *mapReader) eachContext(f func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, closed bool)) error {
	each := func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		closed := key.Number != 0
		key.Number = stat.Number
		f(key, stat, closed)
	}
	n, err := hook.Batches(r.object.Coll.Maps[gen.DatapathMapContexts], &r.contextKeys, &r.contextStats, each)
	if err != nil {
		return fmt.Errorf("verbs contexts: %w", err)
	}
	r.object.Entries[gen.DatapathMapContexts] = n
	return nil
}

// latencies calls f with the durations of each context.
func (r *mapReader) latencies(f func(gen.DatapathLatencyKey, *gen.DatapathLatency)) error {
	n, err := hook.Batches(r.object.Coll.Maps[gen.DatapathMapLatencies], &r.latencyKeys, &r.latencyStats, f)
	if err != nil {
		return fmt.Errorf("durations of work requests: %w", err)
	}
	r.object.Entries[gen.DatapathMapLatencies] = n
	return nil
}

// lossReasons are the names of enum path_loss.
var lossReasons = [gen.DatapathPathLossPATH_LOSSES]string{
	gen.DatapathPathLossPATH_LOSS_CONTEXTS_FULL:  "datapath_contexts_full",
	gen.DatapathPathLossPATH_LOSS_CONTEXTS_SHARE: "datapath_contexts_share",
	gen.DatapathPathLossPATH_LOSS_UNREADABLE:     "datapath_unreadable",
	gen.DatapathPathLossPATH_LOSS_CHAIN_CUT:      "datapath_chain_cut",
	gen.DatapathPathLossPATH_LOSS_CALLS_FULL:     "datapath_calls_full",
	gen.DatapathPathLossPATH_LOSS_LATENCIES_FULL: "datapath_latencies_full",
	gen.DatapathPathLossPATH_LOSS_QUEUES_FULL:    "datapath_queues_full",
	gen.DatapathPathLossPATH_LOSS_QUEUES_SHARE:   "datapath_queues_share",
	gen.DatapathPathLossPATH_LOSS_EVENTS_FULL:    "datapath_events_full",
}

// The maps of contexts and queues for hook.Owners.
const (
	contextsOfOwner = uint32(gen.DatapathPathMapCONTEXTS_OF_OWNER)
	queuesOfOwner   = uint32(gen.DatapathPathMapQUEUES_OF_OWNER)
)

// fill adds the size of the maps and the losses to a snapshot.
func (r *mapReader) fill(snap *model.Snapshot) error {
	var queues uint64
	if r.object.Coll.Variables[gen.DatapathVarLiveQueues].Get(&queues) == nil {
		r.object.Entries[gen.DatapathMapQueues] = queues
	}
	return r.object.Fill(snap)
}

// unknownCosts calls f with what calls with unknown contexts cost each process.
func (k *kernel) unknownCosts(f func(uint32, *gen.DatapathUnknownCost)) error {
	var keys []uint32
	var stats []gen.DatapathUnknownCost
	_, err := hook.Batches(k.object.Coll.Maps[gen.DatapathMapUnknownCosts], &keys, &stats, f)
	return err
}
