// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	openEvent = "syscalls/sys_enter_openat"
	anyCall   = "sys_enter" // a raw tracepoint
)

func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := Usable(); err != nil {
		t.Fatal(err)
	}
}

// counting returns a program that adds 1 to an element of the map "hits".
func counting(kind ebpf.ProgramType, section, target string, element int64) *ebpf.ProgramSpec {
	p := &ebpf.ProgramSpec{
		Type: kind, SectionName: section + "/" + target, AttachTo: target, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, element, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, 0).WithReference("hits"),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
			asm.Return(),
		},
	}
	if section == "fentry" {
		p.AttachType = ebpf.AttachTraceFEntry
	}
	return p
}

// Elements of the map "hits".
const (
	firstHits = iota
	tracepointHits
	secondHits
	elements
)

func testObject(t *testing.T) *Object {
	t.Helper()
	root(t)
	kernel, err := ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	mapless := counting(ebpf.TracePoint, "tracepoint", openEvent, firstHits)
	mapless.Instructions = append(asm.Instructions{asm.LoadMapPtr(asm.R1, 0).WithReference("refused")}, mapless.Instructions...)
	rejected := counting(ebpf.TracePoint, "tracepoint", openEvent, firstHits)
	rejected.Instructions = asm.Instructions{asm.Return()} // R0 is not set
	spec := &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{
			"hits":    {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: elements},
			"refused": {Type: ebpf.Array, KeySize: 3, ValueSize: 8, MaxEntries: 1},
		},
		Programs: map[string]*ebpf.ProgramSpec{
			// Some machines lack fentry. The guest tests of the sources cover it.
			"first":      counting(ebpf.RawTracepoint, "raw_tracepoint", anyCall, firstHits),
			"tracepoint": counting(ebpf.TracePoint, "tracepoint", openEvent, tracepointHits),
			"second":     counting(ebpf.TracePoint, "tracepoint", openEvent, secondHits),
			"absent":     counting(ebpf.Tracing, "fentry", "no_such_function", firstHits),
			"eventless":  counting(ebpf.TracePoint, "tracepoint", "syscalls/sys_enter_none", firstHits),
			"rejected":   rejected,
			"mapless":    mapless,
		},
	}
	o, err := (*Workloads)(nil).newObject(spec, kernel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	o.Kernel.Functions = present
	return o
}

// hits opens a file and returns which elements increased.
func (o *Object) hits(t *testing.T) (increased [elements]bool) {
	t.Helper()
	var before, after [elements]uint64
	read := func(to *[elements]uint64) {
		for i := range uint32(elements) {
			if err := o.Coll.Maps["hits"].Lookup(i, &to[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	read(&before)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	read(&after)
	for i := range increased {
		increased[i] = after[i] > before[i]
	}
	return increased
}

// present are the functions of a kernel with the first tier's function.
var present = map[string]bool{anyCall: true}

// presentProbed are the functions of a kernel that also has kprobes.
var presentProbed = map[string]bool{anyCall: true, kprobes: true}

func TestAttach(t *testing.T) {
	works := With(Tracepoint, "tracepoint")
	for _, c := range []struct {
		name    string
		hook    Hook
		only    string
		symbols map[string]bool
		want    model.Hook
		reasons []string
		hits    [elements]bool
	}{
		{
			name: "the first tier", hook: Hook{Tiers: []Tier{With(Fentry, "first"), works}}, symbols: present,
			want: model.Hook{Tier: Fentry, State: model.StateOK}, hits: [elements]bool{firstHits: true},
		},
		{
			name: "the order of the hook", hook: Hook{Tiers: []Tier{works, With(Fentry, "first")}}, symbols: present,
			want: model.Hook{Tier: Tracepoint, State: model.StateOK}, hits: [elements]bool{tracepointHits: true},
		},
		{
			name: "the wanted tier", hook: Hook{Tiers: []Tier{With(Fentry, "first"), works}}, only: Tracepoint, symbols: present,
			want: model.Hook{Tier: Tracepoint, State: model.StateOK}, hits: [elements]bool{tracepointHits: true},
		},
		{
			name: "no such tier", hook: Hook{Tiers: []Tier{works}}, only: Fentry, symbols: present,
			want: model.Hook{State: model.StateUnsupported}, reasons: []string{"no tier fentry"},
		},
		{
			name: "the next tier without the function", hook: Hook{Tiers: []Tier{With(Fentry, "absent"), works}}, symbols: present,
			want: model.Hook{Tier: Tracepoint, State: model.StateOK}, hits: [elements]bool{tracepointHits: true},
		},
		{
			name: "no function", hook: Hook{Tiers: []Tier{With(Fentry, "absent"), With(Kprobe, "absent")}}, symbols: presentProbed,
			want: model.Hook{State: model.StateFailed}, reasons: []string{"no function no_such_function"},
		},
		{
			name: "no function, optional", hook: Hook{Optional: true, Tiers: []Tier{With(Fentry, "absent")}}, symbols: present,
			want: model.Hook{State: model.StateUnsupported}, reasons: []string{"no function no_such_function"},
		},
		{
			name: "optional, and its second function is missing", hook: Hook{Optional: true, Tiers: []Tier{With(Fentry, "first", "absent")}},
			symbols: map[string]bool{anyCall: true, "open": true},
			want:    model.Hook{State: model.StateFailed}, reasons: []string{"no function no_such_function"},
		},
		{
			name: "the second function is missing", hook: Hook{Tiers: []Tier{With(Fentry, "first", "absent")}}, symbols: present,
			want: model.Hook{State: model.StateFailed}, reasons: []string{"no function no_such_function"},
		},
		{
			name: "a kernel without the function", hook: Hook{Tiers: []Tier{With(Fentry, "first"), works}},
			symbols: map[string]bool{},
			want:    model.Hook{Tier: Tracepoint, State: model.StateOK}, hits: [elements]bool{tracepointHits: true},
		},
		{
			name: "a kernel without kprobes", hook: Hook{Tiers: []Tier{With(Kprobe, "first")}}, symbols: present,
			want: model.Hook{State: model.StateUnsupported}, reasons: []string{"no kprobes (CONFIG_KPROBES)"},
		},
		{
			name: "a rejected program", hook: Hook{Tiers: []Tier{With(Tracepoint, "rejected")}}, symbols: present,
			want: model.Hook{State: model.StateFailed}, reasons: []string{"tracepoint: ", "R0 !read_ok"},
		},
		{
			name: "a rejected program, optional", hook: Hook{Optional: true, Tiers: []Tier{With(Tracepoint, "rejected")}}, symbols: present,
			want: model.Hook{State: model.StateUnsupported}, reasons: []string{"tracepoint: ", "R0 !read_ok"},
		},
		{
			name: "a refused map", hook: Hook{Tiers: []Tier{With(Tracepoint, "mapless")}}, symbols: present,
			want: model.Hook{State: model.StateFailed}, reasons: []string{"program mapless: map refused: map create: invalid argument"},
		},
		{
			name: "a program that must not be attached", symbols: present,
			hook: Hook{Tiers: []Tier{works}, Check: func(*ebpf.Program) error { return model.ErrUnsupported }},
			want: model.Hook{State: model.StateUnsupported}, reasons: []string{"tracepoint: tracepoint: unsupported"},
		},
		{
			name: "only loaded", hook: Hook{Tiers: []Tier{Loading(Kprobe, "tracepoint")}}, symbols: present,
			want: model.Hook{Tier: Kprobe, State: model.StateOK},
		},
		{
			name: "the next tier after a rejected program", hook: Hook{Tiers: []Tier{With(RawTracepoint, "rejected"), works}},
			symbols: present, want: model.Hook{Tier: Tracepoint, State: model.StateOK}, hits: [elements]bool{tracepointHits: true},
		},
		{
			name: "every reason", hook: Hook{Tiers: []Tier{With(Fentry, "absent"), With(Tracepoint, "rejected")}}, symbols: present,
			want: model.Hook{State: model.StateFailed}, reasons: []string{"no_such_function; tracepoint: ", "R0 !read_ok"},
		},
		{
			name: "all programs of a tier", hook: Hook{Tiers: []Tier{With(Tracepoint, "tracepoint", "second")}}, symbols: present,
			want: model.Hook{Tier: Tracepoint, State: model.StateOK},
			hits: [elements]bool{tracepointHits: true, secondHits: true},
		},
		{
			name: "none of a tier", hook: Hook{Tiers: []Tier{With(Tracepoint, "tracepoint", "eventless")}}, symbols: present,
			want: model.Hook{State: model.StateFailed}, reasons: []string{"attaching eventless"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := testObject(t)
			c.hook.Name, c.want.Name = "open", "open"
			o.Kernel.Functions = c.symbols
			got := o.Attach(c.hook, c.only)
			for _, reason := range c.reasons {
				if !strings.Contains(got.Reason, reason) {
					t.Errorf("reason %q without %q", got.Reason, reason)
				}
			}
			if len(c.reasons) == 0 && got.Reason != "" {
				t.Errorf("reason %q", got.Reason)
			}
			if got.Err != nil && !strings.Contains(got.Reason, got.Err.Error()) {
				t.Errorf("the error is %v, the reason %q", got.Err, got.Reason)
			}
			if got.Reason, got.Err = "", nil; got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if hits := o.hits(t); hits != c.hits {
				t.Errorf("hits %v, want %v", hits, c.hits)
			}
			if o.Detach(); o.hits(t) != [elements]bool{} {
				t.Error("hit after Detach")
			}
		})
	}
}

// TestAttachModuleTypes has a hook on a function of a module without type information.
func TestAttachModuleTypes(t *testing.T) {
	o := testObject(t)
	o.Kernel.Modules = nil
	h := Hook{Reads: UverbsStructures, Tiers: []Tier{With(Tracepoint, "tracepoint")}}
	if got := o.Attach(h, ""); got.State != model.StateUnsupported || !strings.Contains(got.Reason, "CONFIG_DEBUG_INFO_BTF_MODULES") {
		t.Errorf("%+v", got)
	}
	if o.hits(t) != [elements]bool{} {
		t.Error("attached")
	}
}

// TestAttachWithoutType: a function is in /proc/kallsyms but not in the kernel's types: ebpf.ErrNotSupported.
func TestAttachWithoutType(t *testing.T) {
	o := testObject(t)
	o.Kernel.Functions = map[string]bool{"no_such_function": true}
	for optional, want := range map[bool]model.State{false: model.StateFailed, true: model.StateUnsupported} {
		h := Hook{Optional: optional, Tiers: []Tier{With(Fentry, "absent")}}
		got := o.Attach(h, "")
		if got.State != want || !strings.HasPrefix(got.Reason, "fentry: ") {
			t.Errorf("optional %v: %+v, want %v", optional, got, want)
		}
	}
}

// TestRefusedMap: the other maps are made.
func TestRefusedMap(t *testing.T) {
	o := testObject(t)
	if o.Coll.Maps["refused"] != nil || o.Coll.Maps["hits"] == nil || len(o.Coll.Programs) != 0 || len(o.refused) != 1 {
		t.Errorf("maps %v, programs %v, refused %v", o.Coll.Maps, o.Coll.Programs, o.refused)
	}
}

// TestRefusal: for which errors a retry helps.
func TestRefusal(t *testing.T) {
	root(t)
	for err, refused := range map[error]bool{
		syscall.EPERM: true, syscall.EACCES: true, syscall.EINVAL: true, ebpf.ErrNotSupported: true, syscall.ENOMEM: false, syscall.EMFILE: false,
	} {
		if got := refusal(fmt.Errorf("loading: %w", err)); !errors.Is(got, err) || errors.Is(got, ErrRefused) != refused {
			t.Errorf("%v: %v, refused %v", err, got, errors.Is(got, ErrRefused))
		}
	}
	guess := fmt.Errorf("load program: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", syscall.EPERM)
	if got := WithoutGuess(guess); !errors.Is(got, syscall.EPERM) || strings.Contains(got.Error(), "MEMLOCK") {
		t.Error(got)
	}
	if err := Unsupported(refusal(syscall.EINVAL)); !errors.Is(err, model.ErrUnsupported) {
		t.Error(err)
	}
	if err := Unsupported(syscall.ENOMEM); errors.Is(err, model.ErrUnsupported) {
		t.Error(err)
	}
}

// TestSymbolsOf: the compiler may make copies of a static function, with other names.
func TestSymbolsOf(t *testing.T) {
	for _, test := range []struct{ symbols, want string }{
		{"f g", "f"},
		{"f f.isra.0 g", "f f.isra.0"},
		{"f.isra.0 f.cold f.isra.0.cold f.part.0 f_more.isra.0", "f.isra.0"},
		{"f.constprop.0 f.constprop.1", "f.constprop.0 f.constprop.1"},
		{"f.isra.0.constprop.0", "f.isra.0.constprop.0"},
		{"f.llvm.10794532468721", "f.llvm.10794532468721"},
		{"f.part.0 ff", ""},
	} {
		all := map[string]bool{}
		for s := range strings.FieldsSeq(test.symbols) {
			all[s] = true
		}
		if got := strings.Join(symbolsOf("f", all), " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.symbols, got, test.want)
		}
	}
}

// TestClosed: a hook of a closed object is not attached; the reason of a hook that could not be attached remains.
func TestClosed(t *testing.T) {
	why := fmt.Errorf("hook b: why: %w", model.ErrUnsupported)
	hooks := []model.Hook{
		{Name: "a", Tier: "kprobe", State: model.StateOK}, {Name: "b", State: model.StateFailed, Reason: "why"}, {Name: "c", State: model.StateOK},
	}
	for i, h := range Closed(hooks, why) {
		want := model.Hook{Name: hooks[i].Name, State: model.StateUnsupported, Reason: why.Error(), Err: why}
		if i == 1 {
			want = hooks[i]
		}
		if h != want {
			t.Errorf("%+v, want %+v", h, want)
		}
	}
}

// TestMissing: the first required hook that is not attached.
func TestMissing(t *testing.T) {
	all := []Hook{{Name: "a"}, {Name: "b", Required: true}}
	failed := model.Hook{Name: "b", State: model.StateFailed, Reason: "why", Err: ErrRefused}
	if err := Missing(all, []model.Hook{{Name: "a", State: model.StateFailed}, {Name: "b", State: model.StateOK}}); err != nil {
		t.Error(err)
	}
	if err := Missing(all, []model.Hook{{Name: "a", State: model.StateOK}, failed}); !errors.Is(err, model.ErrUnsupported) || err.Error() != "hook b: why" {
		t.Error(err)
	}
}

// TestClose: Close closes all links, programs and maps.
func TestClose(t *testing.T) {
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	testObject(t).Close() // opens files that the runtime and the library keep
	before := descriptors()
	o := testObject(t)
	for _, tier := range []Tier{With(Fentry, "first"), With(Tracepoint, "tracepoint", "second")} {
		if got := o.Attach(Hook{Tiers: []Tier{tier}}, ""); got.State != model.StateOK {
			t.Fatalf("%+v", got)
		}
	}
	o.Attach(Hook{Tiers: []Tier{With(Tracepoint, "tracepoint", "eventless")}}, "") // closes its files
	if len(o.links) != 3 || len(o.progs) != 3 {
		t.Errorf("%d links, %d programs, want 3", len(o.links), len(o.progs))
	}
	if during := descriptors(); during < before+len(o.links)+len(o.progs) {
		t.Errorf("%d descriptors, %d before", during, before)
	}
	o.Close()
	if after := descriptors(); after != before {
		t.Errorf("%d descriptors after Close, %d before", after, before)
	}
}

// TestMissed: the count of detached programs is kept.
func TestMissed(t *testing.T) {
	o := testObject(t)
	o.skipped = 7
	o.Attach(Hook{Tiers: []Tier{With(Fentry, "first")}}, "")
	if n := o.Missed(); n != 7 {
		t.Errorf("%d missed, want 7", n)
	}
	o.Detach()
	if n := o.Missed(); n != 7 {
		t.Errorf("%d missed after Detach, want 7", n)
	}
}

type slowCloser struct {
	t          *testing.T
	begun, all chan struct{}
}

func (c slowCloser) Close() error {
	c.begun <- struct{}{}
	select {
	case <-c.all:
	case <-time.After(10 * time.Second):
		c.t.Error("the other Close calls have not begun")
	}
	return errors.New("ignored")
}

// TestCloseAll: CloseAll closes concurrently. Each close waits until all have begun.
func TestCloseAll(t *testing.T) {
	const n = 3
	c := slowCloser{t, make(chan struct{}), make(chan struct{})}
	go func() {
		for range n {
			<-c.begun
		}
		close(c.all)
	}()
	CloseAll([]io.Closer{c, c, c})
	select {
	case <-c.all:
	default:
		t.Error("closeAll returned before the last Close")
	}
}
