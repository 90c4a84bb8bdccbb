// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

func inCgroup(t *testing.T, subsystem, cgroup string, f func()) {
	t.Helper()
	enterFrom(t, subsystem, filepath.Dir(cgroup), cgroup, f)
}

func enterFrom(t *testing.T, subsystem, hierarchy, cgroup string, f func()) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own := ""
	for line := range strings.Lines(string(b)) {
		if part := strings.SplitN(strings.TrimSpace(line), ":", 3); part[1] == subsystem {
			own = filepath.Join(hierarchy, part[2])
		}
	}
	enter := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	enter(cgroup)
	defer enter(own)
	f()
}

func idOf(t *testing.T, cgroup string) model.CgroupID {
	t.Helper()
	info, err := os.Stat(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	return model.CgroupID(inode(info))
}

// callAll calls all write commands on /dev/null, ioctls with the same verbs that fail, and writes that fail with
// another error.
func callAll(t *testing.T) {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null) //nolint:errcheck // nothing is written
	readOnly, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(readOnly) //nolint:errcheck // nothing is written
	for command := range byte(64) {
		write := []byte{command, 0, 0, 0, 0, 0, 0, 0}
		if _, err := unix.Write(null, write); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(readOnly, write); err != unix.EBADF {
			t.Fatal(err)
		}
		// ib_uverbs_ioctl_hdr: DEVICE, INVOKE_WRITE; one attribute: WRITE_CMD, the command.
		arg := [40]byte{0: 40, 6: 1, 24: 2, 26: 8, 32: command}
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(null), 0xc0181b01, uintptr(unsafe.Pointer(&arg))); err != unix.ENOTTY {
			t.Fatal(err)
		}
	}
}

// lossesOf returns the losses in total, and the losses of an owner.
func lossesOf(snap *model.Snapshot, owner model.CgroupID) (all, of map[string]uint64) {
	all, of = map[string]uint64{}, map[string]uint64{}
	for _, l := range snap.Losses {
		if l.Count > 0 {
			all[l.Reason] += l.Count
		}
	}
	for _, l := range snap.OwnerLosses {
		if l.Cgroup == owner {
			of[l.Key.Reason] += uint64(l.Value)
		}
	}
	return all, of
}

// TestVerbsShare: a cgroup that calls all verbs gets only its share of the maps of verbs and errors. Its losses are
// counted under its name, and the room is free after it has ended.
func TestVerbsShare(t *testing.T) {
	root(t)
	subsystem, hostile := testCgroup(t)
	_, other := testCgroup(t)
	const entries, share = 24, 24 / 3 // fewer than verbs
	s, err := New(Options{Sysfs: fakeSysfs(t, "1:3", "null0"), Tier: hook.Tracepoint, Subsystem: subsystem, MaxEntries: entries})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // TestTracepoints tests it
	read := func() *model.Snapshot {
		snap, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return &snap
	}
	rows := func(snap *model.Snapshot, id model.CgroupID) (verbs, failed int) {
		for _, v := range snap.Verbs {
			if v.Cgroup == id {
				verbs++
			}
		}
		for _, v := range snap.VerbErrors {
			if v.Cgroup == id {
				failed++
			}
		}
		return verbs, failed
	}
	for round := range 3 {
		inCgroup(t, subsystem, hostile, func() { callAll(t) })
		if round == 0 {
			inCgroup(t, subsystem, other, func() { callAll(t) })
		}
		snap := read()
		all, of := lossesOf(snap, idOf(t, hostile))
		for _, cgroup := range []string{hostile, other} {
			verbs, failed := rows(snap, idOf(t, cgroup))
			if verbs != share || failed != share {
				t.Errorf("round %d: %s has %d entries of verbs and %d of errors, want %d", round, cgroup, verbs, failed, share)
			}
		}
		for _, entries := range []string{"verbs_map", "errors_map"} {
			if all[entries+"_share"] == 0 || of[entries+"_share"] == 0 || all[entries+"_full"] > 0 {
				t.Errorf("round %d: %s: lost %v, of %s %v", round, entries, all, hostile, of)
			}
		}
		if round == 1 {
			s.Forget([]model.CgroupID{idOf(t, hostile)})
			snap := read()
			if verbs, failed := rows(snap, idOf(t, hostile)); verbs+failed > 0 {
				t.Errorf("%d, %d entries after Forget", verbs, failed)
			}
			if _, of := lossesOf(snap, idOf(t, hostile)); len(of) > 0 {
				t.Errorf("lost after Forget: %v", of)
			}
		}
	}
}

// TestErrorsShare: an owner has used up its share of the errors, but not of the verbs.
func TestErrorsShare(t *testing.T) {
	root(t)
	s := unhooked(t)
	var snap model.Snapshot
	for owner, n := range map[uint64]int64{42: 3, 43: 2} {
		for i := range n {
			key := gen.VerbsErrorKey{Cgroup: owner, Rdev: 7, Err: uint16(i)}
			if err := s.verbs.Coll.Maps[gen.VerbsMapVerbErrors].Put(key, gen.VerbsErrorStat{Owner: owner, Count: 5}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.verbs.Coll.Maps[gen.VerbsMapOwnerEntries].Put(owner, gen.VerbsOwnerEntries{
			Made: [2]int64{0, n}, Refused: [2]uint64{1: uint64(n)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	used := func(owner uint64) int64 {
		var made gen.VerbsOwnerEntries
		var user gen.VerbsUserEntries
		_ = s.verbs.Coll.Maps[gen.VerbsMapOwnerEntries].Lookup(owner, &made)
		_ = s.verbs.Coll.Maps[gen.VerbsMapUserEntries].Lookup(owner, &user)
		return made.Made[gen.VerbsVerbMapERRORS_OF_OWNER] + user.Made[gen.VerbsVerbMapERRORS_OF_OWNER]
	}
	// A cgroup of owner 43 ends: two entries less.
	if err := s.read(&snap, nil, map[model.CgroupID]bool{43: true}); err != nil {
		t.Fatal(err)
	}
	if a, b := used(42), used(43); a != 3 || b != 0 {
		t.Errorf("owners have %d and %d entries, want 3 and 0", a, b)
	}
	lost := [gen.VerbsLossLOSSES]uint64{gen.VerbsLossLOSS_ERRORS_SHARE: 5}
	if err := s.verbs.Coll.Variables[gen.VerbsVarVerbLosses].Set(lost); err != nil {
		t.Fatal(err)
	}
	s.self(&snap, &losses{})
	if _, of := lossesOf(&snap, 42); len(of) != 1 || of["errors_map_share"] != 3 {
		t.Errorf("lost %v, want 3 errors", of)
	}
	if _, of := lossesOf(&snap, 43); len(of) != 0 {
		t.Errorf("lost of an ended owner: %v", of)
	}
	// The driver of the device has another number: the entries are moved away, and the owner stays.
	gone := func(uint64, uint32) bool { return true }
	if err := s.readVerbs(&snap, nil, gone, gone); err != nil {
		t.Fatal(err)
	}
	if err := s.settleOwners(nil); err != nil {
		t.Fatal(err)
	}
	if n := used(42); n != 0 {
		t.Errorf("owner has %d entries, want none", n)
	}
}

// TestAdoptedShare: one owner has more objects and peers than fit. Objects of other owners are adopted in any order of
// the listing. The netlink is a FAKE.
func TestAdoptedShare(t *testing.T) {
	root(t)
	s := unhooked(t)
	const many, few = 200, 3
	var found []model.Object
	add := func(pid, n int) {
		for range n {
			id := uint32(len(found))
			found = append(found, model.Object{Device: "mlx5_0", Index: 3, Type: model.QP, ID: id, PID: pid, RemoteQPN: 1 + id, QPState: 3})
		}
	}
	add(42, many)
	add(43, few)
	opts := Options{
		Logger:   zap.NewNop(),
		Objects:  func(context.Context, ...model.ObjectType) ([]model.Object, error) { return found, nil },
		CgroupOf: func(pid int) (model.CgroupID, error) { return model.CgroupID(pid), nil },
	}
	for range 2 { // a second listing finds the same
		if err := s.adopt(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
		var snap model.Snapshot
		var lost losses
		if err := s.read(&snap, nil, nil); err != nil {
			t.Fatal(err)
		}
		s.self(&snap, &lost)
		held := map[model.CgroupID]uint64{}
		for _, o := range snap.Objects {
			held[o.Cgroup] += o.Current
		}
		if held[42] != 32 || held[43] != few {
			t.Errorf("adopted %v, want 32 of 42 and %d of 43", held, few)
		}
		peers, err := s.readPeers()
		if err != nil {
			t.Fatal(err)
		}
		connected := map[model.CgroupID]int{}
		for _, p := range peers {
			connected[p.Cgroup]++
		}
		if connected[42] != 16 || connected[43] != few {
			t.Errorf("peers %v, want 16 of 42 and %d of 43", connected, few)
		}
		if _, of := lossesOf(&snap, 42); of["objects_map_share"] != many-32 || of["peers_map_share"] != 32-16 {
			t.Errorf("lost %v", of)
		}
		if _, of := lossesOf(&snap, 43); len(of) > 0 {
			t.Errorf("lost %v of the other", of)
		}
		if lost[gen.VerbsLossLOSS_OBJECTS_SHARE] != many-32 || lost[gen.VerbsLossLOSS_PEERS_SHARE] != 32-16 {
			t.Errorf("lost %v", lost)
		}
	}
	// The sum of a counter does not fall after the owner has ended.
	ended := map[model.CgroupID]bool{42: true}
	var snap model.Snapshot
	var lost losses
	if err := s.read(&snap, nil, ended); err != nil {
		t.Fatal(err)
	}
	s.self(&snap, &lost)
	if _, of := lossesOf(&snap, 42); len(of) > 0 || lost[gen.VerbsLossLOSS_OBJECTS_SHARE] != many-32 {
		t.Errorf("after the end of the owner: lost %v, of it %v", lost, of)
	}
}

// TestAdoptedFull: objects from before the start that exceed the map, of four owners, are counted.
func TestAdoptedFull(t *testing.T) {
	root(t)
	s := unhooked(t)
	const more = 3
	var found []model.Object
	for id := range s.objects.Coll.Maps[gen.ObjectsMapAdopted].MaxEntries() + more {
		found = append(found, model.Object{Device: "mlx5_0", Index: 3, Type: model.MR, ID: id, PID: int(1 + id%4)})
	}
	opts := Options{
		Logger:   zap.NewNop(),
		Objects:  func(context.Context, ...model.ObjectType) ([]model.Object, error) { return found, nil },
		CgroupOf: func(pid int) (model.CgroupID, error) { return model.CgroupID(pid), nil },
	}
	if err := s.adopt(t.Context(), opts); err == nil {
		t.Error("no error")
	}
	var snap model.Snapshot
	var lost losses
	s.self(&snap, &lost)
	lost.fill(&snap)
	if all, _ := lossesOf(&snap, 1); all["objects_map_full"] != more || len(all) != 1 {
		t.Errorf("lost %v, want %d objects that did not fit", all, more)
	}
}

// TestPeersShare: refused queue pairs are counted by owner.
func TestPeersShare(t *testing.T) {
	root(t)
	s := unhooked(t)
	var lost [gen.VerbsLossLOSSES]uint64
	lost[gen.VerbsLossLOSS_PEERS_SHARE] = 2
	err := s.peers.Coll.Variables[gen.PeersVarPeerLosses].Set(lost)
	if err == nil {
		err = s.peers.Coll.Maps[gen.PeersMapOwnerEntries].Put(uint64(42), gen.PeersOwnerEntries{Refused: [2]uint64{2}})
	}
	if err != nil {
		t.Fatal(err)
	}
	var snap model.Snapshot
	s.self(&snap, &losses{})
	if _, of := lossesOf(&snap, 42); len(of) != 1 || of["peers_map_share"] != 2 {
		t.Errorf("lost %v, want 2 peers", of)
	}
}
