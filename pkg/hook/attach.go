// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Tiers, best first.
const (
	Fentry     = "fentry"
	Kprobe     = "kprobe"
	Tracepoint = "tracepoint"
	// RawTracepoint is not one of the tiers to try in order: a hook with it has no other tier.
	RawTracepoint = "raw_tracepoint"
)

// A Hook is one kernel function, or several functions that must be hooked together. Programs
// are attached in this order, ends before beginnings, so that no end of a recorded beginning
// is missed.
type Hook struct {
	Name  string
	Tiers []Tier
	// Optional: kernels without the function need no hook.
	Optional bool
	// Reads are the structures of RDMA modules that the programs read.
	Reads Structures
}

// A Tier is one method of attaching a hook, with the names of its programs.
type Tier struct {
	Name     string
	Programs []string
}

// With returns the tier with a name and programs.
func With(name string, programs ...string) Tier { return Tier{name, programs} }

// An Object is one compiled BPF object: its maps, which all its programs share,
// and its attached programs.
type Object struct {
	// Coll has the maps and variables, no programs.
	Coll *ebpf.Collection
	// Owners limits the entries of owners; nil if no map of the object has a share per owner.
	Owners *Owners

	spec  *ebpf.CollectionSpec
	progs []*ebpf.Program
	// skipped counts the missed runs of detached programs.
	skipped uint64
	links   []link.Link
	types   *Types
	targets *btf.Spec // the types that programs are relocated against
	differ  error     // why these are ambiguous
	omit    string
}

// NewObject creates the maps of a compiled object. omit is a map that kprobe programs do not
// use, because kernels that need kprobes lack its type; it may be empty.
func NewObject(spec *ebpf.CollectionSpec, types *Types, omit string) (*Object, error) {
	return (*Workloads)(nil).NewObject(spec, types, omit)
}

// NewObject creates the maps of a compiled object that it does not share with the others. w may be nil.
func (w *Workloads) NewObject(spec *ebpf.CollectionSpec, types *Types, omit string) (*Object, error) {
	base := spec.Copy()
	base.Programs = nil
	delete(base.Maps, omit)
	coll, err := ebpf.NewCollectionWithOptions(base, ebpf.CollectionOptions{Cache: types.Cache, MapReplacements: w.Replacements(spec)})
	if err != nil {
		return nil, fmt.Errorf("making the BPF maps: %w", err)
	}
	o := &Object{spec: spec, Coll: coll, Owners: NewOwners(coll), types: types, omit: omit}
	if o.targets, err = types.targets(spec); err != nil {
		o.Close()
		return nil, fmt.Errorf("types of the kernel: %w", err)
	}
	o.differ = ambiguous(spec, o.targets)
	return o, nil
}

// Readable returns an error if programs must not read these structures.
func (o *Object) Readable(s Structures) error {
	err := o.types.readable(s)
	if err == nil && s != NoStructures {
		err = o.differ
	}
	return err
}

// ProgramOptions returns the options with which programs of the object are loaded.
func (o *Object) ProgramOptions() ebpf.ProgramOptions {
	return ebpf.ProgramOptions{KernelTypes: o.targets}
}

// Attach tries the tiers of a hook, or only the given one, and keeps the first one with all
// programs attached. symbols are the functions of the kernel.
func (o *Object) Attach(h Hook, only string, symbols map[string]bool) model.Hook {
	out := model.Hook{Name: h.Name, State: model.StateUnsupported, Reason: "no tier " + only + " for this hook"}
	if only == "" {
		out.Reason = ""
	}
	if err := o.Readable(h.Reads); err != nil {
		out.Reason, out.Err = err.Error(), err
		return out
	}
	for _, t := range h.Tiers {
		if only != "" && t.Name != only {
			continue
		}
		if t.Name == Kprobe && !symbols[kprobes] {
			addReason(&out, "kprobe: this kernel has no kprobes (CONFIG_KPROBES)")
			continue
		}
		if t.Name == Fentry || t.Name == Kprobe {
			if missing := o.missing(t, symbols); missing != "" {
				out.State, out.Reason = model.StateFailed, "this kernel has no function "+missing
				if h.Optional {
					out.State = model.StateUnsupported
				}
				continue
			}
		}
		links, progs, err := o.load(t)
		if err == nil {
			o.links, o.progs = append(o.links, links...), append(o.progs, progs...)
			return model.Hook{Name: h.Name, Tier: t.Name, State: model.StateOK}
		}
		out.State = model.StateFailed
		if h.Optional && errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, btf.ErrNotFound) {
			out.State = model.StateUnsupported
		}
		addReason(&out, fmt.Sprintf("%s: %v", t.Name, err))
		out.Err = errors.Join(out.Err, err)
	}
	return out
}

func addReason(h *model.Hook, reason string) {
	if h.Reason != "" {
		h.Reason += "; "
	}
	h.Reason += reason
}

// Failure returns the error of a hook that is not attached.
func Failure(h model.Hook) error {
	return model.WithReason(fmt.Errorf("%s: %s", h.Name, h.Reason), h.Err)
}

// Failures returns the errors of the hooks that failed.
func Failures(hooks []model.Hook) error {
	var errs []error
	for _, h := range hooks {
		if h.State == model.StateFailed {
			errs = append(errs, Failure(h))
		}
	}
	return errors.Join(errs...)
}

// missing returns the first function of a tier that the kernel does not have.
func (o *Object) missing(t Tier, symbols map[string]bool) string {
	for _, name := range t.Programs {
		if fn := o.spec.Programs[name].AttachTo; !symbols[fn] {
			return fn
		}
	}
	return ""
}

// collection loads programs with the maps of the object. omit is a map that they do not use; it may be empty.
func (o *Object) collection(omit string, programs ...string) (*ebpf.CollectionSpec, *ebpf.Collection, error) {
	spec := o.spec.Copy()
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(programs, name) })
	delete(spec.Maps, omit)
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		Cache:           o.types.Cache,
		MapReplacements: o.Coll.Maps,
		Programs:        o.ProgramOptions(),
	})
	return spec, coll, err
}

// load loads and attaches the programs of one tier, all or none.
func (o *Object) load(t Tier) (links []link.Link, progs []*ebpf.Program, err error) {
	omit := ""
	if t.Name == Kprobe {
		omit = o.omit
	}
	spec, coll, err := o.collection(omit, t.Programs...)
	if errors.Is(err, syscall.EPERM) {
		// The library guesses that RLIMIT_MEMLOCK is the reason, but it was raised (Usable).
		err = syscall.EPERM
	}
	if err != nil {
		return nil, nil, err
	}
	defer coll.Close()
	for _, name := range t.Programs {
		l, err := attachProgram(coll.Programs[name], spec.Programs[name])
		if err != nil {
			CloseAll(links)
			CloseAll(progs)
			return nil, nil, fmt.Errorf("attaching %s: %w", name, err)
		}
		links, progs = append(links, l), append(progs, coll.DetachProgram(name))
	}
	return links, progs, nil
}

// Load loads a program of the object, such as an iterator, which is not attached.
func (o *Object) Load(name string) (*ebpf.Program, error) {
	_, coll, err := o.collection(o.omit, name)
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return coll.DetachProgram(name), nil
}

// Iterate runs a loaded iterator once and returns what it wrote.
func Iterate(o link.IterOptions) ([]byte, error) {
	it, err := link.AttachIter(o)
	if err != nil {
		return nil, err
	}
	defer it.Close() //nolint:errcheck // nothing was written
	r, err := it.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // only read
	return io.ReadAll(r)
}

func attachProgram(p *ebpf.Program, spec *ebpf.ProgramSpec) (link.Link, error) {
	switch kind, _, _ := strings.Cut(spec.SectionName, "/"); kind {
	case "fentry", "fexit":
		return link.AttachTracing(link.TracingOptions{Program: p})
	case "kprobe":
		return link.Kprobe(spec.AttachTo, p, nil)
	case "kretprobe":
		// With the kernel's default limit of concurrent calls, twice the CPUs: a larger one
		// uses tracefs and would remain after a crash of the sensor.
		return link.Kretprobe(spec.AttachTo, p, nil)
	case "raw_tracepoint":
		return link.AttachRawTracepoint(link.RawTracepointOptions{Name: spec.AttachTo, Program: p})
	}
	group, name, _ := strings.Cut(spec.AttachTo, "/")
	return link.Tracepoint(group, name, p, nil)
}

// Missed counts the runs of programs that the kernel skipped, also of those that were detached. Missed returns are not among
// them.
func (o *Object) Missed() uint64 { return o.skipped + Missed(o.progs, o.links) }

// Missed counts the runs of programs that the kernel skipped because a program or kprobe was
// running on that CPU. Kernels before 5.12 do not report them, those before 6.7 not for kprobes.
// Missed returns are not among them.
func Missed(progs []*ebpf.Program, links []link.Link) (n uint64) {
	for _, p := range progs {
		if stats, err := p.Stats(); err == nil {
			n += stats.RecursionMisses
		}
	}
	for _, l := range links {
		if info, err := l.Info(); err == nil {
			if event := info.PerfEvent(); event != nil && event.Type == link.PerfEventKprobe {
				n += event.Kprobe().Missed
			}
		}
	}
	return n
}

// Detach detaches all programs, those that pin a module first.
func (o *Object) Detach() {
	before := o.Missed() // a closed link has no information
	CloseAll(o.links)
	o.links = nil
	o.skipped = max(before, o.Missed())
	CloseAll(o.progs)
	o.links, o.progs = nil, nil
}

// CloseAll closes concurrently: each close waits for its own grace period.
func CloseAll[C io.Closer](list []C) {
	var wg safely.Group
	for _, c := range list {
		wg.Go(func() { _ = c.Close() })
	}
	wg.Wait()
}

// Attached frees data that only attaching needs: type information takes megabytes.
func (o *Object) Attached() { o.types, o.targets, o.spec = nil, nil, nil }

// Close detaches all programs and closes the maps.
func (o *Object) Close() {
	o.Detach()
	o.Coll.Close()
}
