// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestOwnersWithoutRoom: user space's entries of an owner count for its share while the map has no room for the owner.
// When there is room, the programs know them.
func TestOwnersWithoutRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const room, share = 2, 5
	coll, err := ebpf.NewCollection(&ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{
		ownerEntriesMap: {Type: ebpf.Hash, KeySize: 8, ValueSize: 32, MaxEntries: room},
		userEntriesMap:  {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: room},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	o := NewOwners(coll)
	known := func() (owners []uint64) {
		var e userEntries
		for owner := range uint64(room + 1) {
			if coll.Maps[userEntriesMap].Lookup(owner, &e) == nil {
				if owners = append(owners, owner); e.Made != [2]int64{0, share} {
					t.Errorf("owner %d has %+v", owner, e)
				}
			}
		}
		return owners
	}
	// After Has, the programs count what they remove.
	if o.Has(0, 1, share) || coll.Maps[ownerEntriesMap].Lookup(uint64(0), &ownerEntries{}) != nil {
		t.Error("an owner has its share, or no numbers")
	}
	for owner := range uint64(room + 1) {
		o.Add(owner, 1, share)
	}
	for range 2 {
		if err := o.Settle(nil); err != nil {
			t.Fatal(err)
		}
		for owner := range uint64(room + 1) {
			if !o.Has(owner, 1, share) {
				t.Errorf("owner %d may have more than its share", owner)
			}
		}
	}
	first := known()
	if len(first) != room {
		t.Fatalf("the programs know %v, want %d owners", first, room)
	}
	if err := o.Settle(map[model.CgroupID]bool{model.CgroupID(first[0]): true}); err != nil {
		t.Fatal(err)
	}
	if err := o.Settle(nil); err != nil {
		t.Fatal(err)
	}
	if now := known(); len(now) != room || now[0] == first[0] || !o.Has(first[0], 1, 1) {
		t.Errorf("the programs know %v after %d has ended, they knew %v", now, first[0], first)
	}
	// An owner without entries takes no room.
	for _, owner := range known() {
		o.Add(owner, 1, -share)
	}
	o.Add(99, 0, -1)
	if err := o.Settle(nil); err != nil || len(o.made) != room || len(o.changed) != 0 {
		t.Errorf("%v, made %v, changed %v", err, o.made, o.changed)
	}
}
