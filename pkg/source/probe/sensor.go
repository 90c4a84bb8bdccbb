// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// sensor is a set of attached hooks and their maps. It lives from the first device to the removal of the last device.
type sensor struct {
	opts    Options
	verbs   *hook.Object // nil if verbs are not counted
	cgroups *hook.Object // nil if paths are not recorded
	reconciler
	call hang.Call[struct{}] // RDMA netlink query, which may hang in a driver

	// Buffers, reused between reads.
	verbKeys   []gen.VerbsVerbKey
	verbStats  []gen.VerbsVerbStat
	errorKeys  []gen.VerbsErrorKey
	errorStats []gen.VerbsErrorStat
}

// cmIDType is the structure of a CM id. Only the type information of modules describes it.
const cmIDType = "rdma_id_private"

// newSensor attaches the hooks that the kernel supports. It fails if neither verbs nor objects can be counted.
func newSensor(opts Options) (*sensor, []model.Hook, error) { return open(opts, opts.specs()) }

func open(opts Options, of specs) (*sensor, []model.Hook, error) {
	s := &sensor{opts: opts, reconciler: newReconciler()}
	defer hook.Hold()() // all objects need the types of the kernel
	hooks, err := s.attachAll(of)
	if err != nil {
		s.close()
		return nil, hooks, err
	}
	return s, hooks, nil
}

func (s *sensor) attachAll(of specs) (hooks []model.Hook, err error) {
	for _, one := range []struct {
		object **hook.Object
		spec   hook.Spec
		attach func(*hook.Object) ([]model.Hook, error)
	}{
		{&s.verbs, of.verbs, s.attachVerbs},
		{&s.objects, of.objects, s.attachObjects},
		{&s.peers, of.peers, s.attachPeers},
		{&s.cgroups, of.cgroups, s.attachCgroups},
	} {
		object, states, err := hook.Open(one.spec, one.attach)
		if err != nil && states == nil {
			return unattached(err.Error(), model.StateFailed), err
		}
		*one.object = object // nil if its hooks are not attached
		hooks = append(hooks, states...)
	}
	if s.verbs == nil && s.objects == nil {
		return hooks, hook.Unsupported(fmt.Errorf("no hook could be attached: %w", hook.Failures(hooks)))
	}
	return hooks, nil
}

func attached(h model.Hook) bool { return h.State == model.StateOK }

func (s *sensor) all() []*hook.Object {
	objects := []*hook.Object{s.verbs, s.objects, s.peers, s.cgroups}
	return slices.DeleteFunc(objects, func(o *hook.Object) bool { return o == nil })
}

func (s *sensor) attachVerbs(o *hook.Object) ([]model.Hook, error) {
	hooks := o.AttachAll(verbHooks, s.opts.Tier)
	if !slices.ContainsFunc(hooks, attached) {
		return hooks, errUnattached
	}
	return hooks, nil
}

// attachObjects attaches the hooks of objects. The others are useless if creation or deletion is not hooked.
func (s *sensor) attachObjects(o *hook.Object) ([]model.Hook, error) {
	var out []model.Hook
	usable, functions := true, o.Kernel.Functions
	for _, h := range objectHooks {
		if !usable {
			out = append(out, h.Unattached(needed))
			continue
		}
		got := o.Attach(h, s.opts.Tier)
		out = append(out, got)
		switch h.Name {
		case stepsHook:
			// If the kernel deletes in steps and this hook is not attached, objects would never end.
			usable = attached(got) || !functions[stepsHook]
		case restrackHook:
			usable = got.State == model.StateOK
		}
	}
	if !usable {
		return append(out, numberHook.Unattached(needed), existingHook.Unattached(needed)), errNoObjects
	}
	s.cmIDs = o.Kernel.Has(cmIDType)
	out = append(out, o.Attach(numberHook, ""), s.attachExisting(o, out))
	// If this fails, the kind stays unknown.
	if err := o.Coll.Variables[gen.ObjectsVarPlainMemory].Set(uint32(plainMemory(out, functions))); err != nil {
		s.opts.Logger.Warn("setting the kind of memory of memory regions failed", zap.Error(err))
	}
	return out, nil
}

const needed = "needs the hooks listed before it"

// errNoObjects is why an attached hook was detached.
var errNoObjects = errors.New("needs the hook " + restrackHook + ", and " + stepsHook + " if the kernel has that function")

// errUnattached closes an object without attached hooks.
var errUnattached = errors.New("no hook is attached")

func (s *sensor) detach() {
	var wg safely.Group
	for _, o := range s.all() {
		wg.Go(o.Detach)
	}
	wg.Wait()
}

func (s *sensor) close() {
	s.detach()
	for _, o := range s.all() {
		o.Close()
	}
}

// showDevices passes the device numbers of uverbs devices to the tracepoint programs.
func (s *sensor) showDevices(names deviceNames) {
	if s.verbs == nil || s.verbs.Coll.Maps[gen.VerbsMapRdevs] == nil { // the kernel refused the map, or its programs
		return
	}
	for rdev := range names {
		if err := s.verbs.Coll.Maps[gen.VerbsMapRdevs].Put(rdev, uint8(1)); err != nil {
			s.opts.Logger.Warn("adding device numbers of uverbs devices to the BPF map failed") // more than 1024 uverbs devices
			return
		}
	}
}
