// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// bind creates an id of the connection manager in a cgroup, and returns the address of its restrack entry. There are four.
func (p *objectPrograms) bind(i uint32, cgroup uint64) uint64 {
	p.t.Helper()
	p.newID()
	const size = 64 // more than an id has
	p.put(fakeID+i*size, "rdma_id_private.id.device", p.address+fakeDevice)
	p.put(fakeID+i*size, "rdma_id_private.res.type", uint64(gen.ObjectsObjectTypeTYPE_CM_ID))
	p.put(fakeID+i*size, "rdma_id_private.res.user", 1)
	p.put(fakeID+i*size, "rdma_id_private.res.task", p.address+fakeTask)
	p.put(fakeNode, "kernfs_node.id", cgroup)
	p.call("restrack_add", 0, p.id()+uint64(i*size))
	return p.id() + uint64(i*size)
}

// TestObjectsShare: a cgroup that has almost its share creates two objects, and another cgroup one. The ids of the connection
// manager and their task are FAKES.
func TestObjectsShare(t *testing.T) {
	const hostile, other = 42, 43
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		t.Run(tier, func(t *testing.T) {
			p := newObjectPrograms(t, tier)
			owners := p.coll.Maps[gen.ObjectsMapOwnerEntries]
			entries := func(owner uint64) (e gen.ObjectsOwnerEntries) {
				_ = owners.Lookup(owner, &e)
				return e
			}
			held := func() map[uint64]int64 {
				held := map[uint64]int64{}
				for k, h := range p.holdings() {
					held[k.Cgroup] += h.Current
				}
				return held
			}
			expect := func(what string, wantHeld map[uint64]int64, wantHostile, wantOther gen.ObjectsOwnerEntries) {
				t.Helper()
				if d := cmp.Diff(wantHeld, held()); d != "" {
					t.Errorf("%s: held (-want +got)\n%s", what, d)
				}
				for owner, want := range map[uint64]gen.ObjectsOwnerEntries{hostile: wantHostile, other: wantOther} {
					if d := cmp.Diff(want, entries(owner)); d != "" {
						t.Errorf("%s: owner %d (-want +got)\n%s", what, owner, d)
					}
				}
			}
			// newObjectPrograms has room for 64 objects and 64 holdings; the hostile one has 31 and 5.
			if err := owners.Put(uint64(hostile), gen.ObjectsOwnerEntries{Made: [2]int64{31, 5}}); err != nil {
				t.Fatal(err)
			}
			first := p.bind(0, hostile)
			p.bind(1, hostile)
			third := p.bind(2, other)
			expect("created", map[uint64]int64{hostile: 1, other: 1},
				gen.ObjectsOwnerEntries{Made: [2]int64{32, 6}, Refused: [2]uint64{1, 0}}, gen.ObjectsOwnerEntries{Made: [2]int64{1, 1}})
			p.call("restrack_del", 0, first)
			p.call("restrack_del", 0, third)
			expect("destroyed", map[uint64]int64{hostile: 0, other: 0},
				gen.ObjectsOwnerEntries{Made: [2]int64{31, 6}, Refused: [2]uint64{1, 0}}, gen.ObjectsOwnerEntries{Made: [2]int64{0, 1}})
			// The end of the former object at the address was missed; it is of another owner now.
			p.bind(3, hostile)
			p.bind(3, other)
			expect("used again", map[uint64]int64{hostile: 0, other: 1},
				gen.ObjectsOwnerEntries{Made: [2]int64{31, 6}, Refused: [2]uint64{1, 0}}, gen.ObjectsOwnerEntries{Made: [2]int64{1, 1}})
			var lost [gen.VerbsLossLOSSES]uint64
			if err := p.coll.Variables[gen.ObjectsVarObjectLosses].Get(&lost); err != nil {
				t.Fatal(err)
			}
			if lost[gen.VerbsLossLOSS_OBJECTS_SHARE] != 1 || lost[gen.VerbsLossLOSS_OBJECTS_FULL] != 0 {
				t.Errorf("lost %v", lost)
			}
		})
	}
}

// TestHoldingsShare: a cgroup that has its share of the holdings creates an object, which is not counted, and destroys it.
func TestHoldingsShare(t *testing.T) {
	const hostile = 42
	p := newObjectPrograms(t, hook.Fentry)
	full := gen.ObjectsOwnerEntries{Made: [2]int64{0, 16}}
	owners := p.coll.Maps[gen.ObjectsMapOwnerEntries]
	if err := owners.Put(uint64(hostile), full); err != nil {
		t.Fatal(err)
	}
	p.call("restrack_del", 0, p.bind(0, hostile))
	full.Refused[gen.ObjectsObjectMapHOLDINGS_OF_OWNER] = 1
	var got gen.ObjectsOwnerEntries
	if err := owners.Lookup(uint64(hostile), &got); err != nil || got != full || len(p.holdings()) > 0 {
		t.Errorf("%+v, %v, want %+v; counted %v", got, err, full, p.holdings())
	}
}
