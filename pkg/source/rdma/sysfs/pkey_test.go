// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// readUntil reads until ok accepts the port: the table is read in the background.
func (d *treeDevice) readUntil(ok func(*model.Port) bool) *model.Port {
	d.t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if p := &d.read().Ports[0]; ok(p) {
			return p
		} else if time.Since(begin) > time.Minute {
			d.t.Fatalf("P_Keys %v, SM %s", p.PKeys, p.SMLID)
		}
	}
}

// TestPKeys: the table is read again when the port changes and after an hour. An entry behind 32 empty entries is not
// read.
func TestPKeys(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	tr.Put(port+"/link_layer", "InfiniBand\n")
	tr.PKeys(port, 128, map[int]uint16{0: 0xffff, 2: 0x8012, 34: 0x0013, 67: 0xffff})
	d := newTreeDevice(t, tr)
	read := func(p *model.Port) bool { return p.PKeys != nil }
	p := d.readUntil(read)
	want := []model.PKey{
		{Index: 0, Partition: model.DefaultPartition, Full: true}, {Index: 2, Partition: 0x12, Full: true}, {Index: 34, Partition: 0x13},
	}
	if diff := cmp.Diff(want, p.PKeys); diff != "" || p.LacksDefaultPartition() {
		t.Error(diff)
	}
	fewer := func(n int) func(*model.Port) bool { return func(p *model.Port) bool { return len(p.PKeys) == n } }
	tr.PKeys(port, 1, nil)
	for range 20 {
		d.readUntil(fewer(3)) // the kernel has reported no change
	}
	d.now = d.now.Add(pkeysAge)
	if p = d.readUntil(fewer(2)); !p.LacksDefaultPartition() {
		t.Error("the default partition is not missing")
	}
	tr.PKeys(port, 1, map[int]uint16{0: 0x7fff})
	tr.Put(port+"/state", "1: DOWN\n")
	if p = d.readUntil(fewer(3)); p.LacksDefaultPartition() || p.PKeys[0].Full {
		t.Errorf("%+v", p.PKeys)
	}
	tr.Put(port+"/pkeys/1", "odd\n")
	tr.Put(port+"/sm_lid", "0x9\n")
	d.now = d.now.Add(SMAge)
	d.readUntil(func(p *model.Port) bool { return p.PKeys == nil && p.SMLID == "0x9" })
}

// TestManyPKeys: of a table of P_Keys, maxPKeys entries are read.
func TestManyPKeys(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	full := map[int]uint16{}
	for i := range maxPKeys + 10 {
		full[i] = 0xffff
	}
	tr.Put(port+"/link_layer", "InfiniBand\n")
	tr.PKeys(port, len(full), full)
	if p := newTreeDevice(t, tr).readUntil(func(p *model.Port) bool { return p.PKeys != nil }); len(p.PKeys) != maxPKeys {
		t.Errorf("%d P_Keys, want %d", len(p.PKeys), maxPKeys)
	}
}

// TestPKeysHang: a hanging entry does not delay the counters of its device.
func TestPKeysHang(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	tr.Put(port+"/link_layer", "InfiniBand\n")
	tr.PKeys(port, 2, map[int]uint16{0: 0xffff})
	unblock := tr.Fifo(port + "/pkeys/1")
	d := newTreeDevice(t, tr)
	for range 3 {
		p := d.read().Ports[0]
		if p.Counters == nil || d.failed.Bad > 0 {
			t.Fatalf("%+v, %+v", p, d.failed)
		}
		if p.PKeys != nil {
			t.Errorf("%v", p.PKeys)
		}
	}
	for table := &d.Ports[0].pkeys; !table.pending.Returned(); {
		unblock() // the reading may reach the entry only now
		time.Sleep(time.Millisecond)
	}
}

// TestSMChanges: changes from one subnet manager to another count. Losing a subnet manager and getting the same one
// back does not count.
func TestSMChanges(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	tr.Put(port+"/link_layer", "InfiniBand\n")
	d := newTreeDevice(t, tr)
	for i, c := range []struct {
		lid  string
		want uint64
	}{{"0x0", 0}, {"0x1", 0}, {"0x1", 0}, {"0x0", 0}, {"0x1", 0}, {"0x5", 1}, {"0x0", 1}, {"0x1", 2}, {"", 2}, {"0x1", 2}} {
		tr.Put(port+"/sm_lid", c.lid+"\n")
		p := d.read().Ports[0]
		if p.SMLID != c.lid || p.SMChanges != c.want {
			t.Errorf("reading %d: SM %q, changes %v, want %v", i, p.SMLID, p.SMChanges, c)
		}
		d.now = d.now.Add(SMAge)
	}
}
