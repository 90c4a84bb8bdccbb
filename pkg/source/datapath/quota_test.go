// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"maps"
	"os"
	"testing"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/tests/child"
)

// checkContextCounts compares the numbers that limit the contexts of cgroups with the entries of the map.
func (k *kernel) checkContextCounts(t testing.TB, what string, want map[uint64]int) {
	t.Helper()
	counted, entries := map[uint64]int{}, map[uint64]int{}
	var cgroup uint64
	var n int32
	for it := k.object.Coll.Maps[gen.DatapathMapCgroupContexts].Iterate(); it.Next(&cgroup, &n); {
		if n != 0 {
			counted[cgroup] = int(n)
		}
	}
	if err := k.contexts(func(_ gen.DatapathContextKey, s *gen.DatapathContextStat) { entries[s.Cgroup]++ }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(counted, entries) || !maps.Equal(entries, want) {
		t.Errorf("%s: counted %v, entries %v, want %v", what, counted, entries, want)
	}
}

// TestContextQuota: the number that limits the contexts of a cgroup is that of its entries, whether a context is added
// twice, is refused, does not fit, or is removed.
func TestContextQuota(t *testing.T) {
	k := startKernelWith(t, Options{MaxContexts: 8})
	type of = map[uint64]int
	key := func(cgroup model.CgroupID, i uint64) gen.DatapathContextKey {
		return gen.DatapathContextKey{Context: i, Tgid: uint32(cgroup)}
	}
	insert := func(cgroup model.CgroupID, i uint64) bool {
		t.Helper()
		_, err := k.insert(event{key: key(cgroup, i), cgroup: cgroup, device: 3}, true)
		return err == nil
	}
	remove := func(cgroup model.CgroupID, i uint64) {
		t.Helper()
		if err := k.removeProcesses([]uint32{uint32(cgroup)}, key(cgroup, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(4) {
		for range 2 {
			if !insert(5, i+1) {
				t.Errorf("context %d of half of the map is refused", i+1)
			}
		}
	}
	k.checkContextCounts(t, "added twice", of{5: 4})
	for i := range uint64(10) {
		if insert(5, i+5) {
			t.Errorf("context %d of a cgroup has more than half of the map", i+5)
		}
	}
	k.checkContextCounts(t, "refused", of{5: 4})
	for i := range uint64(4) {
		insert(6, i+1)
	}
	for range 10 {
		if insert(7, 1) {
			t.Error("a context more than fits")
		}
	}
	k.checkContextCounts(t, "full", of{5: 4, 6: 4})
	if lost := k.losses(); lost["datapath_contexts_full"] != 20 || len(lost) != 1 {
		t.Errorf("lost: %v, want 20 contexts", lost)
	}
	// A cgroup that lives long.
	for i := range uint64(100) {
		remove(5, i+1)
		remove(5, i+1)
		if !insert(5, i+5) {
			t.Fatalf("no room after %d contexts of which 3 are left", i+4)
		}
	}
	k.checkContextCounts(t, "one after the other", of{5: 4, 6: 4})
	for i := range uint64(4) {
		remove(5, i+101)
	}
	k.checkContextCounts(t, "removed", of{6: 4})
}

// TestQuotaOfHooks: the hooks count only contexts that fit. It runs in a guest, because this needs InfiniBand.
func TestQuotaOfHooks(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband_verbs/uverbs0"); err != nil {
		t.Skip("no HCA, not even an emulated one")
	}
	k, _, err := newKernel(Options{Sysfs: "/sys", Procfs: "/proc", MaxContexts: 4})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer k.close()
	others := map[uint64]int{1 << 40: 2, 1 << 41: 1} // which do not exist
	for cgroup, n := range others {
		for i := range n {
			key := gen.DatapathContextKey{Context: cgroup + uint64(i), Tgid: 1 << 30}
			k.add(t, event{key: key, cgroup: model.CgroupID(cgroup)}, true)
		}
	}
	// open starts a process that opens a context and has a queue pair.
	open := func() (opened event, end func()) {
		t.Helper()
		server := child.Command(context.Background(), "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-p", "0")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		opened, err := k.next()
		if pid := uint32(server.Process.Pid); err != nil || opened.key.Tgid != pid || opened.qp != 0 {
			t.Fatalf("%+v, %v: want that %d opened a context", opened, err, pid)
		}
		return opened, func() { _ = server.Process.Kill(); _ = server.Wait() }
	}
	const full = "datapath_contexts_full"
	for range 5 {
		_, end := open()
		fits, err := k.next()
		if err != nil || fits.qp == 0 {
			t.Fatalf("%+v, %v: want a queue pair", fits, err)
		}
		with := maps.Clone(others)
		with[uint64(fits.cgroup)] = 1
		k.checkContextCounts(t, "the last place", with)
		lost := k.losses()[full]
		_, endOther := open()
		eventually(t, "a context more than fits is not lost", func() bool { return k.losses()[full] > lost })
		k.checkContextCounts(t, "full", with)
		end()
		endOther()
		if err := k.removeProcesses([]uint32{fits.key.Tgid}, fits.key); err != nil {
			t.Fatal(err)
		}
		k.checkContextCounts(t, "removed", others)
	}
	if lost := k.losses(); len(lost) != 1 {
		t.Error("lost:", lost)
	}
}

// TestRecount: a wrong number is corrected within one check, and cgroups without contexts are not kept.
func TestRecount(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, &defaultTrapCosts, path, sites)
	f := startFake(t, path)
	s.observeFake(f)
	counts := s.kernel.object.Coll.Maps[gen.DatapathMapCgroupContexts]
	right := func() bool {
		var cgroup uint64
		var n int32
		found := map[uint64]int32{}
		for it := counts.Iterate(); it.Next(&cgroup, &n); {
			found[cgroup] = n
		}
		return maps.Equal(found, map[uint64]int32{5: 1})
	}
	eventually(t, "no context", right)
	for cgroup, wrong := range map[uint64]int32{5: 1 << 30, 6: 100, 7: -3, 8: 0} {
		if err := counts.Put(cgroup, wrong); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "still wrong", right)
}

// TestLargeJob: a job with 192 processes and 10 HCAs has 1920 contexts in one cgroup, with durations of each class. They
// fit by default, and the maps take at most 4 MiB before there are any.
func TestLargeJob(t *testing.T) {
	k := startKernelWith(t, Options{MaxContexts: 0})
	var total uint64
	for name, m := range k.object.Coll.Maps {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		size, ok := info.Memlock()
		if !ok {
			t.Errorf("the kernel reports no size of %s", name)
		}
		total += size
	}
	t.Logf("%.1f MiB", float64(total)/(1<<20))
	if total > 5<<20 {
		t.Errorf("the maps take %d bytes", total)
	}
	const ranks, devices = 192, 10
	for rank := range uint32(ranks) {
		for device := range uint32(devices) {
			key := gen.DatapathContextKey{Context: uint64(device + 1), Tgid: rank + 1}
			key = k.add(t, event{key: key, cgroup: 5, device: device}, true)
			for class := range uint32(gen.DatapathCompletedCOMPLETED) {
				latency := gen.DatapathLatencyKey{Context: key, Completed: class}
				if err := k.object.Coll.Maps[gen.DatapathMapLatencies].Put(latency, gen.DatapathLatency{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	k.checkContextCounts(t, "the job", map[uint64]int{5: ranks * devices})
	if lost := k.losses(); len(lost) != 0 {
		t.Error("lost:", lost)
	}
}

// TestQueuesFull: a queue pair without room for its ring is lost once, however often it posts. What it posts is counted.
func TestQueuesFull(t *testing.T) {
	path, sites := buildFake(t)
	k := startKernelWith(t, Options{MaxContexts: 2})
	f := startFake(t, path)
	f.key = k.add(t, event{key: f.key}, true)
	queues := k.object.Coll.Maps[gen.DatapathMapQueues]
	for i := range queues.MaxEntries() {
		if err := queues.Put(gen.DatapathQueueKey{Context: 8, Tgid: 1, Qpn: i}, gen.DatapathQueue{}); err != nil {
			t.Fatal(err)
		}
	}
	k.probeAll(t, path, sites, budget.Post, budget.Poll)
	var last gen.DatapathContextStat
	for range 3 {
		f.do("chain", 10) // of queue pair 17
		f.do("ex", 0)     // of 17 and 99
		f.do("datagrams", 0)
		if d := k.counted(t, f.key, &last); d.Posted[opWrite] != 10+1 || d.Bytes[opWrite] != 10*128+321 || d.Posted[opRecv] != 1 {
			t.Errorf("%d writes of %d bytes, %d receives", d.Posted[opWrite], d.Bytes[opWrite], d.Posted[opRecv])
		}
		if lost := k.losses(); lost["datapath_queues_full"] != 3 || len(lost) != 1 {
			t.Errorf("lost: %v, want 3 queue pairs", lost)
		}
	}
	// Removed and created again, as with another process of the same number.
	if err := k.removeProcesses([]uint32{f.key.Tgid}); err != nil {
		t.Fatal(err)
	}
	f.do("chain", 10)
	if lost := k.losses(); lost["datapath_queues_full"] != 4 {
		t.Errorf("lost: %v, want 4 queue pairs", lost)
	}
}
