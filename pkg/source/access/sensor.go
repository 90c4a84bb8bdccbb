// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// accessHooks are hooks in the core kernel, so they do not pin a module.
var accessHooks = []hook.Hook{
	{Name: "chrdev_open", Tiers: []hook.Tier{
		hook.With(hook.Fentry, gen.DevicesProgFexitChrdevOpen, gen.DevicesProgFentryChrdevOpen),
		hook.With(hook.Kprobe, gen.DevicesProgKretprobeChrdevOpen, gen.DevicesProgKprobeChrdevOpen),
	}},
	// Kernels without device cgroups deny nothing.
	{Name: "devcgroup_check_permission", Optional: true, Tiers: []hook.Tier{
		hook.With(hook.Fentry, gen.DevicesProgFexitPermission),
		hook.With(hook.Kprobe, gen.DevicesProgKretprobePermission, gen.DevicesProgKprobePermission),
	}},
}

const (
	// stackSize is the size of a kernel stack on machines with pages of 4 KiB.
	stackSize = 16384
)

var filesHook = hook.Hook{Name: "task_file", Optional: true, Tiers: []hook.Tier{hook.Loading(hook.Iterator, gen.DevicesProgOpenFiles)}}

// opensShare is the part of the map that an owner may have: a quarter.
const opensShare = 4

type sensor struct {
	object *hook.Object
	counts bool       // opens are counted
	files  *link.Iter // nil if the kernel cannot list open files
	// denialsUnseen: the kernel has device cgroups, and the hook on their checks is not attached.
	denialsUnseen bool

	watched map[uint32]bool // device numbers in the map of the programs
	keys    []gen.DevicesAccessKey
	values  []gen.DevicesAccessCount
	entries uint64 // at the last read
}

func unattached(reason string, state model.State) []model.Hook {
	var out []model.Hook
	for _, h := range accessHooks {
		out = append(out, model.Hook{Name: h.Name, State: state, Reason: reason})
	}
	return append(out, model.Hook{Name: filesHook.Name, State: state, Reason: reason})
}

// newSensor attaches the available hooks. It fails if all are unavailable.
func newSensor(opts Options) (*sensor, []model.Hook, error) {
	// The kernel's type information takes some megabytes and is needed only here.
	defer debug.FreeOSMemory()

	fail := func(err error) (*sensor, []model.Hook, error) {
		return nil, unattached(err.Error(), model.StateFailed), err
	}
	symbols, err := hook.Symbols()
	if err != nil {
		return fail(err)
	}
	types, err := hook.LoadTypes("")
	if err != nil {
		return fail(err)
	}
	spec, err := loadSpec(opts, types)
	if err != nil {
		return fail(err)
	}
	s, hooks, err := attach(opts, spec, types, symbols)
	if err != nil {
		return nil, hook.Closed(hooks, err), err
	}
	return s, hooks, nil
}

func attach(opts Options, spec *ebpf.CollectionSpec, types *hook.Types, symbols map[string]bool) (*sensor, []model.Hook, error) {
	s := &sensor{watched: map[uint32]bool{}}
	var err error
	if s.object, err = opts.Workloads.NewObject(spec, types); err != nil {
		return nil, unattached(err.Error(), model.StateFailed), err
	}
	var hooks []model.Hook
	for _, h := range accessHooks {
		hooks = append(hooks, s.object.Attach(h, opts.Tier, symbols))
	}
	hooks = append(hooks, s.attachFiles(symbols))
	s.object.Attached()
	s.counts = hooks[0].State == model.StateOK
	s.denialsUnseen = hooks[1].State != model.StateOK && symbols[accessHooks[1].Name]
	if !s.counts && s.files == nil {
		s.close()
		if err := hook.Failures(hooks); err != nil {
			return nil, hooks, hook.Unsupported(fmt.Errorf("nothing could be attached: %w", err))
		}
		return nil, hooks, fmt.Errorf("nothing could be attached: %w", model.ErrUnsupported)
	}
	return s, hooks, nil
}

func loadSpec(opts Options, types *hook.Types) (*ebpf.CollectionSpec, error) {
	spec, err := gen.LoadDevices()
	if err != nil {
		return nil, err
	}
	subsys, err := types.Subsystem(opts.Subsystem)
	if err != nil {
		return nil, err
	}
	opens := spec.Maps[gen.DevicesMapDeviceOpens]
	opens.MaxEntries = opts.MaxEntries
	if types.GrowingMaps() {
		opens.Flags |= unix.BPF_F_NO_PREALLOC
	}
	if err := hook.SetShares(spec, opts.MaxEntries/opensShare); err != nil {
		return nil, err
	}
	spec.Maps[gen.DevicesMapDeviceNodes].MaxEntries = 4096 // hundreds of VFs have three each
	return spec, errors.Join(
		spec.Variables[gen.DevicesVarCgroupSubsys].Set(subsys),
		spec.Variables[gen.DevicesVarStackSize].Set(uint32(max(stackSize, os.Getpagesize()))),
	)
}

// attachFiles attaches the iterator. It does not run until it is read.
func (s *sensor) attachFiles(symbols map[string]bool) model.Hook {
	if err := nodePIDs(); err != nil {
		return filesHook.Unattached(err.Error())
	}
	h := s.object.Attach(filesHook, "", symbols)
	if h.State != model.StateOK {
		return filesHook.Unattached(h.Reason)
	}
	var err error
	if s.files, err = link.AttachIter(link.IterOptions{Program: s.object.Program(gen.DevicesProgOpenFiles)}); err != nil {
		return filesHook.Unattached(err.Error())
	}
	return h
}

func (s *sensor) close() {
	if s.files != nil {
		_ = s.files.Close()
	}
	s.object.Close()
}

// watch updates the device numbers and majors of the programs. Numbers come first, so that an existing number does not
// count as missing.
func (s *sensor) watch(n *nodes) error {
	majors := s.object.Coll.Variables[gen.DevicesVarMajors]
	m := s.object.Coll.Maps[gen.DevicesMapDeviceNodes]
	if m == nil { // the kernel refuses it, and the programs that use it
		return majors.Set(n.majors)
	}
	var gone []uint32
	for rdev := range s.watched {
		if _, ok := n.named[rdev]; !ok {
			gone = append(gone, rdev)
			delete(s.watched, rdev)
		}
	}
	err := hook.Remove(m, gone)
	for rdev := range n.named {
		if s.watched[rdev] {
			continue
		}
		if put := m.Put(rdev, uint8(1)); put != nil { // more than 1024 of them
			err = errors.Join(err, fmt.Errorf("device %d:%d: %w", rdev>>minorBits, rdev&minorMask, put))
			break
		}
		s.watched[rdev] = true
	}
	return errors.Join(err, majors.Set(n.majors))
}

// each calls f for every counter, and deletes the entries for which it returns true.
func (s *sensor) each(f func(gen.DevicesAccessKey, *gen.DevicesAccessCount) (drop bool)) error {
	if !s.counts {
		return nil
	}
	_, left, err := hook.Sweep(s.object.Coll.Maps[gen.DevicesMapDeviceOpens], &s.keys, &s.values,
		func(k *gen.DevicesAccessKey, v *gen.DevicesAccessCount) bool {
			drop := f(*k, v)
			if drop {
				s.object.Owners.Add(v.Owner, opensOfOwner, -1)
			}
			return drop
		})
	if err != nil {
		return fmt.Errorf("opens of devices: %w", err)
	}
	s.entries = left
	return nil
}

var lossNames = [gen.DevicesAccessLossACCESS_LOSSES]string{
	gen.DevicesAccessLossLOSS_OPENS_FULL:         "device_opens_map_full",
	gen.DevicesAccessLossLOSS_OPENS_SHARE:        "device_opens_map_share",
	gen.DevicesAccessLossLOSS_OPEN_RETURN_MISSED: "device_open_return_missed",
}

const opensOfOwner = uint32(gen.DevicesAccessMapOPENS_OF_OWNER)

func (s *sensor) self(snap *model.Snapshot) error {
	if !s.counts {
		return nil
	}
	snap.Maps = append(snap.Maps, model.Map{
		Name: gen.DevicesMapDeviceOpens, Entries: s.entries,
		Capacity: uint64(s.object.Coll.Maps[gen.DevicesMapDeviceOpens].MaxEntries()),
	})
	var lost [gen.DevicesAccessLossACCESS_LOSSES]uint64
	if s.object.Coll.Variables[gen.DevicesVarAccessLosses].Get(&lost) == nil {
		for i, n := range lost {
			snap.Losses = append(snap.Losses, model.Loss{Reason: lossNames[i], Count: n})
		}
	}
	snap.Losses = append(snap.Losses, model.Loss{Reason: "device_program_skipped", Count: s.object.Missed()})
	const reason = gen.DevicesAccessLossLOSS_OPENS_SHARE
	return s.object.Owners.AddLosses(snap, lost[reason], lossNames[reason])
}
