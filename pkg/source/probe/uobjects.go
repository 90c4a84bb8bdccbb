// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/link"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// maxWalks limits the repetitions of a walk through objects that come and go.
const maxWalks = 3

// attachExisting records the objects of the uobject layer that are older than the hooks, such as address handles, flows
// and DEVX objects. It needs the hook that counts these objects.
func (s *sensor) attachExisting(o *hook.Object, hooks []model.Hook) model.Hook {
	if !slices.ContainsFunc(hooks, func(h model.Hook) bool { return h.Name == uobjectHook && attached(h) }) {
		return existingHook.Unattached("needs the hook " + uobjectHook)
	}
	h := o.Attach(existingHook, "")
	if attached(h) {
		if err := adoptUobjects(o, s.opts.Sysfs); err != nil {
			s.opts.Logger.Info("address handles, flows, DEVX objects and the like from before the start are not counted", zap.Error(err))
			return existingHook.Unattached(err.Error())
		}
	}
	return h
}

// adoptUobjects runs the iterator, which finds the objects in the open files of uverbs devices
// (class/infiniband_verbs/uverbsN/dev). They count as live, not as created.
func adoptUobjects(o *hook.Object, sysfs string) error {
	if err := hook.SetUverbs(o.Coll, sysfs); err != nil {
		return err
	}
	iterator := o.Program(gen.ObjectsProgAdoptUobjects)
	cut := o.Coll.Variables[gen.ObjectsVarWalksCut]
	for range maxWalks {
		if err := cut.Set(uint64(0)); err != nil {
			return fmt.Errorf("objects of uverbs files: %w", err)
		}
		if _, err := hook.Iterate(link.IterOptions{Program: iterator}); err != nil {
			return fmt.Errorf("objects of uverbs files: %w", err)
		}
		var n uint64
		if err := cut.Get(&n); err != nil || n == 0 {
			return err
		}
	}
	return nil
}
