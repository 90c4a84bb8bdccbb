// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
)

// bind creates one of four ids of the connection manager in a cgroup, and returns the address of its restrack entry.
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

// TestObjectsShare: a cgroup that has almost its share creates two objects, and another cgroup creates one. The ids of
// the connection manager and their task are FAKES.
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
			// The hostile owner may have 32 objects and 16 holdings; it has 31 and 5.
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
			// The end of the former object at the address was missed. The address now has an object of another owner.
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

// TestHoldingsShare: a cgroup that used up its share of the holdings creates an object, which is not counted, and
// destroys it.
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

func (p *objectPrograms) losses(variable string) (lost [gen.VerbsLossLOSSES]uint64) {
	p.t.Helper()
	if err := p.coll.Variables[variable].Get(&lost); err != nil {
		p.t.Fatal(err)
	}
	return lost
}

// TestObjectsFull: other owners have filled the map. The next object is lost because it does not fit, and its holding
// is taken back.
func TestObjectsFull(t *testing.T) {
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		t.Run(tier, func(t *testing.T) {
			p := newObjectPrograms(t, tier)
			objects := p.coll.Maps[gen.ObjectsMapObjects]
			for i := range uint64(objects.MaxEntries()) {
				if err := objects.Put(i, gen.ObjectsObject{Owner: 1 + i%4}); err != nil {
					t.Fatal(err)
				}
			}
			p.bind(0, 42)
			for k, h := range p.holdings() {
				if h.Current != 0 {
					t.Errorf("%+v holds %d", k, h.Current)
				}
			}
			lost := p.losses(gen.ObjectsVarObjectLosses)
			if lost[gen.VerbsLossLOSS_OBJECTS_FULL] != 1 || lost[gen.VerbsLossLOSS_OBJECTS_SHARE] != 0 {
				t.Errorf("lost %v, want one object that did not fit", lost)
			}
			var full [gen.ObjectsObjectTypeTYPES]uint64
			if err := p.coll.Variables[gen.ObjectsVarObjectsFull].Get(&full); err != nil {
				t.Fatal(err)
			}
			if full[gen.ObjectsObjectTypeTYPE_CM_ID] != 1 || sum(full[:]) != 1 {
				t.Errorf("lost by type %v, want one id of the connection manager", full)
			}
		})
	}
}

// TestOwnersFull: the map of owners is full. The next owner gets no entry, and the loss counts as a full map. After an
// owner has ended there is room. The end of an object of the ended owner does not bring this owner back.
func TestOwnersFull(t *testing.T) {
	const first, second, third = 41, 42, 43
	spec := compileSmall(t, small.objects)
	spec.Maps[gen.ObjectsMapOwnerEntries].MaxEntries = 2
	p := newPrograms(t, hook.Fentry, spec)
	owners := p.coll.Maps[gen.ObjectsMapOwnerEntries]
	object := p.bind(0, first)
	p.bind(1, second)
	expect := func(what string, want map[uint64]gen.ObjectsOwnerEntries, objects, holdings uint64) {
		t.Helper()
		got := map[uint64]gen.ObjectsOwnerEntries{}
		var owner uint64
		var e gen.ObjectsOwnerEntries
		for entries := owners.Iterate(); entries.Next(&owner, &e); {
			got[owner] = e
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", what, d)
		}
		lost := p.losses(gen.ObjectsVarObjectLosses)
		if lost[gen.VerbsLossLOSS_OBJECTS_FULL] != objects || lost[gen.VerbsLossLOSS_HOLDINGS_FULL] != holdings ||
			sum(lost[:]) != objects+holdings {
			t.Errorf("%s: lost %v, want %d objects and %d holdings that did not fit", what, lost, objects, holdings)
		}
	}
	one := gen.ObjectsOwnerEntries{Made: [2]int64{1, 1}}
	p.bind(2, third)
	expect("a third owner", map[uint64]gen.ObjectsOwnerEntries{first: one, second: one}, 1, 1)
	if err := owners.Delete(uint64(first)); err != nil {
		t.Fatal(err)
	}
	p.call("restrack_del", 0, object)
	expect("the first one has ended", map[uint64]gen.ObjectsOwnerEntries{second: one}, 1, 1)
	p.bind(3, third)
	expect("there is room", map[uint64]gen.ObjectsOwnerEntries{second: one, third: one}, 1, 1)
}

// TestPeersShareOfPrograms: a cgroup connects more queue pairs than its share of the map. Another cgroup still has
// room, and the first cgroup has room again after some of its queue pairs have ended. The queue pairs are FAKES.
func TestPeersShareOfPrograms(t *testing.T) {
	const (
		fakeQP, fakeAttr = 512, 1024
		reset, ready     = 0, 2 // enum ib_qp_state
		state, remote    = 1, 1 << 20
		room, share      = 32, 16
	)
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		t.Run(tier, func(t *testing.T) {
			p := newPeerPrograms(t, tier)
			peers, owners := p.coll.Maps[gen.PeersMapPeers], p.coll.Maps[gen.PeersMapOwnerEntries]
			p.put(fakeDevice, "ib_device.index", 3)
			p.put(fakeQP, "ib_qp.device", p.address+fakeDevice)
			p.put(fakeQP, "ib_qp.real_qp", p.address+fakeQP)
			hierarchy := testcgroup.V2()
			modify := func(cgroup string, qpn, to, mask uint64) {
				t.Helper()
				p.put(fakeQP, "ib_qp.qp_num", qpn)
				p.put(fakeAttr, "ib_qp_attr.qp_state", to)
				p.put(fakeAttr, "ib_qp_attr.dest_qp_num", 1000+qpn)
				enterFrom(t, "", hierarchy, cgroup, func() { p.call("modify_qp", 0, p.address+fakeQP, p.address+fakeAttr, mask, 0) })
			}
			connect := func(cgroup string, from, to uint64) {
				t.Helper()
				for qpn := from; qpn < to; qpn++ {
					modify(cgroup, qpn, ready, state|remote)
				}
			}
			expect := func(what string, want map[uint64]gen.PeersOwnerEntries, full uint64) {
				t.Helper()
				connected, refused := map[uint64]int64{}, uint64(0)
				var key gen.PeersPeerKey
				var peer gen.PeersPeer
				for entries := peers.Iterate(); entries.Next(&key, &peer); {
					connected[peer.Owner]++
				}
				for owner, e := range want {
					var got gen.PeersOwnerEntries
					if err := owners.Lookup(owner, &got); err != nil || got != e || connected[owner] != e.Made[peersOfOwner] {
						t.Errorf("%s: owner %d has %d peers, counted %+v, %v, want %+v", what, owner, connected[owner], got, err, e)
					}
					refused += e.Refused[peersOfOwner]
				}
				lost := p.losses(gen.PeersVarPeerLosses)
				if lost[gen.VerbsLossLOSS_PEERS_SHARE] != refused || lost[gen.VerbsLossLOSS_PEERS_FULL] != full {
					t.Errorf("%s: lost %v, want %d of shares and %d that did not fit", what, lost, refused, full)
				}
			}
			type entries = map[uint64]gen.PeersOwnerEntries
			of := func(made int64, refused uint64) gen.PeersOwnerEntries {
				return gen.PeersOwnerEntries{Made: [2]int64{made}, Refused: [2]uint64{refused}}
			}
			hostile, hostileID := testcgroup.New(t, hierarchy)
			other, otherID := testcgroup.New(t, hierarchy)
			connect(hostile, 0, share+3)
			connect(other, 100, 102)
			expect("connected", entries{hostileID: of(share, 3), otherID: of(2, 0)}, 0)
			// Existing queue pairs stay when they are connected to another end or change their state.
			connect(hostile, 0, 1)
			modify(hostile, 1, ready, state)
			expect("modified", entries{hostileID: of(share, 3), otherID: of(2, 0)}, 0)
			modify(hostile, 0, reset, state)
			p.put(fakeQP, "ib_qp.qp_num", 1)
			p.call("destroy_qp", 0, p.address+fakeQP)
			expect("ended", entries{hostileID: of(share-2, 3), otherID: of(2, 0)}, 0)
			connect(hostile, 50, 53)
			expect("connected again", entries{hostileID: of(share, 4), otherID: of(2, 0)}, 0)
			// Two more owners fill the rest.
			for i := range uint32(room - share - 2) {
				if err := peers.Update(gen.PeersPeerKey{Device: 4, Qpn: i}, gen.PeersPeer{Owner: uint64(1 + i%2)}, ebpf.UpdateNoExist); err != nil {
					t.Fatal(err)
				}
			}
			connect(other, 110, 111)
			expect("full", entries{hostileID: of(share, 4), otherID: of(2, 0)}, 1)
		})
	}
}
