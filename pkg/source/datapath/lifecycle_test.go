// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// kernelObjects are FAKES of the kernel's RDMA objects, in the memory of a map and in the layout of bpf/kernel.h. The fake calls
// functions with the names of the kernel's with them, and the programs of bpf/lifecycle.h are attached to these by uprobes: this
// machine has no InfiniBand.
type kernelObjects struct {
	t       testing.TB
	types   *btf.Spec
	memory  *ebpf.Map
	content []byte
	address uint64 // of the memory
}

// Offsets in the memory: of the struct ib_qp_attr that all calls have, and of the objects of a verbs context.
const (
	kernelAttr    = 0
	kernelDevice  = 512
	kernelContext = 1024
	kernelUobject = 1536
	kernelQP      = 2048
	ofContext     = 2048 // distance between the objects of two contexts
)

// traceLifecycle attaches the programs to the file of the fake.
func traceLifecycle(t testing.TB, k *kernel, path string) *kernelObjects {
	t.Helper()
	spec, err := gen.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range k.object.Coll.Maps {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	traced := map[string]string{
		gen.DatapathProgKprobeModify: "ib_modify_qp_with_udata", gen.DatapathProgKprobeTrack: "rdma_restrack_add",
		gen.DatapathProgKprobeUntrack: "rdma_restrack_del", gen.DatapathProgKprobeDestroy: "ib_destroy_qp_user",
	}
	maps.DeleteFunc(spec.Programs, func(name string, p *ebpf.ProgramSpec) bool {
		if k.multi {
			p.AttachType = ebpf.AttachTraceUprobeMulti
		}
		return traced[name] == ""
	})
	o := &kernelObjects{t: t, types: spec.Types, content: make([]byte, 1<<14)}
	bpf.AddMemory(spec, len(o.content))
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: k.object.Coll.Maps, Programs: ebpf.ProgramOptions{KernelTypes: spec.Types},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(coll.Close)
	o.memory = coll.Maps[bpf.Memory]
	o.address = bpf.AddressOf(t, coll.Maps[bpf.Memory])
	for program, function := range traced {
		link, err := uprobe.Attach(coll.Programs[program], uprobe.Place{Path: path, Offset: offsetOf(t, path, function)}, k.multi, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = link.Close() })
	}
	return o
}

// offsetOf returns the offset of a function in a file.
func offsetOf(t testing.TB, path, function string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		for _, p := range f.Progs {
			if s.Name == function && p.Type == elf.PT_LOAD && p.Vaddr <= s.Value && s.Value < p.Vaddr+p.Filesz {
				return s.Value - p.Vaddr + p.Off
			}
		}
	}
	t.Fatalf("%s has no function %s", path, function)
	return 0
}

// at returns the offset of a member, such as "ib_ucontext.res.type", of the object at an offset, and its size.
func (o *kernelObjects) at(object int, path string) (offset, size int) {
	o.t.Helper()
	names := strings.Split(path, ".")
	typ, err := o.types.AnyTypeByName(names[0])
	if err != nil {
		o.t.Fatal(err)
	}
	for _, name := range names[1:] {
		found := false
		if of, ok := btf.UnderlyingType(typ).(*btf.Struct); ok {
			for _, m := range of.Members {
				if m.Name == name {
					object, typ, found = object+int(m.Offset.Bytes()), m.Type, true
					break
				}
			}
		}
		if !found {
			o.t.Fatalf("%s: no member %s", path, name)
		}
	}
	if size, err = btf.Sizeof(typ); err != nil {
		o.t.Fatal(err)
	}
	return object, size
}

// put writes a member of the object at an offset.
func (o *kernelObjects) put(object int, path string, value uint64) {
	o.t.Helper()
	at, size := o.at(object, path)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], value)
	copy(o.content[at:], b[:min(size, 8)])
	if err := o.memory.Put(uint32(0), o.content); err != nil {
		o.t.Fatal(err)
	}
}

// use makes the objects of the numbered context belong to an open device and a queue pair of the fake.
func (o *kernelObjects) use(f *fake, number int, device uint64) {
	o.t.Helper()
	base := number * ofContext
	o.put(base+kernelDevice, "ib_device.index", device)
	o.put(base+kernelContext, "ib_ucontext.device", o.address+uint64(base+kernelDevice))
	o.put(base+kernelContext, "ib_ucontext.res.type", 5) // RDMA_RESTRACK_CTX
	o.put(base+kernelUobject, "ib_uobject.context", o.address+uint64(base+kernelContext))
	o.put(base+kernelUobject, "ib_uobject.user_handle", f.qp)
	o.put(base+kernelQP, "ib_qp.device", o.address+uint64(base+kernelDevice))
	o.put(base+kernelQP, "ib_qp.uobject", o.address+uint64(base+kernelUobject))
	o.put(base+kernelQP, "ib_qp.qp_num", 17)
	o.put(base+kernelQP, "ib_qp.qp_type", 2)
	f.do("kernel-memory", int(o.address)) //nolint:gosec // the fake takes it as an address again
}

// open opens a context of the fake.
func (o *kernelObjects) open(f *fake, number int) {
	o.t.Helper()
	entry, _ := o.at(number*ofContext+kernelContext, "ib_ucontext.res")
	f.do("open-context", entry)
}

// close closes a context of the fake.
func (o *kernelObjects) close(f *fake, number int) {
	o.t.Helper()
	entry, _ := o.at(number*ofContext+kernelContext, "ib_ucontext.res")
	f.do("close-context", entry)
}

// checkClosed checks that the entries of a closed context are free.
func (o *kernelObjects) checkClosed(k *kernel, key gen.DatapathContextKey, number int) {
	o.t.Helper()
	var stat gen.DatapathContextStat
	if err := k.object.Coll.Maps[gen.DatapathMapContexts].Lookup(key, &stat); !errors.Is(err, ebpf.ErrKeyNotExist) {
		o.t.Errorf("the counters of the closed context %d: %v", number, err)
	}
	ucontext := o.address + uint64(number*ofContext+kernelContext)
	if err := k.object.Coll.Maps[gen.DatapathMapOpenContexts].Lookup(ucontext, &key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		o.t.Errorf("the closed context %d in the list of open ones: %v", number, err)
	}
}

// States of queue pairs, enum ib_qp_state.
const (
	qpReset = iota
	qpInit
	qpReadyToReceive
	qpReadyToSend
)

// modify sets the state of the queue pair of a context.
func (o *kernelObjects) modify(f *fake, number int, state uint64) {
	o.t.Helper()
	o.put(kernelAttr, "ib_qp_attr.qp_state", state)
	f.do("modify-qp", number*ofContext+kernelQP)
}

// number gives the queue pair of a context a number.
func (o *kernelObjects) number(context int, qpn uint64) {
	o.t.Helper()
	o.put(context*ofContext+kernelQP, "ib_qp.qp_num", qpn)
}

// destroy destroys the queue pair of a context.
func (o *kernelObjects) destroy(f *fake, number int) {
	o.t.Helper()
	f.do("destroy-qp", number*ofContext+kernelQP)
}

// TestAnnouncedAgain: the functions of a queue pair are announced again after the event did not fit into the ring buffer.
func TestAnnouncedAgain(t *testing.T) {
	path, _ := buildFake(t)
	k := startKernel(t)
	f := startFake(t, path)
	o := traceLifecycle(t, k, path)
	o.use(f, 0, 3)
	lost := func() uint64 { return k.losses()["datapath_events_full"] }
	const most = 5000
	for n := 0; lost() == 0; n++ {
		if n == most {
			t.Fatalf("%d events fit into the ring buffer", n)
		}
		o.open(f, 0)
	}
	before := lost()
	o.modify(f, 0, qpInit)
	if n := lost() - before; n != 1 {
		t.Fatalf("%d events are lost, want the event of the queue pair", n)
	}
	announced := func() (n int) {
		for k.events.AvailableBytes() > 0 {
			e, err := k.events.next()
			if err != nil {
				t.Fatal(err)
			}
			if e.qp == 0 {
				continue
			}
			n++
			if e.qp != f.qp || e.key.Context != f.key.Context || e.key.Tgid != f.key.Tgid || e.device != 3 {
				t.Errorf("%+v, want the queue pair %#x of %+v on device 3", e, f.qp, f.key)
			}
		}
		return n
	}
	if n := announced(); n != 0 {
		t.Errorf("%d announcements in a full ring buffer", n)
	}
	o.modify(f, 0, qpReadyToReceive)
	if n := announced(); n != 1 {
		t.Errorf("announced %d times after the loss, want once", n)
	}
	o.modify(f, 0, qpReadyToSend)
	if n := announced(); n != 0 {
		t.Errorf("announced %d more times", n)
	}
}

// TestExec: a process executes a program again, which gets the same addresses, and opens another device. The counts of both
// programs are exact, whether the end of the first context was seen or not. If it was, its entries are free at once.
func TestExec(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("seen=%v", seen), func(t *testing.T) {
			path, sites := buildFake(t)
			s := startSource(t, 0, path, sites, func(s *testSource) {
				s.meter.names.byIndex[4] = "fake1"
				go s.loop.receive(context.Background(), s.prober.kernel)
			})
			f := startFake(t, path)
			f.exec() // from here on addresses do not change
			o := traceLifecycle(t, s.prober.kernel, path)
			const programs = 4
			key := f.key
			for i := range programs {
				o.use(f, i, uint64(3+i%2))
				o.open(f, i)
				for state := range uint64(qpReadyToSend) {
					o.modify(f, i, state+1)
				}
				eventually(t, "the context is not counted", func() bool { return s.located() >= 1 && s.counts(f.key) })
				f.do("chain", 10+i)
				if i == programs-1 {
					break
				}
				if seen {
					o.close(f, i)
					o.checkClosed(s.prober.kernel, key, i)
				}
				f.exec()
				if f.key != key {
					t.Fatalf("%+v after exec, want %+v", f.key, key)
				}
			}
			const chain = 128 + 64 + 1054
			want := map[string]uint64{"fake0": (10 + 12) * chain, "fake1": (11 + 13) * chain}
			var got map[string]uint64
			defer func() {
				if t.Failed() {
					t.Logf("sent %v, want %v", got, want)
				}
			}()
			eventually(t, "wrong counts", func() bool {
				got = map[string]uint64{}
				for _, r := range s.snapshot(t).Traffic {
					if r.Direction == model.Transmit {
						got[r.Device] += r.Bytes
					}
				}
				return maps.Equal(got, want)
			})
			for _, lost := range s.snapshot(t).Losses {
				if lost.Count != 0 {
					t.Errorf("lost: %+v", lost)
				}
			}
		})
	}
}

// counts reports whether the open context at an address has all its functions probed.
func (s *testSource) counts(key gen.DatapathContextKey) bool {
	var stat gen.DatapathContextStat
	return s.prober.kernel.object.Coll.Maps[gen.DatapathMapContexts].Lookup(key, &stat) == nil && stat.Ready != 0
}

// exec makes the fake execute its program again, without randomized addresses.
func (f *fake) exec() {
	f.t.Helper()
	if _, err := fmt.Fprintln(f.in, "exec", 0); err != nil {
		f.t.Fatal(err)
	}
	f.greet()
}
