// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(callerVar); dir != "" {
		if err := call(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// callerVar makes the test binary the observed program, in that cgroup.
const callerVar = "ACCELSCOPE_TEST_CALLER"

// call makes 41 writes that begin like REG_MR, and 3 ioctls like CREATE_QP.
func call(cgroup string) error {
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	for range 41 {
		if _, err := unix.Write(null, []byte{9, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			return err
		}
	}
	// ib_uverbs_ioctl_hdr: DEVICE, INVOKE_WRITE; one attribute: WRITE_CMD, 24.
	arg := [40]byte{0: 40, 6: 1, 24: 2, 26: 8, 32: 24}
	for range 3 {
		if _, _, err := unix.Syscall(unix.SYS_IOCTL, uintptr(null), 0xc0181b01, uintptr(unsafe.Pointer(&arg))); err != unix.ENOTTY {
			return fmt.Errorf("ioctl on /dev/null: %w", err)
		}
	}
	return nil
}

// root skips tests that need BPF. As root, BPF must work on any supported kernel.
func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// TestLoad loads every program that this kernel can have, with the tier selected explicitly, and logs the others.
// Programs on functions of ib_core and ib_uverbs load in the guest.
func TestLoad(t *testing.T) {
	root(t)
	loaded := 0
	load := func(o *hook.Object) ([]model.Hook, error) {
		for _, p := range o.Compiled.Programs {
			if p.Type == ebpf.Tracing {
				continue // without InfiniBand the function does not exist
			}
			coll, err := o.Variant(o.Compiled, nil, p.Name)
			switch {
			case err == nil:
				loaded++
				coll.Close()
			case p.Type != ebpf.Kprobe && p.Name != gen.ObjectsProgNumberObject:
				t.Errorf("%s: %+v", p.Name, err)
			default:
				// Without InfiniBand the types do not exist.
				t.Logf("%s: %v", p.Name, err)
			}
		}
		return nil, nil
	}
	specs := (&Options{MaxEntries: 16, MaxObjects: 16}).specs()
	for _, s := range specs.all() {
		o, _, err := hook.Open(*s, load)
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
	}
	t.Logf("%d programs loaded", loaded)
	if loaded < 4 {
		t.Errorf("only %d programs loaded", loaded)
	}
}

// TestTracepoints attaches the last tier and counts the calls of /dev/null in place of a uverbs device, whose device
// number the programs get. The ioctl must fail with ENOTTY.
func TestTracepoints(t *testing.T) {
	root(t)
	subsystem, cgroup := testCgroup(t)
	sysfs := fakeSysfs(t, "1:3", "null0")
	s, err := New(Options{Sysfs: sysfs, Tier: hook.Tracepoint, Subsystem: subsystem})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // tested below

	caller := child.Command(context.Background(), "/proc/self/exe")
	caller.Env = append(os.Environ(), callerVar+"="+cgroup)
	if out, err := caller.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	id := inode(info)
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Error(err)
	}
	got := map[string]uint64{}
	for _, v := range snap.Verbs {
		if v.Cgroup == model.CgroupID(id) && v.Key.Device == "null0" {
			got[v.Key.Verb] = v.Value.Count
			if v.Value.Sum == 0 || sum(v.Value.Buckets[:]) != v.Value.Count {
				t.Errorf("%s: %+v", v.Key.Verb, v.Value)
			}
		}
	}
	if got["reg_mr"] != 41 || got["create_qp"] != 3 {
		t.Errorf("counted %v in cgroup %d, want 41 reg_mr and 3 create_qp; all: %+v", got, id, snap.Verbs)
	}
	want := model.Series[model.VerbErrorKey, model.Count]{
		Cgroup: model.CgroupID(id), Key: model.VerbErrorKey{Device: "null0", Verb: "create_qp", Errno: "ENOTTY"}, Value: 3,
	}
	if !slices.Contains(snap.VerbErrors, want) {
		t.Errorf("errors %+v, want %+v", snap.VerbErrors, want)
	}
	if snap.Objects != nil || snap.Created != nil {
		t.Error("this tier does not count objects: want nil, not zero")
	}

	// The path of a cgroup that exists only for two system calls is recorded.
	lost := 0
	for i := range 300 {
		dir := filepath.Join(cgroup, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		if path, _ := s.opts.Paths.PathOf(model.CgroupID(inode(info))); string(path) != "/"+filepath.Base(cgroup)+"/"+strconv.Itoa(i) {
			lost++
			t.Logf("cgroup %s has the path %q", dir, path)
		}
	}
	if lost > 0 {
		t.Errorf("%d of 300 cgroups have no path", lost)
	}

	// After Forget no entry stays in the kernel.
	s.Forget([]model.CgroupID{model.CgroupID(id)})
	if snap, err = s.Read(t.Context()); err != nil {
		t.Error(err)
	}
	for _, v := range snap.Verbs {
		if v.Cgroup == model.CgroupID(id) {
			t.Errorf("%+v is still in the map", v)
		}
	}
	// The device moves to another network namespace. The hooks stay, because its uverbs device still exists and is
	// used.
	if err := os.RemoveAll(filepath.Join(sysfs, "class/infiniband/null0")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * watchInterval)
	if !isAttached(s) {
		t.Error("the hooks were released despite a uverbs device")
	}
	// The device is removed. The hooks are released, and the totals of other cgroups stay.
	if err := os.RemoveAll(filepath.Join(sysfs, "class/infiniband_verbs/uverbs0")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if !isAttached(s) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the hooks are not released")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func isAttached(s *Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sensor != nil
}

// TestNoDevice: without a device nothing is loaded, and Read returns no error.
func TestNoDevice(t *testing.T) {
	root(t)
	s, err := New(Options{Sysfs: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Errorf("no device is a failure: %v", err)
	}
	if snap.Objects == nil || len(snap.Objects) != 0 || snap.Created == nil || len(snap.Created) != 0 {
		t.Errorf("objects %v, created %v, want none", snap.Objects, snap.Created)
	}
	for _, h := range snap.Hooks {
		if h.State != model.StateAbsent {
			t.Errorf("%+v", h)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestNames: every number that the programs can write has a name.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range gen.VerbsVerbVERBS {
		name := verbName(uint32(i))
		if name == "" || seen[name] {
			t.Errorf("verb %d is called %q", i, name)
		}
		seen[name] = true
	}
	if verbName(math.MaxUint32) != "other" {
		t.Error("an unknown verb is not other")
	}
	for i, name := range objectTypes {
		if name == "" {
			t.Errorf("object type %d has no name", i)
		}
	}
	for i, name := range lossNames {
		if name == "" {
			t.Errorf("loss %d has no name", i)
		}
	}
	if got := errnoName(12) + errnoName(524); got != "ENOMEM524" {
		t.Errorf("errnos are called %s", got)
	}
	if (deviceNames{}).of(231<<20|192) != "231:192" {
		t.Error("a device number without a name is not shown as a number")
	}
}

// TestTotals: the counters of a removed device stay until their cgroup is forgotten.
func TestTotals(t *testing.T) {
	var gone totals
	verb := model.VerbKey{Device: "a", Verb: "reg_mr"}
	failed := model.VerbErrorKey{Device: "a", Verb: "reg_mr", Errno: "ENOMEM"}
	regions := model.ObjectKey{Device: "a", Type: model.MR}
	snap := model.Snapshot{
		Verbs:      []model.Series[model.VerbKey, model.Histogram]{{Cgroup: 1, Key: verb, Value: model.Histogram{Count: 2, Sum: 1e9}}},
		VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{{Cgroup: 1, Key: failed, Value: 1}},
		Objects:    []model.Objects{{Cgroup: 1, Device: "a", Type: model.MR, Current: 7}},
		Registered: []model.Registered{{Cgroup: 1, Device: "a", Memory: model.HostMemory, Bytes: 4096}},
		Created:    []createdRow{{Cgroup: 1, Key: regions, Value: 9}, {Cgroup: 2, Value: 1}},
	}
	gone.add(&snap)
	gone.add(&snap)
	got := model.Snapshot{Created: []createdRow{}}
	gone.fill(&got)
	want := model.Histogram{Count: 4, Sum: 2e9}
	if len(got.Verbs) != 1 || got.Verbs[0].Cgroup != 1 || got.Verbs[0].Key != verb || got.Verbs[0].Value != want {
		t.Errorf("verbs %+v", got.Verbs)
	}
	if !slices.Equal(got.VerbErrors, []model.Series[model.VerbErrorKey, model.Count]{{Cgroup: 1, Key: failed, Value: 2}}) {
		t.Errorf("errors %+v", got.VerbErrors)
	}
	if len(got.Created) != 2 || !slices.Contains(got.Created, createdRow{Cgroup: 1, Key: regions, Value: 18}) ||
		!slices.Contains(got.Created, createdRow{Cgroup: 2, Value: 2}) {
		t.Errorf("created %+v", got.Created)
	}
	if len(got.Objects)+len(got.Registered) != 0 {
		t.Errorf("objects %+v, registered %+v: a removed device has none", got.Objects, got.Registered)
	}
	got = model.Snapshot{}
	if gone.fill(&got); got.Created != nil || len(got.Verbs) != 1 {
		t.Errorf("created %+v where objects are not counted", got.Created)
	}
	gone.forget(map[model.CgroupID]bool{1: true})
	got = model.Snapshot{Created: []createdRow{}}
	gone.fill(&got)
	if len(got.Verbs)+len(got.VerbErrors) != 0 || !slices.Equal(got.Created, []createdRow{{Cgroup: 2, Value: 2}}) {
		t.Errorf("left after Forget: %+v", got)
	}
}

type createdRow = model.Series[model.ObjectKey, model.Count]

// TestAdopt adopts objects that existed before, with the maps of this kernel and a fake netlink.
func TestAdopt(t *testing.T) {
	root(t)
	s := unhooked(t)
	// A program has already seen QP 11. MR 5 ends between the two dumps.
	seen := gen.ObjectsObject{Cgroup: 1, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_QP), Id: 11, Numbered: 1}
	if err := s.objects.Coll.Maps[gen.ObjectsMapObjects].Put(uint64(0xffff), seen); err != nil {
		t.Fatal(err)
	}
	dumps := [][]model.Object{
		{
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 11, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 13, PID: 666},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 4, PID: 100, Memory: model.UnknownMemory, Bytes: 4096},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 5, PID: 100, Memory: model.UnknownMemory, Bytes: 8192},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 6, PID: 100, Memory: model.ImplicitODPMemory},
		},
		{
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 11, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 13, PID: 666},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 4, PID: 100, Memory: model.UnknownMemory, Bytes: 4096},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 6, PID: 100, Memory: model.ImplicitODPMemory},
		},
	}
	opts := Options{
		Objects: func(context.Context, ...model.ObjectType) ([]model.Object, error) {
			d := dumps[0]
			dumps = append(dumps[1:], d)
			return d, nil
		},
		CgroupOf: func(pid int) (model.CgroupID, error) {
			if pid == 100 {
				return 42, nil
			}
			return 0, errors.New("no such process")
		},
	}
	for range 2 { // the second time changes nothing
		if err := s.adopt(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
		dumps[0] = slices.Clone(dumps[1])
	}
	var snap model.Snapshot
	if err := s.readHoldings(&snap, nil); err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, o := range snap.Objects {
		got[strconv.FormatUint(uint64(o.Cgroup), 10)+" "+o.Device+" "+string(o.Type)] += o.Current
	}
	if got["42 mlx5_0 qp"] != 1 || got["0 mlx5_0 qp"] != 1 || got["42 mlx5_0 mr"] != 2 {
		t.Errorf("adopted %v", got)
	}
	registered := map[model.Registered]bool{}
	for _, r := range snap.Registered {
		registered[r] = true
	}
	want := map[model.Registered]bool{
		{Cgroup: 42, Device: "mlx5_0", Memory: model.UnknownMemory, Bytes: 4096}: true,
		{Cgroup: 42, Device: "mlx5_0", Memory: model.ImplicitODPMemory}:          true,
	}
	if !maps.Equal(registered, want) {
		t.Errorf("registered %+v, want %+v", registered, want)
	}
	s.self(&snap, &losses{})
	for _, m := range snap.Maps {
		if m.Name == gen.ObjectsMapAdopted && m.Entries != 4 {
			t.Errorf("%d adopted entries, want 4", m.Entries)
		}
	}
}

// TestPlainMemory: a region without a dma-buf is host memory if every function that maps a dma-buf is hooked, and if
// the kernel has no peer memory.
func TestPlainMemory(t *testing.T) {
	const get, pinned = "ib_umem_dmabuf_get", "ib_umem_dmabuf_get_pinned"
	for name, c := range map[string]struct {
		symbols []string
		states  []model.State // of the two hooks, and of peer memory
		want    gen.ObjectsMemory
	}{
		"no dma-buf":      {nil, []model.State{model.StateUnsupported, model.StateUnsupported}, gen.ObjectsMemoryMEMORY_HOST},
		"hooked":          {[]string{get, pinned}, []model.State{model.StateOK, model.StateOK}, gen.ObjectsMemoryMEMORY_HOST},
		"one function":    {[]string{get}, []model.State{model.StateOK, model.StateUnsupported}, gen.ObjectsMemoryMEMORY_HOST},
		"one failed":      {[]string{get, pinned}, []model.State{model.StateOK, model.StateFailed}, gen.ObjectsMemoryMEMORY_UNKNOWN},
		"no module types": {[]string{get}, []model.State{model.StateUnsupported, model.StateUnsupported}, gen.ObjectsMemoryMEMORY_UNKNOWN},
		"peer memory": {
			[]string{get, pinned, "ib_register_peer_memory_client"},
			[]model.State{model.StateOK, model.StateOK, model.StateUnsupported},
			gen.ObjectsMemoryMEMORY_UNKNOWN,
		},
		"hooked peer memory": {
			[]string{get, pinned, "ib_register_peer_memory_client"},
			[]model.State{model.StateOK, model.StateOK, model.StateOK},
			gen.ObjectsMemoryMEMORY_HOST,
		},
		"peer memory, no release": {
			[]string{"ib_register_peer_memory_client"},
			[]model.State{model.StateUnsupported, model.StateUnsupported, model.StateOK},
			gen.ObjectsMemoryMEMORY_UNKNOWN,
		},
	} {
		symbols := map[string]bool{}
		for _, s := range c.symbols {
			symbols[s] = true
		}
		hooks := []model.Hook{{Name: restrackHook, State: model.StateOK}}
		for i, state := range c.states {
			hooks = append(hooks, model.Hook{Name: []string{get, pinned, peerMemoryHook}[i], State: state})
		}
		if got := plainMemory(hooks, symbols); got != c.want {
			t.Errorf("%s: %s, want %s", name, memoryName(uint16(got)), memoryName(uint16(c.want)))
		}
	}
}

// TestAdoptUnlistableDevice: if a device cannot be listed, only its own objects are missing. CM ids stay unattributed
// if no program sees their end.
func TestAdoptUnlistableDevice(t *testing.T) {
	root(t)
	s := unhooked(t)
	hangs := errors.New("mlx5_1: no answer in time")
	opts := Options{
		Objects: func(context.Context, ...model.ObjectType) ([]model.Object, error) {
			return []model.Object{
				{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.CMID, ID: 1, PID: 100},
			}, hangs
		},
		CgroupOf: func(int) (model.CgroupID, error) { return 42, nil },
	}
	for i := range 9 {
		if err := s.adopt(t.Context(), opts); !errors.Is(err, hangs) {
			t.Fatalf("error %v, want %v", err, hangs)
		}
		wait := min(time.Minute<<(i+1), time.Hour)
		at := s.adoptions[model.MR].at
		if len(s.dueTypes(at.Add(wait-time.Second))) > 0 || !slices.Equal(s.dueTypes(at.Add(wait)), adoptedTypes) {
			t.Errorf("failure %d: not tried again after %v", i+1, wait)
		}
	}
	hangs = nil
	if err := s.adopt(t.Context(), opts); err != nil || len(s.dueTypes(time.Now().Add(24*time.Hour))) > 0 {
		t.Errorf("error %v, due again: %+v", err, s.adoptions)
	}
	var snap model.Snapshot
	if err := s.readHoldings(&snap, nil); err != nil {
		t.Fatal(err)
	}
	want := []model.Objects{{Cgroup: 42, Device: "mlx5_0", Type: model.QP, Current: 1}}
	if !slices.Equal(snap.Objects, want) {
		t.Errorf("adopted %+v, want %+v", snap.Objects, want)
	}
	s.cmIDs = true
	if err := s.adopt(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	objects, _, _ := s.held(t)
	if n := objects[model.ObjectTable{Index: 3, Type: model.CMID}]; n != 1 {
		t.Errorf("adopted %d CM ids, want 1", n)
	}
}

// TestAdoptUnnumbered: an object that a program counts without its id is not adopted again. Listed objects that may be
// this object are adopted after it has ended. The first object of a device has the id 0.
func TestAdoptUnnumbered(t *testing.T) {
	root(t)
	s := unhooked(t)
	unnumbered := gen.ObjectsObject{Cgroup: 42, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_QP)}
	objects := s.objects.Coll.Maps[gen.ObjectsMapObjects]
	if err := objects.Put(uint64(0xffff), unnumbered); err != nil {
		t.Fatal(err)
	}
	first := gen.ObjectsObject{Cgroup: 42, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_CQ), Numbered: 1}
	if err := objects.Put(uint64(0xfffe), first); err != nil {
		t.Fatal(err)
	}
	opts := Options{
		Objects: func(context.Context, ...model.ObjectType) ([]model.Object, error) {
			return []model.Object{
				{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 11, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.CQ, ID: 0, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.CQ, ID: 1, PID: 100},
				{Device: "mlx5_1", Index: 4, Type: model.QP, ID: 11, PID: 100},
			}, nil
		},
		CgroupOf: func(int) (model.CgroupID, error) { return 42, nil },
	}
	adopted := func() (qps, others uint64) {
		var snap model.Snapshot
		if err := s.readHoldings(&snap, nil); err != nil {
			t.Fatal(err)
		}
		for _, o := range snap.Objects {
			if o.Device == "mlx5_0" && o.Type == model.QP {
				qps += o.Current
			} else {
				others += o.Current
			}
		}
		return qps, others
	}
	if err := s.adopt(t.Context(), opts); err == nil || len(s.dueTypes(time.Now().Add(time.Hour))) == 0 {
		t.Errorf("error %v, and not tried again", err)
	}
	if qps, others := adopted(); qps != 0 || others != 2 {
		t.Errorf("adopted %d QPs and %d others, want 0 and 2", qps, others)
	}
	if err := objects.Delete(uint64(0xffff)); err != nil {
		t.Fatal(err)
	}
	if err := s.adopt(t.Context(), opts); err != nil {
		t.Error(err)
	}
	if qps, others := adopted(); qps != 2 || others != 2 {
		t.Errorf("adopted %d QPs and %d others, want 2 and 2", qps, others)
	}
}

// TestRename: live objects get the new name of their device. Counts of created objects keep the former name.
func TestRename(t *testing.T) {
	root(t)
	s := unhooked(t)
	holdings := s.objects.Coll.Maps[gen.ObjectsMapHoldings]
	key := gen.ObjectsHoldingKey{Cgroup: 42, Device: 3, Type: uint16(gen.ObjectsObjectTypeTYPE_QP)}
	count := func(current int64, created uint64) {
		if err := holdings.Put(key, gen.ObjectsHolding{Current: current, Created: created}); err != nil {
			t.Fatal(err)
		}
	}
	noted := gen.ObjectsDeviceName{Name: [64]int8{'r', 'x', 'e', '0'}}
	if err := s.objects.Coll.Maps[gen.ObjectsMapDevices].Put(uint32(3), noted); err != nil {
		t.Fatal(err)
	}
	rename := func(name string) {
		s.reindex(t.Context(), Options{DeviceNames: func(context.Context) (map[uint32]string, error) {
			return map[uint32]string{3: name}, nil
		}})
	}
	// read reads twice: a read changes nothing.
	read := func(after, device string, current uint64, created map[string]model.Count) {
		t.Helper()
		for range 2 {
			var snap model.Snapshot
			if err := s.readHoldings(&snap, nil); err != nil {
				t.Fatal(err)
			}
			want := []model.Objects{{Cgroup: 42, Device: device, Type: model.QP, Current: current}}
			if !slices.Equal(snap.Objects, want) {
				t.Errorf("%s: held %+v, want %+v", after, snap.Objects, want)
			}
			if got := createdBy(t, &snap); !maps.Equal(got, created) {
				t.Errorf("%s: created %v, want %v", after, got, created)
			}
		}
	}
	count(1, 2)
	read("at first", "rxe0", 1, map[string]model.Count{"rxe0": 2})
	rename("ibp24s0")
	read("renamed", "ibp24s0", 1, map[string]model.Count{"rxe0": 2, "ibp24s0": 0})
	count(4, 5)
	read("three more", "ibp24s0", 4, map[string]model.Count{"rxe0": 2, "ibp24s0": 3})
	rename("ibp24s0") // no change of the name
	read("same name", "ibp24s0", 4, map[string]model.Count{"rxe0": 2, "ibp24s0": 3})
	rename("mlx5_0")
	read("renamed again", "mlx5_0", 4, map[string]model.Count{"rxe0": 2, "ibp24s0": 3, "mlx5_0": 0})
	rename("rxe0")
	count(5, 6)
	read("renamed back", "rxe0", 5, map[string]model.Count{"rxe0": 3, "ibp24s0": 3, "mlx5_0": 0})

	// Forget drops all counters of a cgroup. They start at zero again.
	var snap model.Snapshot
	if err := s.readHoldings(&snap, map[model.CgroupID]bool{42: true}); err != nil || len(snap.Created)+len(snap.Objects) != 0 {
		t.Errorf("forgotten: %+v %+v, %v", snap.Created, snap.Objects, err)
	}
	count(1, 1)
	read("after Forget", "rxe0", 1, map[string]model.Count{"rxe0": 1})

	// The last device is removed: counts of created objects stay under each name.
	rename("ibp24s0")
	count(3, 3)
	source := &Source{opts: Options{Logger: zap.NewNop(), Paths: &PathLog{}}, sensor: s, forget: map[model.CgroupID]bool{}}
	source.release()
	for range 2 {
		snap, err := source.Read(t.Context())
		if err != nil || len(snap.Objects) != 0 {
			t.Errorf("device removed: held %+v, %v", snap.Objects, err)
		}
		if got := createdBy(t, &snap); !maps.Equal(got, map[string]model.Count{"rxe0": 1, "ibp24s0": 2}) {
			t.Errorf("device removed: created %v", got)
		}
	}
}

// createdBy returns the number of queue pairs created by cgroup 42, by device. It adds up rows with the same key and
// fails on other rows.
func createdBy(t *testing.T, snap *model.Snapshot) map[string]model.Count {
	t.Helper()
	created := map[string]model.Count{}
	for _, c := range snap.Created {
		if c.Cgroup != 42 || c.Key.Type != model.QP {
			t.Errorf("created by another cgroup, or another type: %+v", c)
		}
		created[c.Key.Device] += c.Value
	}
	return created
}

// unhooked returns a sensor with the maps of this kernel and without hooks.
func unhooked(t *testing.T) *sensor {
	t.Helper()
	return newUnhooked(t, Options{MaxEntries: 64, MaxObjects: 64})
}

func sum(list []uint64) (n uint64) {
	for _, v := range list {
		n += v
	}
	return n
}
