// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/hca"
)

// readUntil reads until the port is as wanted: the table is read in the background.
func (s *Source) readUntil(t *testing.T, ok func(*model.Port) bool) *model.Port {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		snap, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := &snap.HCAs[0].Ports[0]; ok(p) {
			return p
		} else if time.Since(begin) > time.Minute {
			t.Fatalf("P_Keys %v, SM %s", p.PKeys, p.SMLID)
		}
	}
}

// TestPKeys: the table is read again when the port changes and after an hour. An entry behind 32 empty ones is not read.
func TestPKeys(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	tr.Put(port+"/link_layer", "InfiniBand\n")
	tr.PKeys(port, 128, map[int]uint16{0: 0xffff, 2: 0x8012, 34: 0x0013, 67: 0xffff})
	now := time.Now()
	s, err := New(Options{Sysfs: tr.Root, Deadline: time.Minute, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func(p *model.Port) bool { return p.PKeys != nil }
	p := s.readUntil(t, read)
	want := []model.PKey{
		{Index: 0, Partition: model.DefaultPartition, Full: true}, {Index: 2, Partition: 0x12, Full: true}, {Index: 34, Partition: 0x13},
	}
	if d := cmp.Diff(want, p.PKeys); d != "" || p.LacksDefaultPartition() {
		t.Error(d)
	}
	fewer := func(n int) func(*model.Port) bool { return func(p *model.Port) bool { return len(p.PKeys) == n } }
	tr.PKeys(port, 1, nil)
	for range 20 {
		s.readUntil(t, fewer(3)) // nothing has changed that the kernel reports
	}
	now = now.Add(pkeysAge)
	if p = s.readUntil(t, fewer(2)); !p.LacksDefaultPartition() {
		t.Error("the default partition is not missing")
	}
	tr.PKeys(port, 1, map[int]uint16{0: 0x7fff})
	tr.Put(port+"/state", "1: DOWN\n")
	if p = s.readUntil(t, fewer(3)); p.LacksDefaultPartition() || p.PKeys[0].Full {
		t.Errorf("%+v", p.PKeys)
	}
	tr.Put(port+"/pkeys/1", "odd\n")
	tr.Put(port+"/sm_lid", "0x9\n")
	now = now.Add(smAge)
	s.readUntil(t, func(p *model.Port) bool { return p.PKeys == nil && p.SMLID == "0x9" })
}

// TestPKeysHang: an entry that hangs delays no counter of its device.
func TestPKeysHang(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	tr.Put(port+"/link_layer", "InfiniBand\n")
	tr.PKeys(port, 2, map[int]uint16{0: 0xffff})
	unblock := tr.Fifo(port + "/pkeys/1")
	s, err := New(Options{Sysfs: tr.Root, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		snap, err := s.Read(t.Context())
		if err != nil || snap.DeviceStates[0].State != model.StateOK || snap.HCAs[0].Ports[0].Counters == nil {
			t.Fatalf("%v, %+v", err, snap.DeviceStates)
		}
		if keys := snap.HCAs[0].Ports[0].PKeys; keys != nil {
			t.Errorf("%v", keys)
		}
	}
	for table := &s.devices[0].files.ports[0].pkeys; !table.pending.Returned(); {
		unblock() // the reading may reach the entry only now
		time.Sleep(time.Millisecond)
	}
}

// TestSMChanges: changes from one subnet manager to another count, its loss and return do not.
func TestSMChanges(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	tr.Put(port+"/link_layer", "InfiniBand\n")
	now := time.Now()
	s, err := New(Options{Sysfs: tr.Root, Deadline: time.Minute, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, c := range []struct {
		lid  string
		want uint64
	}{{"0x0", 0}, {"0x1", 0}, {"0x1", 0}, {"0x0", 0}, {"0x1", 0}, {"0x5", 1}, {"0x0", 1}, {"0x1", 2}, {"", 2}, {"0x1", 2}} {
		tr.Put(port+"/sm_lid", c.lid+"\n")
		snap, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := snap.HCAs[0].Ports[0]
		if p.SMLID != c.lid || p.SMChanges != c.want {
			t.Errorf("reading %d: SM %q, changes %v, want %v", i, p.SMLID, p.SMChanges, c)
		}
		now = now.Add(smAge)
	}
}
