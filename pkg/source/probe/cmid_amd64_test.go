// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// Offsets in the memory of a fake CM id and of the task that created it.
const (
	fakeID     = 2048
	fakeTask   = 2304
	fakeSet    = 2560
	fakeCgroup = 2816
	fakeNode   = 3072
)

// cgroupOfTask is the cgroup of the task. This test plays a kernel worker, and runs in another cgroup.
const cgroupOfTask = 4711

// id returns the address of the restrack entry of the CM id.
func (p *objectPrograms) id() uint64 {
	at := uint32(fakeID)
	found, err := p.types.AnyTypeByName(cmIDType)
	if err != nil {
		p.t.Fatal(err)
	}
	p.member(&at, found, "res")
	return p.address + uint64(at)
}

func (p *objectPrograms) newID() {
	p.t.Helper()
	p.put(fakeDevice, "ib_device.index", 3)
	p.put(fakeID, "rdma_id_private.id.device", 0)
	p.put(fakeID, "rdma_id_private.res.type", uint64(gen.ObjectsObjectTypeTYPE_CM_ID))
	p.put(fakeID, "rdma_id_private.res.user", 1)
	p.put(fakeID, "rdma_id_private.res.task", p.address+fakeTask)
	p.put(fakeTask, "task_struct.cgroups", p.address+fakeSet)
	p.put(fakeSet, "css_set.dfl_cgrp", p.address+fakeCgroup)
	p.put(fakeCgroup, "cgroup.kn", p.address+fakeNode)
	p.put(fakeNode, "kernfs_node.id", cgroupOfTask)
}

// TestCMIDs: a CM id belongs to the cgroup of its creator as soon as it is bound to a device. An id that is destroyed
// before this is not mistaken for an adopted id.
func TestCMIDs(t *testing.T) {
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		t.Run(tier, func(t *testing.T) {
			p := newObjectPrograms(t, tier)
			adopted := p.coll.Maps[gen.ObjectsMapAdopted]
			key := gen.ObjectsHoldingKey{Cgroup: cgroupOfTask, Device: 3, Type: uint16(gen.ObjectsObjectTypeTYPE_CM_ID)}
			expect := func(what string, want gen.ObjectsHolding) {
				t.Helper()
				wanted := map[gen.ObjectsHoldingKey]gen.ObjectsHolding{}
				if want != (gen.ObjectsHolding{}) {
					want.Owner = cgroupOfTask
					wanted[key] = want
				}
				if d := cmp.Diff(wanted, p.holdings()); d != "" {
					t.Errorf("%s (-want +got)\n%s", what, d)
				}
			}
			first := gen.ObjectsAdoptedKey{Device: 3, Type: uint32(gen.ObjectsObjectTypeTYPE_CM_ID)}
			if err := adopted.Put(first, gen.ObjectsObject{Cgroup: cgroupOfTask, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_CM_ID)}); err != nil {
				t.Fatal(err)
			}
			p.newID()
			p.call("restrack_del", 0, p.id())
			p.put(fakeID, "rdma_id_private.id.device", p.address+fakeDevice)
			p.call("restrack_del", 0, p.id())
			expect("destroyed before it was added", gen.ObjectsHolding{})
			p.put(fakeID, "rdma_id_private.res.id", 7)
			p.call("restrack_add", 0, p.id())
			expect("bound", gen.ObjectsHolding{Current: 1, Created: 1})
			var o gen.ObjectsObject
			if err := p.coll.Maps[gen.ObjectsMapObjects].Lookup(p.id(), &o); err != nil || o.Id != 7 || o.Numbered != 1 {
				t.Errorf("%+v, %v: want number 7", o, err)
			}
			p.put(fakeID, "rdma_id_private.res.valid", 1)
			p.call("restrack_del", 0, p.id())
			expect("destroyed", gen.ObjectsHolding{Created: 1})
			// The end of an adopted id.
			p.put(fakeID, "rdma_id_private.res.id", 0)
			p.call("restrack_del", 0, p.id())
			expect("an adopted one is destroyed", gen.ObjectsHolding{Current: -1, Created: 1})
			if err := adopted.Lookup(first, &o); err == nil {
				t.Errorf("still adopted: %+v", o)
			}
			p.put(fakeID, "rdma_id_private.res.user", 0)
			p.call("restrack_add", 0, p.id())
			expect("one of the kernel", gen.ObjectsHolding{Current: -1, Created: 1})
		})
	}
}
