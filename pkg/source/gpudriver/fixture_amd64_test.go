// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// programs runs the compiled kprobe programs without kprobes: loaded as syscall programs, they can be called with any
// registers. The open files are fakes in the memory of a map, in the layout of this kernel; tasks and cgroups are real.
type programs struct {
	*Source
	t       testing.TB
	types   *btf.Spec
	memory  []byte
	address uint64 // of memory
	used    uint32 // bytes of it
}

func newPrograms(t testing.TB, o Options) *programs {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := hook.Usable(); err != nil {
		t.Fatal(err)
	}
	kernel, err := hook.ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	if o.MaxEntries == 0 {
		o.MaxEntries = 64
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = 64
	}
	p := &programs{
		Source: &Source{o: o, forget: map[model.CgroupID]bool{}},
		t:      t, types: kernel.Types, memory: make([]byte, 1<<16),
	}
	spec := o.spec()
	spec.Prepare = func(compiled *ebpf.CollectionSpec, _ *hook.Kernel) error {
		for _, p := range compiled.Programs {
			if strings.Contains(p.SectionName, "probe") {
				p.Type, p.AttachType, p.Flags = ebpf.Syscall, ebpf.AttachNone, unix.BPF_F_SLEEPABLE
			}
		}
		bpf.AddMemory(compiled, len(p.memory))
		return nil
	}
	if p.sensor, _, err = open(spec); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(p.sensor.close)
	p.address = bpf.AddressOf(t, p.sensor.object.Coll.Maps[bpf.Memory])
	return p
}

// run calls a program with registers, which have the layout of struct pt_regs.
func (p *programs) run(name string, regs unix.PtraceRegs) {
	p.t.Helper()
	var b []byte
	for _, v := range (*[unsafe.Sizeof(regs) / 8]uint64)(unsafe.Pointer(&regs))[:] {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	if _, err := p.sensor.object.Program(name).Run(&ebpf.RunOptions{Context: b}); err != nil {
		p.t.Errorf("%s: %v", name, err)
	}
}

// offset returns where a member of a structure of this kernel is.
func (p *programs) offset(structure, member string) uint32 {
	p.t.Helper()
	var s *btf.Struct
	if err := p.types.TypeByName(structure, &s); err != nil {
		p.t.Fatal(err)
	}
	var find func(members []btf.Member, base uint32) (uint32, bool)
	find = func(members []btf.Member, base uint32) (uint32, bool) {
		for _, m := range members {
			at := base + m.Offset.Bytes()
			if m.Name == member {
				return at, true
			}
			if m.Name != "" {
				continue
			}
			switch in := btf.UnderlyingType(m.Type).(type) {
			case *btf.Struct:
				if at, ok := find(in.Members, at); ok {
					return at, true
				}
			case *btf.Union:
				if at, ok := find(in.Members, at); ok {
					return at, true
				}
			}
		}
		return 0, false
	}
	at, ok := find(s.Members, 0)
	if !ok {
		p.t.Fatalf("struct %s has no %s", structure, member)
	}
	return at
}

// file makes an open file of a driver's device node and returns its address. A driver without a name is built into the kernel.
func (p *programs) file(driver string) uint64 {
	p.t.Helper()
	const room = 4096 // more than each structure has
	file, operations, module := p.used, p.used+room/4, p.used+room/2
	p.used += room
	put := func(at uint32, to uint32) {
		binary.NativeEndian.PutUint64(p.memory[at:], p.address+uint64(to))
	}
	put(file+p.offset("file", "f_op"), operations)
	if driver != "" {
		put(operations+p.offset("file_operations", "owner"), module)
		copy(p.memory[module+p.offset("module", "name"):], driver)
	}
	if err := p.sensor.object.Coll.Maps[bpf.Memory].Put(uint32(0), p.memory); err != nil {
		p.t.Fatal(err)
	}
	return p.address + uint64(file)
}

// The programs of an operation of a driver, and of drm_ioctl.
func (p *programs) enter(file uint64, request uint32) {
	p.t.Helper()
	p.run(gen.GPUDriverProgKprobeIoctl, unix.PtraceRegs{Rdi: file, Rsi: uint64(request)})
}

func (p *programs) leave() {
	p.t.Helper()
	p.run(gen.GPUDriverProgKretprobeIoctl, unix.PtraceRegs{})
}

func (p *programs) enterDRM(file uint64, request uint32) {
	p.t.Helper()
	p.run(gen.GPUDriverProgKprobeDrmIoctl, unix.PtraceRegs{Rdi: file, Rsi: uint64(request)})
}

func (p *programs) leaveDRM() {
	p.t.Helper()
	p.run(gen.GPUDriverProgKretprobeDrmIoctl, unix.PtraceRegs{})
}

// A thread runs functions on a thread of its own.
type thread chan func()

func newThread(t *testing.T) thread {
	t.Helper()
	c, ended := make(thread), make(chan bool)
	go func() {
		defer close(ended)
		runtime.LockOSThread() // without unlocking: the thread ends with the goroutine
		for f := range c {
			f()
		}
	}()
	t.Cleanup(func() {
		close(c)
		<-ended
	})
	return c
}

func (c thread) do(f func()) {
	done := make(chan bool)
	c <- func() { defer close(done); f() }
	<-done
}

// read returns the counts by driver and kind, the uses of drivers, the stuck tasks, and the losses.
func (p *programs) read() (calls map[model.DriverCallKey]uint64, snap model.Snapshot, losses map[string]uint64) {
	p.t.Helper()
	snap, err := p.Read(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	calls, losses = map[model.DriverCallKey]uint64{}, map[string]uint64{}
	for _, s := range snap.DriverCalls {
		if s.Value.Count > 0 {
			calls[s.Key] += s.Value.Count
		}
	}
	for _, l := range snap.Losses {
		if l.Count > 0 {
			losses[l.Reason] += l.Count
		}
	}
	return calls, snap, losses
}
