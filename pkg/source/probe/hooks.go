// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// Tiers, best first.
const (
	fentry     = "fentry"
	kprobe     = "kprobe"
	tracepoint = "tracepoint"
	// rawTracepoint is no tier of the ladder: the one hook that has it has no other.
	rawTracepoint = "raw_tracepoint"
)

// A hook is one function, or several that make sense only together. Programs
// are attached in this order: ends before beginnings, so that nothing is seen
// to begin whose end would be missed.
type hook struct {
	name  string
	tiers []tier
	// optional: kernels without the function are complete without it.
	optional bool
	// moduleTypes: reads types that only the BTF of ib_uverbs describes.
	moduleTypes bool
}

type tier struct {
	name     string
	programs []string
}

var verbHooks = []hook{
	{name: "ib_uverbs_ioctl", tiers: []tier{
		{fentry, []string{gen.VerbsProgFexitIoctl, gen.VerbsProgFentryIoctl}},
		{kprobe, []string{gen.VerbsProgKretprobeIoctl, gen.VerbsProgKprobeIoctl}},
		{tracepoint, []string{gen.VerbsProgExitIoctl, gen.VerbsProgEnterIoctl}},
	}},
	{name: "ib_uverbs_write", tiers: []tier{
		{fentry, []string{gen.VerbsProgFexitWrite, gen.VerbsProgFentryWrite}},
		{kprobe, []string{gen.VerbsProgKretprobeWrite, gen.VerbsProgKprobeWrite}},
		{tracepoint, []string{gen.VerbsProgExitWrite, gen.VerbsProgEnterWrite}},
	}},
}

// Objects are made and deleted some thousand times a second at the very most,
// so what counts is not the cost of a hook but that it waits for no one: kprobes
// do not pin the module they are on, and fentry programs of one function are
// skipped when one preempts another. Each function that loses its last fentry
// program costs a grace period of 0.1 s and more, one after the other, and a
// driver reload would wait for all of them.
var objectHooks = []hook{
	// Destruction in steps: since 2026, and in the stable kernels that took it.
	{name: "rdma_restrack_begin_del", optional: true, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKprobeRestrackCommitDel, gen.ObjectsProgKprobeRestrackAbortDel,
			gen.ObjectsProgKprobeRestrackBeginDel,
		}},
		{fentry, []string{
			gen.ObjectsProgFentryRestrackCommitDel, gen.ObjectsProgFentryRestrackAbortDel,
			gen.ObjectsProgFentryRestrackBeginDel,
		}},
	}},
	{name: "rdma_restrack_add", tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKprobeRestrackDel, gen.ObjectsProgKretprobeRestrackAdd, gen.ObjectsProgKprobeRestrackAdd,
		}},
		{fentry, []string{gen.ObjectsProgFentryRestrackDel, gen.ObjectsProgFexitRestrackAdd}},
	}},
	{name: "rdma_alloc_commit_uobject", optional: true, moduleTypes: true, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKretprobeDestroyUobject, gen.ObjectsProgKprobeDestroyUobject,
			gen.ObjectsProgKprobeCommitUobject,
		}},
		{fentry, []string{gen.ObjectsProgFexitDestroyUobject, gen.ObjectsProgFentryCommitUobject}},
	}},
	{name: "ib_umem_dmabuf_get", optional: true, moduleTypes: true, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKprobeUmemRelease, gen.ObjectsProgKretprobeDmabufGet, gen.ObjectsProgKprobeDmabufGet,
		}},
		{fentry, []string{gen.ObjectsProgFentryUmemRelease, gen.ObjectsProgFexitDmabufGet}},
	}},
	{name: "ib_umem_dmabuf_get_pinned", optional: true, moduleTypes: true, tiers: []tier{
		{kprobe, []string{gen.ObjectsProgKretprobeDmabufGetPinned, gen.ObjectsProgKprobeDmabufGetPinned}},
		{fentry, []string{gen.ObjectsProgFexitDmabufGetPinned}},
	}},
}

// cgroupHook names the cgroups that are gone before anybody could look.
var cgroupHook = hook{name: "cgroup_mkdir", optional: true, tiers: []tier{
	{rawTracepoint, []string{gen.CgroupsProgCgroupMade}},
}}

// restrackHook is the hook without which no object can be counted.
const restrackHook = "rdma_restrack_add"

// usable tells whether BPF is allowed at all, with the cure.
func usable() error {
	// 5.10 charges maps to RLIMIT_MEMLOCK; newer kernels need nothing raised.
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raising RLIMIT_MEMLOCK (run as root or with CAP_SYS_RESOURCE): %w", err)
	}
	if err := features.HaveMapType(ebpf.Hash); err != nil {
		if errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("BPF is not allowed (run as root, or with CAP_BPF and CAP_PERFMON): %w", err)
		}
		return fmt.Errorf("%w: BPF: %w", model.ErrUnsupported, err)
	}
	return nil
}

// unattached are all hooks in one state.
func unattached(reason string, state model.State) []model.Hook {
	var out []model.Hook
	for _, h := range slices.Concat(verbHooks, objectHooks, []hook{cgroupHook}) {
		out = append(out, model.Hook{Name: h.name, State: state, Reason: reason})
	}
	return out
}

type tierList []string

func (t tierList) String() string { return strings.Join(t, " ") }

// tiersOf tells the tier of each attached hook.
func tiersOf(hooks []model.Hook) tierList {
	var out tierList
	for _, h := range hooks {
		if h.State == model.StateOK {
			out = append(out, h.Name+"="+h.Tier)
		}
	}
	return out
}

// An object is one compiled BPF object: its maps, which all its programs share,
// and its attached programs.
type object struct {
	spec  *ebpf.CollectionSpec
	coll  *ebpf.Collection // maps and variables, no programs
	progs []*ebpf.Program
	links []link.Link
	types *kernelTypes
}

// perTask is the map that kprobe programs do without; 5.10 has no such type.
const perTask = gen.VerbsMapTaskCalls

func newObject(spec *ebpf.CollectionSpec, types *kernelTypes) (*object, error) {
	base := spec.Copy()
	base.Programs = nil
	delete(base.Maps, perTask)
	coll, err := ebpf.NewCollectionWithOptions(base, ebpf.CollectionOptions{Cache: types.cache})
	if err != nil {
		return nil, fmt.Errorf("making the BPF maps: %w", err)
	}
	return &object{spec: spec, coll: coll, types: types}, nil
}

// attach tries the tiers of a hook and keeps the first whose programs all attach.
func (o *object) attach(h hook, only string, symbols map[string]bool) model.Hook {
	out := model.Hook{Name: h.name, State: model.StateUnsupported, Reason: "no tier " + only + " for this hook"}
	if only == "" {
		out.Reason = ""
	}
	if h.moduleTypes && len(o.types.modules) == 0 {
		out.Reason = "ib_uverbs of this kernel has no type information (CONFIG_DEBUG_INFO_BTF_MODULES)"
		return out
	}
	for _, t := range h.tiers {
		if only != "" && t.name != only {
			continue
		}
		if t.name == fentry || t.name == kprobe {
			if missing := o.missing(t, symbols); missing != "" {
				out.State, out.Reason = model.StateFailed, "this kernel has no function "+missing
				if h.optional {
					out.State = model.StateUnsupported
				}
				continue
			}
		}
		links, progs, err := o.load(t)
		if err == nil {
			o.links, o.progs = append(o.links, links...), append(o.progs, progs...)
			return model.Hook{Name: h.name, Tier: t.name, State: model.StateOK}
		}
		out.State = model.StateFailed
		if h.optional && errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, btf.ErrNotFound) {
			out.State = model.StateUnsupported
		}
		if out.Reason != "" {
			out.Reason += "; "
		}
		out.Reason += fmt.Sprintf("%s: %v", t.name, err)
	}
	return out
}

// missing names the first function of a tier that the kernel does not have.
func (o *object) missing(t tier, symbols map[string]bool) string {
	for _, name := range t.programs {
		if fn := o.spec.Programs[name].AttachTo; !symbols[fn] {
			return fn
		}
	}
	return ""
}

// load loads and attaches the programs of one tier, all or none.
func (o *object) load(t tier) (links []link.Link, progs []*ebpf.Program, err error) {
	spec := o.spec.Copy()
	for name := range spec.Programs {
		if !slices.Contains(t.programs, name) {
			delete(spec.Programs, name)
		}
	}
	if t.name == kprobe {
		delete(spec.Maps, perTask)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		Cache:           o.types.cache,
		MapReplacements: o.coll.Maps,
		Programs: ebpf.ProgramOptions{
			KernelTypes:            o.types.kernel,
			ExtraRelocationTargets: o.types.modules,
		},
	})
	if err != nil {
		return nil, nil, err
	}
	defer coll.Close()
	for _, name := range t.programs {
		l, err := attachProgram(coll.Programs[name], spec.Programs[name])
		if err != nil {
			closeAll(links)
			closeAll(progs)
			return nil, nil, fmt.Errorf("attaching %s: %w", name, err)
		}
		links, progs = append(links, l), append(progs, coll.DetachProgram(name))
	}
	return links, progs, nil
}

func attachProgram(p *ebpf.Program, spec *ebpf.ProgramSpec) (link.Link, error) {
	switch kind, _, _ := strings.Cut(spec.SectionName, "/"); kind {
	case "fentry", "fexit":
		return link.AttachTracing(link.TracingOptions{Program: p})
	case "kprobe":
		return link.Kprobe(spec.AttachTo, p, nil)
	case "kretprobe":
		// With the kernel's own bound of calls under way, twice the CPUs: a
		// larger one goes through tracefs and would outlive a crash of ours.
		return link.Kretprobe(spec.AttachTo, p, nil)
	case "raw_tracepoint":
		return link.AttachRawTracepoint(link.RawTracepointOptions{Name: spec.AttachTo, Program: p})
	}
	group, name, _ := strings.Cut(spec.AttachTo, "/")
	return link.Tracepoint(group, name, p, nil)
}

// missed counts the runs of programs that the kernel skipped, because the same
// program was at work on that CPU; kernels before 5.12 do not tell.
func (o *object) missed() uint64 {
	var n uint64
	for _, p := range o.progs {
		if stats, err := p.Stats(); err == nil {
			n += stats.RecursionMisses
		}
	}
	return n
}

// detach ends all programs. What holds a module goes first.
func (o *object) detach() {
	closeAll(o.links)
	closeAll(o.progs)
	o.links, o.progs = nil, nil
}

// closeAll closes side by side: each waits for a grace period of its own.
func closeAll[C io.Closer](list []C) {
	var wg sync.WaitGroup
	for _, c := range list {
		wg.Go(func() { _ = c.Close() })
	}
	wg.Wait()
}

func (o *object) close() {
	o.detach()
	o.coll.Close()
}

// kernelTypes is the BTF that the programs are relocated against: that of the
// kernel and of the two modules that they look into, and of no other.
type kernelTypes struct {
	cache   *btf.Cache
	kernel  *btf.Spec
	modules []*btf.Spec
}

func loadTypes() (*kernelTypes, error) {
	t := &kernelTypes{cache: btf.NewCache()}
	var err error
	if t.kernel, err = t.cache.Kernel(); err != nil {
		return nil, fmt.Errorf("%w: type information of the kernel (CONFIG_DEBUG_INFO_BTF): %w", model.ErrUnsupported, err)
	}
	for _, name := range []string{"ib_core", "ib_uverbs"} {
		// Kernels before 5.11 and drivers from outside the kernel have none.
		if spec, err := t.cache.Module(name); err == nil {
			t.modules = append(t.modules, spec)
		}
	}
	return t, nil
}

// subsystem is the value of a cgroup v1 controller in the kernel's enum
// cgroup_subsys_id, which depends on its configuration; -1 for cgroup v2.
func (t *kernelTypes) subsystem(name string) (int32, error) {
	if name == "" {
		return -1, nil
	}
	var enum *btf.Enum
	if err := t.kernel.TypeByName("cgroup_subsys_id", &enum); err != nil {
		return 0, fmt.Errorf("cgroup v1 controllers of this kernel: %w", err)
	}
	for _, v := range enum.Values {
		if v.Name == name+"_cgrp_id" {
			return int32(v.Value), nil
		}
	}
	return 0, fmt.Errorf("%w: this kernel has no cgroup v1 controller %s", model.ErrUnsupported, name)
}

// kernelSymbols tells which of the functions that the hooks name exist, from
// /proc/kallsyms: names are there even when addresses are hidden.
func kernelSymbols(specs ...*ebpf.CollectionSpec) (map[string]bool, error) {
	wanted := map[string]bool{}
	for _, spec := range specs {
		for _, p := range spec.Programs {
			wanted[p.AttachTo] = true
		}
	}
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("functions of this kernel: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	found := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// "ffffffffc0a1b2c3 t ib_uverbs_write	[ib_uverbs]"
		line := lines.Bytes()
		if len(line) < 20 {
			continue
		}
		name := line[19:]
		for i, c := range name {
			if c == '\t' || c == ' ' {
				name = name[:i]
				break
			}
		}
		if wanted[string(name)] {
			found[string(name)] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("functions of this kernel: %w", err)
	}
	return found, nil
}
