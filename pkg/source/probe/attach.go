// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// An object is one compiled BPF object: its maps, which all its programs share,
// and its attached programs.
type object struct {
	spec  *ebpf.CollectionSpec
	coll  *ebpf.Collection // maps and variables, no programs
	progs []*ebpf.Program
	// skipped are the missed runs of programs that are gone.
	skipped uint64
	links   []link.Link
	types   *kernelTypes
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
	n := o.skipped
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
	o.skipped = o.missed()
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
