// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// objectPrograms runs the compiled programs of objects or peers without RDMA hardware. Each is loaded as a syscall
// program, which can be called with any context. The kernel objects are fakes in the memory of a map, in the layout of
// bpf/kernel.h.
type objectPrograms struct {
	t       *testing.T
	coll    *ebpf.Collection
	types   *btf.Spec
	tier    string
	address uint64 // of the memory
	memory  []byte // its content
}

// newObjectPrograms has room for 64 objects and 64 holdings. An owner may have half of the objects and a quarter of the
// holdings.
func newObjectPrograms(t *testing.T, tier string) *objectPrograms {
	t.Helper()
	return newPrograms(t, tier, compileSmall(t, small.objects))
}

// newPeerPrograms has room for 32 peers. An owner may have half of them.
func newPeerPrograms(t *testing.T, tier string) *objectPrograms {
	t.Helper()
	return newPrograms(t, tier, compileSmall(t, small.peers))
}

var small = (&Options{MaxEntries: 64, MaxObjects: 64}).specs()

func compileSmall(t *testing.T, spec hook.Spec) *ebpf.CollectionSpec {
	t.Helper()
	spec.Growing = nil
	compiled, err := spec.Compile(&hook.Kernel{})
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func newPrograms(t *testing.T, tier string, spec *ebpf.CollectionSpec) *objectPrograms {
	t.Helper()
	root(t)
	runtime.LockOSThread() // a mapping belongs to a thread
	t.Cleanup(runtime.UnlockOSThread)
	maps.DeleteFunc(spec.Programs, func(name string, p *ebpf.ProgramSpec) bool {
		kind, _, _ := strings.Cut(p.SectionName, "/")
		return strings.Contains(kind, "probe") != (tier == hook.Kprobe) && name != gen.ObjectsProgNumberObject
	})
	for name, p := range spec.Programs {
		if name == gen.ObjectsProgNumberObject {
			continue
		}
		p.Type, p.AttachType, p.AttachTo, p.Flags = ebpf.Syscall, ebpf.AttachNone, "", unix.BPF_F_SLEEPABLE
	}
	const size = 4096
	bpf.AddMemory(spec, size)
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		Programs: ebpf.ProgramOptions{KernelTypes: spec.Types},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(coll.Close)
	p := &objectPrograms{t: t, coll: coll, types: spec.Types, tier: tier, memory: make([]byte, size)}
	p.address = bpf.AddressOf(t, coll.Maps[bpf.Memory])
	return p
}

func (p *objectPrograms) run(name string, context ...uint64) {
	p.t.Helper()
	var b []byte
	for _, v := range context {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	options := ebpf.RunOptions{}
	if b != nil {
		options.Context = b
	}
	if _, err := p.coll.Programs[name].Run(&options); err != nil {
		p.t.Fatalf("%s: %v", name, err)
	}
}

// call runs the programs of the tier on a kernel function with arguments and a return value.
func (p *objectPrograms) call(function string, result uint64, arguments ...uint64) {
	p.t.Helper()
	if p.tier == hook.Kprobe {
		p.enter(function, arguments...)
		if p.coll.Programs["kretprobe_"+function] != nil {
			p.run("kretprobe_"+function, registers(unix.PtraceRegs{Rax: result})...)
		}
		return
	}
	for _, kind := range []string{"fentry_", "fexit_"} {
		if p.coll.Programs[kind+function] != nil {
			p.run(kind+function, append(arguments, result)...)
		}
	}
}

func (p *objectPrograms) enter(function string, arguments ...uint64) {
	p.t.Helper()
	var regs unix.PtraceRegs
	for i, to := range []*uint64{&regs.Rdi, &regs.Rsi, &regs.Rdx, &regs.Rcx, &regs.R8}[:min(len(arguments), 5)] {
		*to = arguments[i]
	}
	p.run("kprobe_"+function, registers(regs)...)
}

// registers returns a struct pt_regs, which has the layout of PtraceRegs.
func registers(regs unix.PtraceRegs) []uint64 {
	return (*[unsafe.Sizeof(regs) / 8]uint64)(unsafe.Pointer(&regs))[:]
}

// put writes a member, such as "ib_mr.res.user", of the object at an offset of the memory.
func (p *objectPrograms) put(at uint32, path string, value uint64) {
	p.t.Helper()
	names := strings.Split(path, ".")
	typ, err := p.types.AnyTypeByName(names[0])
	if err != nil {
		p.t.Fatal(err)
	}
	for _, name := range names[1:] {
		typ = p.member(&at, typ, name)
	}
	size, err := btf.Sizeof(typ)
	if err != nil {
		p.t.Fatal(err)
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], value)
	copy(p.memory[at:], b[:min(size, 8)])
	if err := p.coll.Maps[bpf.Memory].Put(uint32(0), p.memory); err != nil {
		p.t.Fatal(err)
	}
}

func (p *objectPrograms) member(at *uint32, of btf.Type, name string) btf.Type {
	p.t.Helper()
	s, ok := btf.UnderlyingType(of).(*btf.Struct)
	if ok {
		for _, m := range s.Members {
			if m.Name == name {
				*at += m.Offset.Bytes()
				return m.Type
			}
		}
	}
	p.t.Fatalf("%v has no member %s", of, name)
	return nil
}

// Offsets of the fake objects in the memory.
const (
	fakeDevice     = 0
	fakeRegion     = 512
	fakeUmem       = 1024
	fakeAttachment = 1280
	fakeBuffer     = 1536
	fakeModule     = 1792
)

// Values of enum ib_mr_type in include/rdma/ib_verbs.h.
const (
	deviceRegion = 2
	userRegion   = 3
)

// exportedBy sets the exporter of the umem's dma-buf: a module, or the kernel image.
func (p *objectPrograms) exportedBy(module string) {
	p.t.Helper()
	p.put(fakeUmem, "ib_umem_dmabuf.attach", p.address+fakeAttachment)
	p.put(fakeAttachment, "dma_buf_attachment.dmabuf", p.address+fakeBuffer)
	var owner, name uint64
	if module != "" {
		var b [8]byte
		copy(b[:], module)
		owner, name = p.address+fakeModule, binary.LittleEndian.Uint64(b[:])
	}
	p.put(fakeBuffer, "dma_buf.owner", owner)
	p.put(fakeModule, "module.name", name)
}

func (p *objectPrograms) mapDMABuf(function string, result, size uint64) {
	p.t.Helper()
	arguments := []uint64{p.address + fakeDevice, 11, size, 12, 13}
	switch function {
	case "dmabuf_get":
		arguments = append(arguments, 14)
	case "dmabuf_get_pinned_with_dma_device":
		arguments = slices.Insert(arguments, 1, 15)
	}
	p.call(function, result, arguments...)
}

// register creates a memory region of a length and a type of enum ib_mr_type.
func (p *objectPrograms) register(length, typ uint64) {
	p.t.Helper()
	p.put(fakeDevice, "ib_device.index", 3)
	p.put(fakeRegion, "ib_mr.device", p.address+fakeDevice)
	p.put(fakeRegion, "ib_mr.length", length)
	p.put(fakeRegion, "ib_mr.type", typ)
	p.put(fakeRegion, "ib_mr.res.type", uint64(gen.ObjectsObjectTypeTYPE_MR))
	p.put(fakeRegion, "ib_mr.res.user", 1)
	p.call("restrack_add", 0, p.entry())
}

func (p *objectPrograms) entry() uint64 {
	at := uint32(fakeRegion)
	found, err := p.types.AnyTypeByName("ib_mr")
	if err != nil {
		p.t.Fatal(err)
	}
	p.member(&at, found, "res")
	return p.address + uint64(at)
}

// regions returns the number of regions and bytes by kind of memory.
func (p *objectPrograms) regions() kinds {
	p.t.Helper()
	got := kinds{}
	for k, v := range p.holdings() {
		if v.Current != 0 || v.Bytes != 0 {
			got[gen.ObjectsMemory(k.Memory)] = held{v.Current, v.Bytes}
		}
	}
	return got
}

func (p *objectPrograms) holdings() map[gen.ObjectsHoldingKey]gen.ObjectsHolding {
	p.t.Helper()
	got := map[gen.ObjectsHoldingKey]gen.ObjectsHolding{}
	var k gen.ObjectsHoldingKey
	var v gen.ObjectsHolding
	entries := p.coll.Maps[gen.ObjectsMapHoldings].Iterate()
	for entries.Next(&k, &v) {
		got[k] = v
	}
	if err := entries.Err(); err != nil {
		p.t.Fatal(err)
	}
	return got
}

type kinds = map[gen.ObjectsMemory]held

// TestRegionMemory registers memory regions of each kind and destroys them.
func TestRegionMemory(t *testing.T) {
	host, unknown := gen.ObjectsMemoryMEMORY_HOST, gen.ObjectsMemoryMEMORY_UNKNOWN
	type test struct {
		name string
		do   func(p *objectPrograms, umem uint64)
		want kinds
	}
	tests := []test{
		{"host", func(p *objectPrograms, _ uint64) {
			p.register(4096, userRegion)
		}, kinds{host: {1, 4096}}},
		{"with functions that are not hooked", func(p *objectPrograms, _ uint64) {
			p.plain(unknown)
			p.register(4096, userRegion)
		}, kinds{unknown: {1, 4096}}},
		{"implicit ODP", func(p *objectPrograms, _ uint64) {
			p.register(1<<64-1, userRegion)
		}, kinds{gen.ObjectsMemoryMEMORY_IMPLICIT_ODP: {1, 0}}},
		{"device memory", func(p *objectPrograms, _ uint64) {
			p.register(4096, deviceRegion)
		}, kinds{gen.ObjectsMemoryMEMORY_DEVICE: {1, 4096}}},
		{"mapping failed", func(p *objectPrograms, _ uint64) {
			p.mapDMABuf("dmabuf_get", ^uint64(unix.EOPNOTSUPP)+1, 8192)
			p.register(4096, userRegion)
		}, kinds{host: {1, 4096}}},
		{"mapping released", func(p *objectPrograms, umem uint64) {
			p.mapDMABuf("dmabuf_get", umem, 8192)
			p.call("umem_release", 0, umem)
			p.register(4096, userRegion)
		}, kinds{host: {1, 4096}}},
		// Like mlx5's DEVX umem, or the buffer of a CQ.
		{"mapping of another object", func(p *objectPrograms, umem uint64) {
			p.mapDMABuf("dmabuf_get_pinned", umem, 8192)
			p.call("commit_uobject", 0, 0)
			p.register(4096, userRegion)
		}, kinds{host: {1, 4096}}},
	}
	for exporter, memory := range map[string]gen.ObjectsMemory{
		"nvidia": gen.ObjectsMemoryMEMORY_GPU, "nvidia_u": gen.ObjectsMemoryMEMORY_GPU, "amdgpu": gen.ObjectsMemoryMEMORY_GPU,
		"": gen.ObjectsMemoryMEMORY_DMABUF, "udmabuf": gen.ObjectsMemoryMEMORY_DMABUF, "nvme": gen.ObjectsMemoryMEMORY_DMABUF,
	} {
		tests = append(tests, test{"dma-buf of " + exporter, func(p *objectPrograms, umem uint64) {
			p.exportedBy(exporter)
			p.mapDMABuf("dmabuf_get", umem, 8192)
			p.register(4096, userRegion)
		}, kinds{memory: {1, 4096}}})
	}
	for _, h := range dmabufHooks() {
		// The driver leaves the length unset.
		tests = append(tests, test{h.Name, func(p *objectPrograms, umem uint64) {
			p.mapDMABuf(strings.TrimPrefix(h.Name, "ib_umem_"), umem, 8192)
			p.register(0, userRegion)
		}, kinds{gen.ObjectsMemoryMEMORY_GPU: {1, 8192}}})
	}
	tests = append(tests,
		test{"peer memory", func(p *objectPrograms, umem uint64) {
			p.call("peer_umem_get", umem, 11, 12, 13)
			p.register(4096, userRegion)
		}, kinds{gen.ObjectsMemoryMEMORY_GPU: {1, 4096}}},
		test{"no client has the memory", func(p *objectPrograms, _ uint64) {
			p.call("peer_umem_get", ^uint64(unix.EFAULT)+1, 11, 12, 13)
			p.register(4096, userRegion)
		}, kinds{host: {1, 4096}}},
		test{"peer memory released", func(p *objectPrograms, umem uint64) {
			p.call("peer_umem_get", umem, 11, 12, 13)
			p.call("umem_release", 0, umem)
			p.register(4096, userRegion)
		}, kinds{host: {1, 4096}}},
	)
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		for _, c := range tests {
			t.Run(tier+"/"+c.name, func(t *testing.T) {
				p := newObjectPrograms(t, tier)
				p.plain(host)
				p.exportedBy("nvidia")
				c.do(p, p.address+fakeUmem)
				if d := cmp.Diff(c.want, p.regions(), cmp.AllowUnexported(held{})); d != "" {
					t.Errorf("registered (-want +got)\n%s", d)
				}
				p.call("restrack_del", 0, p.entry())
				if left := p.regions(); len(left) > 0 {
					t.Errorf("destroyed, left: %v", left)
				}
				// A mapping belongs to one region.
				p.plain(host)
				p.register(64, userRegion)
				if d := cmp.Diff(kinds{host: {1, 64}}, p.regions(), cmp.AllowUnexported(held{})); d != "" {
					t.Errorf("the next region (-want +got)\n%s", d)
				}
			})
		}
	}
}

// TestMissedMapping: the return of a function that maps a dma-buf or peer memory is missed.
func TestMissedMapping(t *testing.T) {
	for _, h := range append(dmabufHooks(), hook.Hook{Name: peerMemoryHook}) {
		p := newObjectPrograms(t, hook.Kprobe)
		p.plain(gen.ObjectsMemoryMEMORY_HOST)
		p.enter(strings.TrimPrefix(strings.TrimPrefix(h.Name, "ib_umem_"), "ib_"), p.address+fakeDevice, 11, 8192, 8192)
		p.register(4096, userRegion)
		want := kinds{gen.ObjectsMemoryMEMORY_UNKNOWN: {1, 4096}}
		if d := cmp.Diff(want, p.regions(), cmp.AllowUnexported(held{})); d != "" {
			t.Errorf("%s (-want +got)\n%s", h.Name, d)
		}
	}
}

// TestNumberObjects: the return of rdma_restrack_add was missed, so the object has no id. A program reads the id if the
// address still has the same object.
func TestNumberObjects(t *testing.T) {
	for _, c := range []struct {
		name    string
		valid   uint64
		device  uint64 // at the address when the program runs
		numbers bool
	}{{"lives", 1, 3, true}, {"is being created", 0, 3, false}, {"was replaced", 1, 4, false}} {
		p := newObjectPrograms(t, hook.Kprobe)
		p.put(fakeDevice, "ib_device.index", 3)
		p.put(fakeRegion, "ib_mr.device", p.address+fakeDevice)
		p.put(fakeRegion, "ib_mr.res.type", uint64(gen.ObjectsObjectTypeTYPE_MR))
		p.put(fakeRegion, "ib_mr.res.user", 1)
		p.enter("restrack_add", p.entry())
		p.put(fakeRegion, "ib_mr.res.id", 77)
		p.put(fakeRegion, "ib_mr.res.valid", c.valid)
		p.put(fakeDevice, "ib_device.index", c.device)

		s := &tables{objects: &hook.Object{Coll: p.coll}}
		if err := s.number(p.coll.Programs[gen.ObjectsProgNumberObject]); err != nil {
			t.Fatal(err)
		}
		known, unnumbered, err := s.seen()
		if err != nil {
			t.Fatal(err)
		}
		key := gen.ObjectsAdoptedKey{Device: 3, Type: uint32(gen.ObjectsObjectTypeTYPE_MR), Id: 77}
		if known[key] != c.numbers || (len(unnumbered) == 0) != c.numbers {
			t.Errorf("an object that %s: known %v, without an id %v", c.name, known, unnumbered)
		}
	}
}

func (p *objectPrograms) plain(m gen.ObjectsMemory) {
	p.t.Helper()
	if err := p.coll.Variables[gen.ObjectsVarPlainMemory].Set(uint32(m)); err != nil {
		p.t.Fatal(err)
	}
}

func dmabufHooks() (out []hook.Hook) {
	for _, h := range objectHooks {
		if strings.HasPrefix(h.Name, dmabufFunctions) {
			out = append(out, h)
		}
	}
	return out
}

// TestDEVX: DEVX objects of mlx5, and objects of other drivers with the same class. struct ib_uobject describes them to
// all hooks. The device is a FAKE.
func TestDEVX(t *testing.T) {
	const (
		object, umem, later = 0x1001, 0x1002, 0x1fff // enum mlx5_ib_objects
		mlx5, efa           = 1, 17                  // enum rdma_driver_id
		fakeContext         = 2048
		fakeObject          = 2304
		fakeClass           = 2560
	)
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		for _, c := range []struct {
			class, driver uint64
			want          gen.ObjectsObjectType
		}{
			{object, mlx5, gen.ObjectsObjectTypeTYPE_DEVX_OBJ},
			{umem, mlx5, gen.ObjectsObjectTypeTYPE_DEVX_UMEM},
			{later, mlx5, gen.ObjectsObjectTypeTYPE_OTHER},
			{object, efa, gen.ObjectsObjectTypeTYPE_OTHER},
		} {
			p := newObjectPrograms(t, tier)
			p.put(fakeDevice, "ib_device.index", 3)
			p.put(fakeDevice, "ib_device.ops.driver_id", c.driver)
			p.put(fakeContext, "ib_ucontext.device", p.address+fakeDevice)
			p.put(fakeClass, "uverbs_api_object.id", c.class)
			p.put(fakeObject, "ib_uobject.context", p.address+fakeContext)
			p.put(fakeObject, "ib_uobject.uapi_object", p.address+fakeClass)
			held := func() (types map[gen.ObjectsObjectType]uint64) {
				types = map[gen.ObjectsObjectType]uint64{}
				for k, v := range p.holdings() {
					types[gen.ObjectsObjectType(k.Type)] += uint64(v.Current)
				}
				return types
			}
			p.call("commit_uobject", 0, p.address+fakeObject)
			if got := held(); len(got) != 1 || got[c.want] != 1 {
				t.Errorf("%s: class %#x of driver %d: %v, want one of type %d", tier, c.class, c.driver, got, c.want)
			}
			p.call("destroy_uobject", 0, p.address+fakeObject, 0, 0)
			if got := held(); got[c.want] != 0 {
				t.Errorf("%s: class %#x of driver %d: destroyed, left %v", tier, c.class, c.driver, got)
			}
		}
	}
}
