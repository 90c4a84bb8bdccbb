// SPDX-License-Identifier: Apache-2.0

package access

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// opener runs the programs of kprobes as syscall programs, which can be called with any registers. The inode is a FAKE
// in the memory of a map; the cgroups are real.
type opener struct {
	t       *testing.T
	coll    *ebpf.Collection
	address uint64 // of the inode
	rdev    uint32 // offset of its device number
}

func newOpener(t *testing.T, o Options) (*opener, *Source) {
	t.Helper()
	runtime.LockOSThread() // the programs know a call by its thread
	t.Cleanup(runtime.UnlockOSThread)
	kernel, err := hook.ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := hook.Open(o.spec(), func(*hook.Object) ([]model.Hook, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(object.Close)
	compiled := o.spec()
	spec, err := compiled.Compile(kernel)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		if !strings.Contains(name, "probe_chrdev_open") {
			delete(spec.Programs, name)
			continue
		}
		p.Type, p.AttachType, p.AttachTo, p.Flags = ebpf.Syscall, ebpf.AttachNone, "", unix.BPF_F_SLEEPABLE
	}
	bpf.AddMemory(spec, 1024)
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: object.Coll.Maps, Programs: ebpf.ProgramOptions{KernelTypes: kernel.Types},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(coll.Close)
	p := &opener{t: t, coll: coll}
	p.address = bpf.AddressOf(t, coll.Maps[bpf.Memory])
	var inode *btf.Struct
	if err := kernel.Types.TypeByName("inode", &inode); err != nil {
		t.Fatal(err)
	}
	for _, m := range inode.Members {
		if m.Name == "i_rdev" {
			p.rdev = m.Offset.Bytes()
		}
	}
	var majors [numMajors]uint8
	majors[drmMajor] = uint8(gen.DevicesWatchWATCH_ALL)
	if err := object.Coll.Variables[gen.DevicesVarMajors].Set(majors); err != nil {
		t.Fatal(err)
	}
	return p, &Source{o: o, nodes: newNodes(), forget: map[model.CgroupID]bool{}, sensor: &sensor{object: object, counts: true}}
}

const drmMajor = 226

// run calls a program with registers, which have the layout of struct pt_regs.
func (p *opener) run(name string, regs unix.PtraceRegs) {
	p.t.Helper()
	var b []byte
	for _, v := range (*[unsafe.Sizeof(regs) / 8]uint64)(unsafe.Pointer(&regs))[:] {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	if _, err := p.coll.Programs[name].Run(&ebpf.RunOptions{Context: b}); err != nil {
		p.t.Fatalf("%s: %v", name, err)
	}
}

func (p *opener) open(nodes uint32) {
	p.t.Helper()
	for minor := range nodes {
		memory := make([]byte, 1024)
		binary.NativeEndian.PutUint32(memory[p.rdev:], drmMajor<<minorBits|minor)
		if err := p.coll.Maps[bpf.Memory].Put(uint32(0), memory); err != nil {
			p.t.Fatal(err)
		}
		p.run("kprobe_chrdev_open", unix.PtraceRegs{Rdi: p.address})
		p.run("kretprobe_chrdev_open", unix.PtraceRegs{})
	}
}

func shareGroups(t *testing.T) (a, b group) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			return newGroup(t, root, ""), newGroup(t, root, "")
		}
	}
	const root, subsystem = "/sys/fs/cgroup/devices", "devices"
	return newGroup(t, root, subsystem), newGroup(t, root, subsystem)
}

func (g group) in(t *testing.T, f func()) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own := ""
	for line := range strings.Lines(string(b)) {
		if part := strings.SplitN(strings.TrimSpace(line), ":", 3); part[1] == g.subsystem {
			own = filepath.Join(filepath.Dir(g.dir), part[2])
		}
	}
	enter := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	enter(g.dir)
	defer enter(own)
	f()
}

// TestOpensShare: a cgroup that opens all device nodes takes only its share of the map.
func TestOpensShare(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := features.HaveProgramType(ebpf.Syscall); err != nil { // Linux 5.14
		t.Skip(err)
	}
	hostile, other := shareGroups(t)
	const entries, share, nodes, few = 16, 4, 32, 3
	p, s := newOpener(t, Options{MaxEntries: entries, Subsystem: hostile.subsystem, Sysfs: t.TempDir()})
	id := func(g group) model.CgroupID { return model.CgroupID(g.id) }
	for round := range 2 {
		hostile.in(t, func() { p.open(nodes) })
		other.in(t, func() { p.open(few) })
		snap, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opened := map[model.CgroupID]int{}
		for _, o := range snap.DeviceOpens {
			opened[o.Cgroup]++
		}
		if opened[id(hostile)] != share || opened[id(other)] != few {
			t.Errorf("%d nodes of the hostile cgroup are counted, and %d of the other; want %d and %d",
				opened[id(hostile)], opened[id(other)], share, few)
		}
		want := model.Series[model.LossKey, model.Count]{
			Cgroup: id(hostile), Key: model.LossKey{Reason: "device_opens_map_share"}, Value: nodes - share,
		}
		if len(snap.OwnerLosses) != 1 || snap.OwnerLosses[0] != want {
			t.Errorf("lost %+v, want %+v", snap.OwnerLosses, want)
		}
		for _, l := range snap.Losses {
			if wanted := l.Reason == "device_opens_map_share"; wanted != (l.Count > 0) {
				t.Errorf("lost %+v", l)
			}
		}
		if round > 0 {
			break
		}
		// Forgotten, the owner begins again.
		s.Forget([]model.CgroupID{id(hostile), id(other)})
		if snap, err = s.Read(t.Context()); err != nil || len(snap.DeviceOpens)+len(snap.OwnerLosses) > 0 {
			t.Fatalf("after Forget: %+v, %+v, %v", snap.DeviceOpens, snap.OwnerLosses, err)
		}
		if err := s.sensor.object.Coll.Variables[gen.DevicesVarAccessLosses].Set([gen.DevicesAccessLossACCESS_LOSSES]uint64{}); err != nil {
			t.Fatal(err)
		}
	}
}
