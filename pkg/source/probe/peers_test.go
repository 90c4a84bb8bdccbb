// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

func peersOf(t *testing.T, s *sensor) []model.Peer {
	t.Helper()
	found, err := s.readPeers()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(found, func(a, b model.Peer) int { return cmp.Compare(a.QPN, b.QPN) })
	return found
}

// TestPeers reads the maps of this kernel with entries as the programs write them.
func TestPeers(t *testing.T) {
	root(t)
	s := unhooked(t)
	s.indexes[3] = "mlx5_0"
	if got := peersOf(t, s); got == nil || len(got) != 0 {
		t.Errorf("%#v, want none, and not nil", got)
	}
	m := s.peers.Coll.Maps[gen.PeersMapPeers]
	for key, p := range map[gen.PeersPeerKey]gen.PeersPeer{
		// RoCE version 2 over IPv4, a global route in InfiniBand, and a subnet.
		{Device: 3, Qpn: 17}: {
			Cgroup: 42, Gid: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 70, 15: 1}, Qpn: 18, Port: 1, Type: 2, State: 3, Routed: 1,
		},
		{Device: 3, Qpn: 20}: {
			Cgroup: 43, Gid: [16]byte{0: 0xfe, 1: 0x80, 15: 9}, Lid: 7, Qpn: 1<<24 - 1, Port: 2, Type: 9, State: 6, Routed: 1,
		},
		{Device: 9, Qpn: 21}: {Lid: 49153, Qpn: 5, Port: 1, Type: 77, State: 99},
	} {
		if err := m.Put(key, p); err != nil {
			t.Fatal(err)
		}
	}
	want := []model.Peer{
		{
			Cgroup: 42, Device: "mlx5_0", Port: 1, QPN: 17, Type: "RC", State: "RTS",
			RemoteGID: "::ffff:10.70.0.1", RemoteQPN: 18,
		},
		{
			Cgroup: 43, Device: "mlx5_0", Port: 2, QPN: 20, Type: "XRC_INI", State: "ERR",
			RemoteGID: "fe80::9", RemoteLID: 7, RemoteQPN: 1<<24 - 1,
		},
		{Port: 1, QPN: 21, Type: "77", State: "99", RemoteLID: 49153, RemoteQPN: 5},
	}
	if d := gocmp.Diff(want, peersOf(t, s)); d != "" {
		t.Error(d)
	}
}

// TestPeersBefore: a fake netlink lists queue pairs connected before the hooks were attached. One ends between the two
// dumps, a program sees another meanwhile, and some are not connected.
func TestPeersBefore(t *testing.T) {
	root(t)
	s := unhooked(t)
	qp := func(id, remote uint32, state uint8) model.Object {
		return model.Object{
			Device: "mlx5_0", Index: 3, Type: model.QP, ID: id, PID: 100,
			RemoteQPN: remote, Port: 1, QPType: 2, QPState: state,
		}
	}
	stays, goes, seen, initial, datagram := qp(11, 101, 3), qp(12, 102, 3), qp(13, 103, 3), qp(14, 104, 1), qp(15, 0, 3)
	dumps := [][]model.Object{{stays, goes, seen, initial, datagram}, {stays, seen, initial, datagram}}
	opts := Options{
		Objects: func(context.Context, ...model.ObjectType) ([]model.Object, error) {
			d := dumps[0]
			dumps = dumps[1:]
			return d, nil
		},
		CgroupOf: func(int) (model.CgroupID, error) { return 42, nil },
	}
	m := s.peers.Coll.Maps[gen.PeersMapPeers]
	connected := gen.PeersPeer{Cgroup: 7, Gid: [16]byte{15: 1}, Qpn: 99, Port: 2, Type: 3, State: 2, Routed: 1}
	if err := m.Put(gen.PeersPeerKey{Device: 3, Qpn: 13}, connected); err != nil {
		t.Fatal(err)
	}
	if err := s.adopt(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	want := []model.Peer{
		{Cgroup: 42, Device: "mlx5_0", Port: 1, QPN: 11, Type: "RC", State: "RTS", RemoteQPN: 101},
		{Cgroup: 7, Device: "mlx5_0", Port: 2, QPN: 13, Type: "UC", State: "RTR", RemoteGID: "::1", RemoteQPN: 99},
	}
	if d := gocmp.Diff(want, peersOf(t, s)); d != "" {
		t.Error(d)
	}
	var snap model.Snapshot
	s.self(&snap, &losses{})
	i := slices.IndexFunc(snap.Maps, func(m model.Map) bool { return m.Name == gen.PeersMapPeers })
	if i < 0 || snap.Maps[i].Entries != 1 { // a program did not write the other entry
		t.Errorf("maps: %+v", snap.Maps)
	}
}

// TestPeersFull: queue pairs that exceed the map are counted.
func TestPeersFull(t *testing.T) {
	root(t)
	s := unhooked(t)
	m := s.peers.Coll.Maps[gen.PeersMapPeers]
	const more = 3
	for i := range m.MaxEntries() + more {
		owner := uint64(1 + i%4)
		s.addPeer(model.Object{Index: 3, Type: model.QP, ID: i, RemoteQPN: 1, QPState: 3}, owner, owner)
	}
	var lost losses
	s.self(&model.Snapshot{}, &lost)
	if n := lost[gen.VerbsLossLOSS_PEERS_FULL]; n != more {
		t.Errorf("%d lost, want %d", n, more)
	}
	if got := peersOf(t, s); uint32(len(got)) != m.MaxEntries() {
		t.Errorf("%d peers of %d", len(got), m.MaxEntries())
	}
}

// TestPeersSized: more objects make room for more peers.
func TestPeersSized(t *testing.T) {
	for objects, want := range map[uint32]uint32{1: 1, minMaxObjects: 32768, 1 << 20: 1 << 19} {
		specs := (&Options{MaxEntries: minMaxEntries, MaxObjects: objects}).specs()
		if n := specs.peers.Entries[gen.PeersMapPeers]; n != want {
			t.Errorf("%d objects: room for %d peers, want %d", objects, n, want)
		}
	}
}

// TestPeersUnavailable: without a device the list is empty. A tier without connections returns the reason.
func TestPeersUnavailable(t *testing.T) {
	root(t)
	for _, x := range []struct {
		name, sysfs string
		want        error
	}{
		{"no device", t.TempDir(), nil},
		{"tracepoint", fakeSysfs(t, "1:3", "null0"), model.ErrUnsupported},
	} {
		t.Run(x.name, func(t *testing.T) {
			subsystem, _ := testCgroup(t)
			s, err := New(Options{Sysfs: x.sysfs, Tier: hook.Tracepoint, Subsystem: subsystem})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // TestTracepoints tests it
			got, err := s.Peers()
			if !errors.Is(err, x.want) || len(got) != 0 || (got == nil) != (x.want != nil) {
				t.Errorf("%#v, %v", got, err)
			}
			if err != nil && !strings.Contains(err.Error(), "hooks of objects") {
				t.Errorf("%v: no reason", err)
			}
		})
	}
}
