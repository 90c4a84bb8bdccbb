// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
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
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/child"
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

// callerVar makes the test binary the program that is watched, in that cgroup.
const callerVar = "ACCELSCOPE_TEST_CALLER"

// call makes 41 writes of what begins like REG_MR, and 3 ioctls like CREATE_QP.
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

// root skips what needs BPF. As root, on any kernel that we support, BPF must work.
func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// TestLoad loads every program whose hook this machine's kernel can have, with
// the tier chosen by hand, and reports the rest. Programs on functions of
// ib_core and ib_uverbs load where those modules are: in the guest.
func TestLoad(t *testing.T) {
	root(t)
	types, err := hook.LoadTypes()
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := loadSpecs(Options{MaxEntries: 16, MaxObjects: 16}, types)
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for _, spec := range compiled.all() {
		o, err := hook.NewObject(spec, types, perTask)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		for _, p := range spec.Programs {
			if p.Type == ebpf.Tracing {
				continue // its function is not in a kernel without InfiniBand
			}
			one := spec.Copy()
			one.Programs = map[string]*ebpf.ProgramSpec{p.Name: one.Programs[p.Name]}
			if p.Type == ebpf.Kprobe {
				delete(one.Maps, perTask)
			}
			coll, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{
				Cache: types.Cache, MapReplacements: o.Coll.Maps,
				Programs: ebpf.ProgramOptions{KernelTypes: types.Kernel, ExtraRelocationTargets: types.Modules},
			})
			switch {
			case err == nil:
				loaded++
				coll.Close()
			case p.Type != ebpf.Kprobe:
				t.Errorf("%s: %+v", p.Name, err)
			default:
				// Its types are not in a kernel without InfiniBand.
				t.Logf("%s: %v", p.Name, err)
			}
		}
	}
	t.Logf("%d programs loaded", loaded)
	if loaded < 4 {
		t.Errorf("only %d programs loaded", loaded)
	}
}

// TestTracepoints attaches the last tier to this machine's kernel and counts
// the calls of a device that stands in for uverbs: /dev/null, whose device
// number is told to the programs. The ioctl fails with ENOTTY, as it must.
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
		if v.Cgroup == id && v.Device == "null0" {
			got[v.Verb] = v.Duration.Count
			if v.Duration.SumSeconds <= 0 || sum(v.Duration.Buckets[:]) != v.Duration.Count {
				t.Errorf("%s: %+v", v.Verb, v.Duration)
			}
		}
	}
	if got["reg_mr"] != 41 || got["create_qp"] != 3 {
		t.Errorf("counted %v in cgroup %d, want 41 reg_mr and 3 create_qp; all: %+v", got, id, snap.Verbs)
	}
	want := model.VerbError{Cgroup: id, Device: "null0", Verb: "create_qp", Errno: "ENOTTY", Count: 3}
	if !slices.Contains(snap.VerbErrors, want) {
		t.Errorf("errors %+v, want %+v", snap.VerbErrors, want)
	}
	if snap.Objects != nil {
		t.Error("this tier counts no objects, and zero is a measurement")
	}

	// A cgroup that lives for as long as two system calls take is known by name.
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
		if path, _ := s.CgroupPath(inode(info)); path != "/"+filepath.Base(cgroup)+"/"+strconv.Itoa(i) {
			lost++
			t.Logf("cgroup %s is known as %q", dir, path)
		}
	}
	if lost > 0 {
		t.Errorf("%d of 300 cgroups have no name", lost)
	}

	// Forgotten: no entry stays in the kernel.
	s.Forget([]uint64{id})
	if snap, err = s.Read(t.Context()); err != nil {
		t.Error(err)
	}
	for _, v := range snap.Verbs {
		if v.Cgroup == id {
			t.Errorf("%+v is not forgotten", v)
		}
	}
	// The device goes to another network namespace: the hooks stay, for its
	// uverbs device is there and is used.
	if err := os.RemoveAll(filepath.Join(sysfs, "class/infiniband/null0")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * watchInterval)
	if !attached(s) {
		t.Error("the hooks are released while a uverbs device is there")
	}
	// It goes for good: the hooks are released, the totals of others stay.
	if err := os.RemoveAll(filepath.Join(sysfs, "class/infiniband_verbs/uverbs0")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if !attached(s) {
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

func attached(s *Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sensor != nil
}

// TestNoDevice: without a device nothing is loaded, and it is not a failure.
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
	if snap.Objects == nil || len(snap.Objects) != 0 {
		t.Errorf("objects %v, want none", snap.Objects)
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
		t.Error("a device number without a name is not told as one")
	}
}

// TestTotals: what a device that is gone has counted stays until its cgroup is forgotten.
func TestTotals(t *testing.T) {
	totals := newTotals()
	snap := model.Snapshot{
		Verbs:      []model.Verb{{Cgroup: 1, Device: "a", Verb: "reg_mr", Duration: model.Histogram{Count: 2, SumSeconds: 1}}},
		VerbErrors: []model.VerbError{{Cgroup: 1, Device: "a", Verb: "reg_mr", Errno: "ENOMEM", Count: 1}},
		Objects:    []model.Objects{{Cgroup: 1, Device: "a", Type: model.MR, Current: 7, Created: 9}, {Cgroup: 2, Created: 1}},
	}
	totals.add(&snap)
	totals.add(&snap)
	var got model.Snapshot
	totals.fill(&got)
	if len(got.Verbs) != 1 || got.Verbs[0].Duration.Count != 4 || got.Verbs[0].Duration.SumSeconds != 2 {
		t.Errorf("verbs %+v", got.Verbs)
	}
	if len(got.VerbErrors) != 1 || got.VerbErrors[0].Count != 2 {
		t.Errorf("errors %+v", got.VerbErrors)
	}
	for _, o := range got.Objects {
		if o.Cgroup == 1 && (o.Created != 18 || o.Current != 0) {
			t.Errorf("objects %+v: a device that is gone holds none", o)
		}
	}
	totals.forget(map[uint64]bool{1: true})
	got = model.Snapshot{}
	totals.fill(&got)
	if len(got.Verbs)+len(got.VerbErrors) != 0 || len(got.Objects) != 1 {
		t.Errorf("left after forgetting: %+v", got)
	}
}

// TestAdopt runs the bookkeeping of objects that were there before, with the
// maps of this kernel and a netlink that this test plays: no InfiniBand here.
func TestAdopt(t *testing.T) {
	root(t)
	s := unhooked(t)
	// A program has seen QP 11 already; MR 5 goes between the two dumps.
	seen := gen.ObjectsObject{Cgroup: 1, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_QP), Id: 11}
	if err := s.objects.Coll.Maps[gen.ObjectsMapObjects].Put(uint64(0xffff), seen); err != nil {
		t.Fatal(err)
	}
	dumps := [][]model.Object{
		{
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 11, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 13, PID: 666},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 4, PID: 100, Bytes: 4096},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 5, PID: 100, Bytes: 8192},
		},
		{
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 11, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
			{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 13, PID: 666},
			{Device: "mlx5_0", Index: 3, Type: model.MR, ID: 4, PID: 100, Bytes: 4096},
		},
	}
	opts := Options{
		Objects: func(context.Context) ([]model.Object, error) {
			d := dumps[0]
			dumps = append(dumps[1:], d)
			return d, nil
		},
		CgroupOf: func(pid int) (uint64, error) {
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
		got[strconv.FormatUint(o.Cgroup, 10)+" "+o.Device+" "+string(o.Type)] += o.Current
	}
	if got["42 mlx5_0 qp"] != 1 || got["0 mlx5_0 qp"] != 1 || got["42 mlx5_0 mr"] != 1 {
		t.Errorf("adopted %v", got)
	}
	for _, r := range snap.Registered {
		if r.Cgroup == 42 && r.Bytes != 4096 {
			t.Errorf("registered %+v, want 4096 bytes", r)
		}
	}
	s.self(&snap, &losses{})
	for _, m := range snap.Maps {
		if m.Name == gen.ObjectsMapAdopted && m.Entries != 3 {
			t.Errorf("%d adopted entries, want 3", m.Entries)
		}
	}
}

// TestAdoptWhatCanBeListed: a device that cannot be listed costs its own
// objects, and CM ids, of which no program sees the end, are left to nobody.
func TestAdoptWhatCanBeListed(t *testing.T) {
	root(t)
	s := unhooked(t)
	hangs := errors.New("mlx5_1: no answer in time")
	opts := Options{
		Objects: func(context.Context) ([]model.Object, error) {
			return []model.Object{
				{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.CMID, ID: 1, PID: 100},
			}, hangs
		},
		CgroupOf: func(int) (uint64, error) { return 42, nil },
	}
	for i := range 9 {
		if err := s.adopt(t.Context(), opts); !errors.Is(err, hangs) {
			t.Fatalf("error %v, want %v", err, hangs)
		}
		wait := min(time.Minute<<(i+1), 64*time.Minute)
		at := s.adoptedAt.at
		if s.adoptedAt.due(at.Add(wait-time.Second), 0) || !s.adoptedAt.due(at.Add(wait), 0) {
			t.Errorf("failure %d: not tried again after %v", i+1, wait)
		}
	}
	hangs = nil
	if err := s.adopt(t.Context(), opts); err != nil || s.adoptedAt.due(time.Now().Add(24*time.Hour), 0) {
		t.Errorf("error %v, due again: %+v", err, s.adoptedAt)
	}
	var snap model.Snapshot
	if err := s.readHoldings(&snap, nil); err != nil {
		t.Fatal(err)
	}
	want := []model.Objects{{Cgroup: 42, Device: "mlx5_0", Type: model.QP, Current: 1}}
	if !slices.Equal(snap.Objects, want) {
		t.Errorf("adopted %+v, want %+v", snap.Objects, want)
	}
}

// TestAdoptBesideUnnumbered: an object that a program counts without knowing its
// id is not adopted once more, and what could be it waits until it is gone. The
// id of a device's first object is 0.
func TestAdoptBesideUnnumbered(t *testing.T) {
	root(t)
	s := unhooked(t)
	unnumbered := gen.ObjectsObject{Cgroup: 42, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_QP)}
	objects := s.objects.Coll.Maps[gen.ObjectsMapObjects]
	if err := objects.Put(uint64(0xffff), unnumbered); err != nil {
		t.Fatal(err)
	}
	first := gen.ObjectsObject{Cgroup: 42, Device: 3, Type: uint8(gen.ObjectsObjectTypeTYPE_CQ)}
	if err := objects.Put(uint64(0xfffe), first); err != nil {
		t.Fatal(err)
	}
	opts := Options{
		Objects: func(context.Context) ([]model.Object, error) {
			return []model.Object{
				{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 11, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.QP, ID: 12, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.CQ, ID: 0, PID: 100},
				{Device: "mlx5_0", Index: 3, Type: model.CQ, ID: 1, PID: 100},
				{Device: "mlx5_1", Index: 4, Type: model.QP, ID: 11, PID: 100},
			}, nil
		},
		CgroupOf: func(int) (uint64, error) { return 42, nil },
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
	if err := s.adopt(t.Context(), opts); err == nil || !s.adoptedAt.due(time.Now().Add(time.Hour), 0) {
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

// TestRename: what is held on a device is told under the name that it has now.
func TestRename(t *testing.T) {
	root(t)
	s := unhooked(t)
	key := gen.ObjectsHoldingKey{Cgroup: 42, Device: 3, Type: uint16(gen.ObjectsObjectTypeTYPE_QP)}
	if err := s.objects.Coll.Maps[gen.ObjectsMapHoldings].Put(key, gen.ObjectsHolding{Current: 1, Created: 2}); err != nil {
		t.Fatal(err)
	}
	noted := gen.ObjectsDeviceName{Name: [64]int8{'r', 'x', 'e', '0'}}
	if err := s.objects.Coll.Maps[gen.ObjectsMapDevices].Put(uint32(3), noted); err != nil {
		t.Fatal(err)
	}
	opts := Options{DeviceNames: func(context.Context) (map[uint32]string, error) {
		return map[uint32]string{3: "ibp24s0"}, nil
	}}
	for _, want := range []string{"rxe0", "ibp24s0"} {
		var snap model.Snapshot
		if err := s.readHoldings(&snap, nil); err != nil {
			t.Fatal(err)
		}
		if len(snap.Objects) != 1 || snap.Objects[0].Device != want {
			t.Errorf("%+v, want one on %s", snap.Objects, want)
		}
		s.reindex(t.Context(), opts)
	}
}

// unhooked is a sensor with the maps of this kernel and no hook.
func unhooked(t *testing.T) *sensor {
	t.Helper()
	types, err := hook.LoadTypes()
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := loadSpecs(Options{MaxEntries: 64, MaxObjects: 64}, types)
	if err != nil {
		t.Fatal(err)
	}
	s := &sensor{indexes: map[uint32]string{}, base: map[gen.ObjectsHoldingKey]held{}}
	s.fill = map[string]uint64{}
	if s.verbs, err = hook.NewObject(compiled.verbs, types, perTask); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	if s.objects, err = hook.NewObject(compiled.objects, types, perTask); err != nil {
		t.Fatal(err)
	}
	if s.peers, err = hook.NewObject(compiled.peers, types, perTask); err != nil {
		t.Fatal(err)
	}
	return s
}

func sum(list []uint64) (n uint64) {
	for _, v := range list {
		n += v
	}
	return n
}
