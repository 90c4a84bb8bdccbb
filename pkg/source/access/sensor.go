// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/link"

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
}

func unattached(reason string, state model.State) []model.Hook {
	return hook.States(append(slices.Clip(accessHooks), filesHook), reason, state)
}

// newSensor attaches the available hooks. It fails if all are unavailable.
func newSensor(o Options) (*sensor, []model.Hook, error) { return open(o, o.spec()) }

func open(o Options, spec hook.Spec) (*sensor, []model.Hook, error) {
	s := &sensor{watched: map[uint32]bool{}}
	_, hooks, err := hook.Open(spec, func(object *hook.Object) ([]model.Hook, error) { return s.attach(object, o.Tier) })
	if err == nil {
		return s, hooks, nil
	}
	if hooks == nil {
		hooks = unattached(err.Error(), model.StateFailed)
	}
	return nil, hooks, err
}

func (s *sensor) attach(object *hook.Object, tier string) ([]model.Hook, error) {
	s.object = object
	hooks := append(object.AttachAll(accessHooks, tier), s.attachFiles())
	s.counts = hooks[0].State == model.StateOK
	s.denialsUnseen = hooks[1].State != model.StateOK && object.Kernel.Functions[accessHooks[1].Name]
	if s.counts || s.files != nil {
		return hooks, nil
	}
	if err := hook.Failures(hooks); err != nil {
		return hooks, hook.Unsupported(fmt.Errorf("nothing could be attached: %w", err))
	}
	return hooks, fmt.Errorf("nothing could be attached: %w", model.ErrUnsupported)
}

const opensMap = gen.DevicesMapDeviceOpens

func (o *Options) spec() hook.Spec {
	return hook.Spec{
		Load: gen.LoadDevices, Subsystem: o.Subsystem, Workloads: o.Workloads,
		// Hundreds of VFs have three device nodes each.
		Entries: map[string]uint32{opensMap: o.MaxEntries, gen.DevicesMapDeviceNodes: 4096},
		Growing: []string{opensMap},
		Shares:  []uint32{o.MaxEntries / opensShare},
		Report: hook.Report{
			Maps: []string{opensMap}, Losses: gen.DevicesVarAccessLosses, Reasons: lossNames[:],
			Shares: []int{int(gen.DevicesAccessLossLOSS_OPENS_SHARE)}, Skipped: "device_program_skipped",
		},
	}
}

// attachFiles attaches the iterator. It does not run until it is read.
func (s *sensor) attachFiles() model.Hook {
	if err := nodePIDs(); err != nil {
		return filesHook.Unattached(err.Error())
	}
	h := s.object.Attach(filesHook, "")
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
	_, left, err := hook.Sweep(s.object.Coll.Maps[opensMap], &s.keys, &s.values,
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
	s.object.Entries[opensMap] = left
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
	return s.object.Fill(snap)
}
