// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

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
	// RawTracepoint is the only tier of its hooks.
	RawTracepoint = "raw_tracepoint"
)

// Tiers of hooks that have no other tier, and whose programs Attach only loads.
const (
	Iterator = "iterator" // user space reads what the program writes
	Run      = "run"      // user space runs the program (BPF_PROG_RUN)
	Uprobe   = "uprobe"   // the source attaches the programs to functions of processes
)

// A Hook is the BPF programs that provide one signal. The kernel may refuse a hook without loss for the others.
// Programs are attached in this order, ends before beginnings, so that the end of a recorded beginning is not missed.
type Hook struct {
	Name  string
	Tiers []Tier
	// Optional: a kernel without the function Name needs no hook, and a kernel that refuses the programs lacks a minor
	// signal.
	Optional bool
	// Required: without this hook the source provides nothing.
	Required bool
	// Reads are the structures of RDMA modules that the programs read.
	Reads Structures
	// Check returns an error if a loaded program must not be attached. It may be nil.
	Check func(*ebpf.Program) error
}

// A Tier is a method of attaching a hook, with the names of its programs.
type Tier struct {
	Name     string
	Programs []string
	// loads: Attach only loads the programs.
	loads bool
}

// With returns a tier whose programs Attach attaches.
func With(name string, programs ...string) Tier { return Tier{Name: name, Programs: programs} }

// Loading returns a tier whose programs Attach loads, and the source attaches or runs.
func Loading(name string, programs ...string) Tier {
	return Tier{Name: name, Programs: programs, loads: true}
}

// An Object is a compiled BPF object: its maps, which all its programs share, and its attached programs.
type Object struct {
	// Coll has the maps and variables, but no programs.
	Coll *ebpf.Collection
	// Owners limits the entries of owners. It is nil if the maps have no share per owner.
	Owners *Owners
	// Entries are the entries of each map at the last read. The source sets them, Fill reads them.
	Entries map[string]uint64
	// Kernel and Compiled are nil after Open: they take megabytes, and only attaching needs them.
	Kernel   *Kernel
	Compiled *ebpf.CollectionSpec

	report Report
	progs  []*ebpf.Program // attached programs
	// loaded are the programs of hooks that are only loaded, by name. They stay until Close: the source may run them
	// after Detach.
	loaded map[string]*ebpf.Program
	// refused are the maps that the kernel did not make. Programs that do not use them work.
	refused map[string]error
	// skipped counts the missed runs of detached programs.
	skipped uint64
	links   []link.Link
	kprobes []link.Link // of links: those with a count of missed runs. Each costs a scrape system calls
	targets *btf.Spec   // programs are relocated against these types
	differ  error       // why the types are ambiguous
}

// newObject creates the maps that the compiled object does not share with other objects. w may be nil. The kernel may
// refuse a map, as Linux before 5.11 refuses task storage, and then it refuses the programs that use it.
func (w *Workloads) newObject(spec *ebpf.CollectionSpec, kernel *Kernel) (*Object, error) {
	coll, refused, err := makeMaps(spec, kernel, w.Replacements(spec))
	if err != nil {
		return nil, fmt.Errorf("making the BPF maps: %w", err)
	}
	o := &Object{
		Compiled: spec, Coll: coll, Owners: NewOwners(coll), Entries: map[string]uint64{}, Kernel: kernel,
		refused: refused, loaded: map[string]*ebpf.Program{},
	}
	if o.targets, err = kernel.targets(spec); err != nil {
		o.Close()
		return nil, fmt.Errorf("types of the kernel: %w", err)
	}
	o.differ = ambiguous(spec, o.targets)
	return o, nil
}

// Readable returns an error if programs must not read these structures.
func (o *Object) Readable(s Structures) error {
	err := o.Kernel.readable(s)
	if err == nil && s != NoStructures {
		err = o.differ
	}
	return err
}

// Program returns a program that a hook only loads (Loading), or nil if the hook is not attached.
func (o *Object) Program(name string) *ebpf.Program { return o.loaded[name] }

// Unattached returns the state of a hook that was not tried.
func (h *Hook) Unattached(reason string) model.Hook {
	return model.Hook{Name: h.Name, State: model.StateUnsupported, Reason: reason}
}

// States returns hooks that are all in one state.
func States(all []Hook, reason string, state model.State) []model.Hook {
	out := make([]model.Hook, 0, len(all))
	for i := range all {
		out = append(out, model.Hook{Name: all[i].Name, State: state, Reason: reason})
	}
	return out
}

// AttachAll attaches hooks in turn.
func (o *Object) AttachAll(all []Hook, only string) []model.Hook {
	out := make([]model.Hook, 0, len(all))
	for _, h := range all {
		out = append(out, o.Attach(h, only))
	}
	return out
}

// Attach tries the tiers of a hook, or only the given tier, and keeps the first tier whose programs all attach.
func (o *Object) Attach(h Hook, only string) model.Hook {
	functions := o.Kernel.Functions
	out := model.Hook{Name: h.Name, State: model.StateUnsupported, Reason: "no tier " + only + " for this hook"}
	if only == "" {
		out.Reason = ""
	}
	if err := o.Readable(h.Reads); err != nil {
		out.Reason, out.Err = err.Error(), err
		return out
	}
	var refused error
	for _, t := range h.Tiers {
		if only != "" && t.Name != only {
			continue
		}
		if !t.loads && t.Name == Kprobe && !functions[kprobes] {
			addReason(&out, "kprobe: this kernel has no kprobes (CONFIG_KPROBES)")
			continue
		}
		if !t.loads && (t.Name == Fentry || t.Name == Kprobe) {
			if missing := o.missing(t); missing != "" {
				out.State, out.Reason = model.StateFailed, "this kernel has no function "+missing
				if h.Optional && !functions[h.Name] {
					out.State = model.StateUnsupported
				}
				continue
			}
		}
		err := o.load(t, h.Check)
		if err == nil {
			return model.Hook{Name: h.Name, Tier: t.Name, State: model.StateOK}
		}
		out.State = model.StateFailed
		minor := h.Optional && (errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, ErrRefused))
		if minor || errors.Is(err, btf.ErrNotFound) || errors.Is(err, model.ErrUnsupported) {
			out.State = model.StateUnsupported
		}
		addReason(&out, fmt.Sprintf("%s: %v", t.Name, err))
		if errors.Is(err, ErrRefused) {
			refused = errors.Join(refused, err)
		} else {
			out.Err = errors.Join(out.Err, err)
		}
	}
	// A retry helps if one tier failed for another reason.
	out.Err = cmp.Or(out.Err, refused)
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

// missing returns the first function of a tier that the kernel lacks.
func (o *Object) missing(t Tier) string {
	for _, name := range t.Programs {
		fn := o.Compiled.Programs[name].AttachTo
		if !o.Kernel.Functions[fn] && (t.Name != Kprobe || len(symbolsOf(fn, o.Kernel.Functions)) == 0) {
			return fn
		}
	}
	return ""
}

// symbolsOf returns the symbols of a function: its name, and the compiler's copies of a static function (.isra.0,
// .constprop.0, .llvm.N), which may be called instead. A part of a function (.part.0, .cold) does not count.
func symbolsOf(function string, symbols map[string]bool) (found []string) {
	for s := range symbols {
		suffix, isCopy := strings.CutPrefix(s, function+".")
		if s == function || isCopy && !strings.Contains(suffix, "part.") && !strings.Contains(suffix, "cold") {
			found = append(found, s)
		}
	}
	slices.Sort(found)
	return found
}

// load loads and attaches all programs of a tier, or fails. check is the field Check of the hook.
func (o *Object) load(t Tier, check func(*ebpf.Program) error) error {
	coll, err := o.Variant(o.Compiled, check, t.Programs...)
	if err != nil {
		return err
	}
	defer coll.Close()
	var links []link.Link
	for _, name := range t.Programs {
		if t.loads {
			break
		}
		attached, err := attachProgram(coll.Programs[name], o.Compiled.Programs[name], o.Kernel.Functions)
		links = append(links, attached...)
		if err != nil {
			CloseAll(links)
			return fmt.Errorf("attaching %s: %w", name, err)
		}
	}
	o.links = append(o.links, links...)
	for _, l := range links {
		if kprobeOf(l) != nil {
			o.kprobes = append(o.kprobes, l)
		}
	}
	for _, name := range t.Programs {
		if p := coll.DetachProgram(name); t.loads {
			o.loaded[name] = p
		} else {
			o.progs = append(o.progs, p)
		}
	}
	return nil
}

// Variant loads programs with the maps of the object and the constants of spec: Compiled, or a copy with other values.
// check is the field Check of a hook.
func (o *Object) Variant(spec *ebpf.CollectionSpec, check func(*ebpf.Program) error, programs ...string) (*ebpf.Collection, error) {
	coll, err := o.collection(spec, programs...)
	if err != nil {
		return nil, err
	}
	for _, name := range programs {
		if check == nil {
			break
		}
		if err := check(coll.Programs[name]); err != nil {
			coll.Close()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return coll, nil
}

// Iterate runs a loaded iterator once and returns its output.
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

// attachProgram attaches a program. Links that it returns with an error are attached.
func attachProgram(p *ebpf.Program, spec *ebpf.ProgramSpec, symbols map[string]bool) ([]link.Link, error) {
	switch kind, _, _ := strings.Cut(spec.SectionName, "/"); kind {
	case "fentry", "fexit":
		return one(link.AttachTracing(link.TracingOptions{Program: p}))
	case "kprobe":
		return toAll(symbolsOf(spec.AttachTo, symbols), p, link.Kprobe)
	case "kretprobe":
		// The kernel's default limit of concurrent calls is twice the CPUs. A larger limit uses tracefs and outlives a
		// crash of the sensor.
		return toAll(symbolsOf(spec.AttachTo, symbols), p, link.Kretprobe)
	case "raw_tracepoint":
		return one(link.AttachRawTracepoint(link.RawTracepointOptions{Name: spec.AttachTo, Program: p}))
	}
	group, name, _ := strings.Cut(spec.AttachTo, "/")
	return one(link.Tracepoint(group, name, p, nil))
}

func one(l link.Link, err error) ([]link.Link, error) {
	if err != nil {
		return nil, err
	}
	return []link.Link{l}, nil
}

func toAll(
	symbols []string, p *ebpf.Program, attach func(string, *ebpf.Program, *link.KprobeOptions) (link.Link, error),
) (links []link.Link, err error) {
	for _, s := range symbols {
		l, err := attach(s, p, nil)
		if err != nil {
			return links, err
		}
		links = append(links, l)
	}
	return links, nil
}

// Missed counts the runs of programs that the kernel skipped, including detached programs, but not missed returns.
func (o *Object) Missed() uint64 { return o.skipped + Missed(o.progs, o.kprobes) }

// Missed counts the runs of programs that the kernel skipped because a program or kprobe was running on that CPU.
// Kernels before 5.12 do not report skipped runs, and kernels before 6.7 do not for kprobes. Missed returns are not
// included.
func Missed(progs []*ebpf.Program, links []link.Link) (n uint64) {
	for _, p := range progs {
		if stats, err := p.Stats(); err == nil {
			n += stats.RecursionMisses
		}
	}
	for _, l := range links {
		if k := kprobeOf(l); k != nil {
			n += k.Missed
		}
	}
	return n
}

// kprobeOf returns what the kernel says of a link to a kprobe; nil: it is another link, or the kernel says nothing.
func kprobeOf(l link.Link) *link.KprobeInfo {
	info, err := l.Info()
	if err != nil {
		return nil
	}
	if event := info.PerfEvent(); event != nil && event.Type == link.PerfEventKprobe {
		return event.Kprobe()
	}
	return nil
}

// Detach detaches all programs, first the programs that pin a module.
func (o *Object) Detach() {
	before := o.Missed() // a closed link has no information
	CloseAll(o.links)
	o.links, o.kprobes = nil, nil
	o.skipped = max(before, o.Missed())
	CloseAll(o.progs)
	o.links, o.progs = nil, nil
}

// CloseAll closes concurrently, because each close waits for its own grace period.
func CloseAll[C io.Closer](list []C) {
	var wg safely.Group
	for _, c := range list {
		wg.Go(func() { _ = c.Close() })
	}
	wg.Wait()
}

// Close detaches all programs and closes the maps.
func (o *Object) Close() {
	o.Detach()
	for _, p := range o.loaded {
		_ = p.Close()
	}
	o.Coll.Close()
}
