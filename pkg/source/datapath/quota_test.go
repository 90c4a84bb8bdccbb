// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"maps"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// entryCountsOf returns the numbers that limit the entries of owners in a map: what programs and user space made.
func (k *kernel) entryCountsOf(of uint32) map[uint64]int {
	counted := map[uint64]int{}
	var owner uint64
	var made gen.DatapathOwnerEntries
	for it := k.object.Coll.Maps[gen.DatapathMapOwnerEntries].Iterate(); it.Next(&owner, &made); {
		var user gen.DatapathUserEntries
		_ = k.object.Coll.Maps[gen.DatapathMapUserEntries].Lookup(owner, &user) // most have none
		counted[owner] = int(made.Made[of] + user.Made[of])
	}
	return counted
}

// checkContextCounts compares the numbers that limit the contexts of owners with the entries of the map.
func (k *kernel) checkContextCounts(t testing.TB, what string, want map[uint64]int) {
	t.Helper()
	counted, entries := k.entryCountsOf(contextsOfOwner), map[uint64]int{}
	maps.DeleteFunc(counted, func(_ uint64, n int) bool { return n == 0 })
	if err := k.maps.contexts(func(_ gen.DatapathContextKey, s *gen.DatapathContextStat) { entries[s.Owner]++ }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(counted, entries) || !maps.Equal(entries, want) {
		t.Errorf("%s: counted %v, entries %v, want %v", what, counted, entries, want)
	}
}

// TestContextQuota: the number that limits the contexts of a cgroup equals its entries, whether a context is added
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
	if lost := k.losses(); lost["datapath_contexts_full"] != 10 || lost["datapath_contexts_share"] != 10 || len(lost) != 2 {
		t.Errorf("lost: %v, want 10 contexts of the share and 10 that did not fit", lost)
	}
	// A cgroup that lives long.
	for i := range uint64(100) {
		remove(5, i+1)
		remove(5, i+1)
		if !insert(5, i+5) {
			t.Fatalf("no room after %d contexts, with 3 left", i+4)
		}
	}
	k.checkContextCounts(t, "one after the other", of{5: 4, 6: 4})
	for i := range uint64(4) {
		remove(5, i+101)
	}
	k.checkContextCounts(t, "removed", of{6: 4})
}

// TestShareOfWorkload: processes in as many cgroups as contexts fit, all of one job, have the share of the job. Another cgroup has
// room. The figures belong to the cgroup of each process. The objects of the kernel and the entries of workload_of are FAKES: with
// the layout of the fake objects, a program cannot search the cgroups above the cgroup of a process. TestQuotaOfHooks does.
func TestShareOfWorkload(t *testing.T) {
	const contexts, ranks, job = 6, 6, 42
	path, _ := buildFake(t)
	k := startKernelWith(t, Options{MaxContexts: contexts})
	o := traceLifecycle(t, k, path)
	start := func(number int) (cgroup uint64) {
		t.Helper()
		dir, cgroup := testcgroup.New(t, testcgroup.V2())
		f := startFake(t, path)
		f.enter(dir)
		if number < ranks {
			if err := k.object.Coll.Maps[gen.DatapathMapWorkloadOf].Put(cgroup, uint64(job)); err != nil {
				t.Fatal(err)
			}
		}
		o.use(f, number, 3)
		o.open(f, number)
		o.modify(f, number, qpInit)
		return cgroup
	}
	want := map[uint64]int{}
	for number := range ranks {
		if cgroup := start(number); number < contexts/2 {
			want[cgroup] = 1
		}
	}
	other := start(ranks)
	want[other] = 1
	k.checkContextCounts(t, "a job and another cgroup", map[uint64]int{job: contexts / 2, other: 1})
	found := map[uint64]int{}
	if err := k.maps.contexts(func(_ gen.DatapathContextKey, s *gen.DatapathContextStat) { found[s.Cgroup]++ }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(found, want) {
		t.Errorf("contexts by cgroup: %v, want %v", found, want)
	}
	var snap model.Snapshot
	if err := k.maps.fill(&snap); err != nil {
		t.Fatal(err)
	}
	owners := []model.Series[model.LossKey, model.Count]{
		{Cgroup: job, Key: model.LossKey{Reason: "datapath_contexts_share"}, Value: ranks - contexts/2},
	}
	if d := cmp.Diff(owners, snap.OwnerLosses); d != "" {
		t.Error(d)
	}
	if lost := k.losses(); lost["datapath_contexts_share"] != ranks-contexts/2 || len(lost) != 1 {
		t.Errorf("lost: %v", lost)
	}
}

// TestQuotaOfHooks: the hooks count only contexts that fit. It runs in a guest, because this needs InfiniBand.
func TestQuotaOfHooks(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband_verbs/uverbs0"); err != nil {
		t.Skip("no HCA, not even an emulated one")
	}
	spec, err := gen.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	workloads, err := hook.NewWorkloads(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer workloads.Close() //nolint:errcheck // memory of the kernel
	job, id := testcgroup.New(t, testcgroup.V2())
	rank, _ := testcgroup.New(t, job)
	in, err := os.Open(rank)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // only read
	if err := workloads.Mark(model.CgroupID(id), true); err != nil {
		t.Fatal(err)
	}
	k, _, err := newKernel(Options{Sysfs: "/sys", Procfs: "/proc", MaxContexts: 4, Workloads: workloads})
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
	// open starts a process of the job that opens a context and has a queue pair.
	open := func() (opened event, end func()) {
		t.Helper()
		server := child.Command(context.Background(), "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-p", "0")
		server.SysProcAttr.UseCgroupFD, server.SysProcAttr.CgroupFD = true, int(in.Fd())
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		opened, err := k.events.next()
		if pid := uint32(server.Process.Pid); err != nil || opened.key.Tgid != pid || opened.qp != 0 {
			t.Fatalf("%+v, %v: want that %d opened a context", opened, err, pid)
		}
		return opened, func() { _ = server.Process.Kill(); _ = server.Wait() }
	}
	const full = "datapath_contexts_full"
	for range 5 {
		_, end := open()
		fits, err := k.events.next()
		if err != nil || fits.qp == 0 {
			t.Fatalf("%+v, %v: want a queue pair", fits, err)
		}
		with := maps.Clone(others)
		with[id] = 1
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

// TestRecount: a wrong number is corrected within one check, and owners without contexts are not kept.
func TestRecount(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, path, sites)
	f := startFake(t, path)
	s.observeFake(f)
	right := func() bool {
		s.meter.mu.Lock()
		defer s.meter.mu.Unlock()
		return maps.Equal(s.prober.kernel.entryCountsOf(contextsOfOwner), map[uint64]int{5: 1})
	}
	eventually(t, "no context", right)
	counts := s.prober.kernel.object.Coll.Maps[gen.DatapathMapOwnerEntries]
	for owner, wrong := range map[uint64]int64{5: 1 << 30, 6: 100, 7: -3, 8: 0} {
		if err := counts.Put(owner, gen.DatapathOwnerEntries{Made: [2]int64{contextsOfOwner: wrong}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "still wrong", right)
}

// TestLargeJob: a job with 192 processes and 10 HCAs has 1920 contexts in one cgroup, with durations of each class. They
// fit by default, and the maps take at most 5 MiB before there are any.
func TestLargeJob(t *testing.T) {
	k := startKernelWith(t, Options{MaxContexts: 0})
	var total uint64
	for name, m := range k.object.Coll.Maps {
		if name == gen.DatapathMapMarkedCgroups || name == gen.DatapathMapWorkloadOf {
			continue // maps of all sources: TestMapMemory
		}
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

// ringsOf returns the number of rings of each owner.
func (k *kernel) ringsOf(t testing.TB) map[uint64]int {
	t.Helper()
	rings := map[uint64]int{}
	var key gen.DatapathQueueKey
	var q gen.DatapathQueue
	entries := k.object.Coll.Maps[gen.DatapathMapQueues].Iterate()
	for entries.Next(&key, &q) {
		rings[q.Owner]++
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return rings
}

// TestQueuesShare: an owner with more queue pairs than its share has as many rings as its share, whether it modifies or posts, and
// others have room. Queue pairs without a ring are counted by owner, once each. The end of a queue pair or process makes room. The
// objects of the kernel are FAKES.
func TestQueuesShare(t *testing.T) {
	const queues, share = 8, 4
	path, sites := buildFake(t)
	k := startKernelWith(t, Options{MaxContexts: queues})
	o := traceLifecycle(t, k, path)
	k.probeAll(t, path, sites, posts)
	start := func(context int) (f *fake, owner uint64) {
		t.Helper()
		dir, owner := testcgroup.New(t, testcgroup.V2())
		f = startFake(t, path)
		f.enter(dir)
		o.use(f, context, 3)
		o.open(f, context)
		return f, owner
	}
	initialize := func(f *fake, context int, from, to uint64) {
		t.Helper()
		for qpn := from; qpn < to; qpn++ {
			o.number(context, qpn)
			o.modify(f, context, qpInit)
		}
	}
	expect := func(what string, rings map[uint64]int, lost map[string]uint64, owners map[uint64]uint64) {
		t.Helper()
		if got := k.ringsOf(t); !maps.Equal(got, rings) {
			t.Errorf("%s: rings %v, want %v", what, got, rings)
		}
		counted := k.entryCountsOf(queuesOfOwner)
		maps.DeleteFunc(counted, func(_ uint64, n int) bool { return n == 0 })
		if !maps.Equal(counted, rings) {
			t.Errorf("%s: counted %v, want %v", what, counted, rings)
		}
		if got := k.losses(); !maps.Equal(got, lost) {
			t.Errorf("%s: lost %v, want %v", what, got, lost)
		}
		var snap model.Snapshot
		if err := k.maps.fill(&snap); err != nil {
			t.Fatal(err)
		}
		of := map[uint64]uint64{}
		for _, l := range snap.OwnerLosses {
			if l.Key.Reason != "datapath_queues_share" {
				t.Errorf("%s: lost %+v", what, l)
			}
			of[uint64(l.Cgroup)] += uint64(l.Value)
		}
		if !maps.Equal(of, owners) {
			t.Errorf("%s: lost of owners %v, want %v", what, of, owners)
		}
	}
	type (
		rings  = map[uint64]int
		lost   = map[string]uint64
		owners = map[uint64]uint64
	)
	f, hostile := start(0)
	for range 2 { // a second modification is not lost again
		initialize(f, 0, 100, 110)
	}
	expect("modified", rings{hostile: share}, lost{"datapath_queues_share": 6}, owners{hostile: 6})
	f.do("chain", 2) // posts on queue pair 17
	expect("posted", rings{hostile: share}, lost{"datapath_queues_share": 7}, owners{hostile: 7})

	second, other := start(1)
	initialize(second, 1, 100, 100+share)
	expect("another owner", rings{hostile: share, other: share}, lost{"datapath_queues_share": 7}, owners{hostile: 7})
	third, _ := start(2)
	initialize(third, 2, 100, 101)
	full := lost{"datapath_queues_share": 7, "datapath_queues_full": 1}
	expect("full", rings{hostile: share, other: share}, full, owners{hostile: 7})

	for qpn := range uint64(2) {
		o.number(0, 100+qpn)
		o.destroy(f, 0)
	}
	expect("destroyed", rings{hostile: share - 2, other: share}, full, owners{hostile: 7})
	initialize(f, 0, 104, 105)
	expect("one more", rings{hostile: share - 1, other: share}, full, owners{hostile: 7})

	entries := k.object.Coll.Maps[gen.DatapathMapOwnerEntries]
	var made gen.DatapathOwnerEntries
	if err := entries.Lookup(hostile, &made); err != nil {
		t.Fatal(err)
	}
	made.Made[queuesOfOwner] += 5
	if err := errors.Join(entries.Put(hostile, made), entries.Delete(other)); err != nil {
		t.Fatal(err)
	}
	correct := func() {
		t.Helper()
		if err := k.correctRings(); err != nil {
			t.Fatal(err)
		}
	}
	correct()
	expect("counted wrongly", rings{hostile: share - 1, other: share}, full, owners{hostile: 7})
	if err := k.removeContext(second.key); err != nil { // as if the driver had closed it
		t.Fatal(err)
	}
	correct()
	expect("a context is gone", rings{hostile: share - 1}, full, owners{hostile: 7})

	if err := k.removeProcesses([]uint32{f.key.Tgid}); err != nil {
		t.Fatal(err)
	}
	expect("ended", rings{}, full, owners{hostile: 7})
}

// TestQueuesFull: a queue pair without room for its ring is lost once, however often it posts, if there are not too many. What it posts is
// counted.
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
	k.probeAll(t, path, sites, posts, polls)
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
	// Others have taken the room of what is counted once: the queue pair of datagrams is counted at each post, and not left out.
	ringless := k.object.Coll.Maps[gen.DatapathMapRingless]
	for i := range ringless.MaxEntries() - 1 {
		if err := ringless.Put(gen.DatapathQueueKey{Context: 8, Tgid: 1, Qpn: i}, uint8(1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		f.do("chain", 1)
		f.do("datagrams", 0)
	}
	if lost := k.losses(); lost["datapath_queues_full"] < 4+2 {
		t.Errorf("lost: %v, want a queue pair that is counted twice or more", lost)
	}
}

// TestLatenciesFit: as many contexts as there is room for, of two owners, have durations of each class.
func TestLatenciesFit(t *testing.T) {
	const contexts = 4
	k := startKernelWith(t, Options{MaxContexts: contexts})
	for i := range uint64(contexts) {
		cgroup := 5 + i%2
		key := gen.DatapathContextKey{Context: i + 1, Tgid: uint32(cgroup)}
		key = k.add(t, event{key: key, cgroup: model.CgroupID(cgroup), device: 3}, true)
		for class := range uint32(gen.DatapathCompletedCOMPLETED) {
			latency := gen.DatapathLatencyKey{Context: key, Completed: class}
			if err := k.object.Coll.Maps[gen.DatapathMapLatencies].Put(latency, gen.DatapathLatency{}); err != nil {
				t.Fatalf("context %d, class %d: %v", i, class, err)
			}
		}
	}
}
