// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// A Part is a program, a map or a helper function that a kernel may refuse.
type Part struct{ Kind, Name string }

// The kinds of a Part.
const (
	program   = "program"
	mapOfSpec = "map"
	helper    = "helper"
)

// String returns the kind and the name.
func (p Part) String() string { return p.Kind + " " + p.Name }

// Parts returns the programs of a compiled object, its maps, and the helpers that the programs call.
func Parts(spec *ebpf.CollectionSpec) []Part {
	found := map[Part]bool{}
	for name := range spec.Maps {
		found[Part{mapOfSpec, name}] = true
	}
	for name, p := range spec.Programs {
		found[Part{program, name}] = true
		for i := range p.Instructions {
			if p.Instructions[i].IsBuiltinCall() {
				found[Part{helper, nameOf(&p.Instructions[i])}] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}

func nameOf(call *asm.Instruction) string { return fmt.Sprint(asm.BuiltinFunc(call.Constant)) }

// noHelper is the number of a helper that no kernel has.
const noHelper = 1 << 20

// Refuse changes a compiled object so that the kernel refuses a part of it, and returns the programs that use the part.
func Refuse(spec *ebpf.CollectionSpec, part Part) (programs []string) {
	if m := spec.Maps[part.Name]; part.Kind == mapOfSpec && m != nil {
		m.Type = ebpf.MapType(1 << 20) // no such type
	}
	for name, p := range spec.Programs {
		uses := part == Part{program, name}
		if uses {
			p.Instructions = asm.Instructions{asm.Return()} // R0 is not set
		}
		for i := range p.Instructions {
			at := &p.Instructions[i]
			switch {
			case part.Kind == mapOfSpec && at.Reference() == part.Name:
				uses = true
			case part.Kind == helper && at.IsBuiltinCall() && nameOf(at) == part.Name:
				uses, at.Constant = true, noHelper
			}
		}
		if uses {
			programs = append(programs, name)
		}
	}
	return programs
}

// Skip skips the test of a program that this kernel refuses. In a guest it fails the test: the guests' kernels refuse
// no program.
func Skip(t testing.TB, refused error) {
	t.Helper()
	if InGuest() {
		t.Fatal(refused)
	}
	t.Skip(refused)
}

// Root skips the test without root, and lifts the limit that some kernels charge maps and programs to.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 charge maps and programs to it, as in hook.Usable
		t.Fatal(err)
	}
}

// Compiled has Open use compiled objects, which a test may have changed.
func Compiled(spec hook.Spec, compiled *ebpf.CollectionSpec) hook.Spec {
	spec.Load = func() (*ebpf.CollectionSpec, error) { return compiled, nil }
	return spec
}

// InGuest reports whether the test runs in a guest of tests/suites/e2e.
func InGuest() bool { return os.Getenv("ACCELSCOPE_GUEST") != "" }

// A Refusal is a test that refuses each part of a source in turn.
type Refusal struct {
	// Hooks are the hooks of the source.
	Hooks []hook.Hook
	// Needs are the hooks without which a hook is useless.
	Needs map[string][]string
	// Basis are hooks; the source needs at least one.
	Basis []string
	// Provides are the lists of a model.Snapshot that are nil without a hook. Lists of several hooks are nil if all of
	// them are missing.
	Provides map[string][]string
	// Loads return the compiled objects.
	Loads []func() (*ebpf.CollectionSpec, error)
	// Attach attaches the hooks of compiled objects and reads a snapshot. The error is the source's.
	Attach func(t *testing.T, of []*ebpf.CollectionSpec) ([]model.Hook, *model.Snapshot, error)
}

// Run refuses each part that a hook uses on this kernel. It checks that exactly the hooks that need the part are lost,
// or have another tier, with the reason, and that each lost hook loses what it provides.
func (r *Refusal) Run(t *testing.T) {
	tiers := r.tiers(t)
	all := r.want(tiers, nil)
	for of, spec := range r.load(t) {
		for _, part := range Parts(spec) {
			specs := r.load(t)
			want := r.want(tiers, Refuse(specs[of], part))
			if maps.Equal(want, all) {
				continue
			}
			t.Run(strings.ReplaceAll(part.String(), " ", "_"), func(t *testing.T) {
				hooks, snap, err := r.Attach(t, specs)
				if part.Kind == helper {
					keep(want, tiers, hooks)
				}
				r.check(t, part, tiers, want, hooks, snap, err)
			})
		}
	}
}

func (r *Refusal) load(t *testing.T) (specs []*ebpf.CollectionSpec) {
	t.Helper()
	for _, load := range r.Loads {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, spec)
	}
	return specs
}

// tiers returns the supported tiers of each hook, best first: without the programs of a tier, the next tier is
// attached. The last tier of a hook stays, because the source may be useless without the hook.
func (r *Refusal) tiers(t *testing.T) map[string][]string {
	t.Helper()
	supported := map[string][]string{}
	var without []string
	for range maxTiers {
		specs := r.load(t)
		for _, spec := range specs {
			for _, name := range without {
				Refuse(spec, Part{program, name})
			}
		}
		hooks, _, err := r.Attach(t, specs)
		for i, h := range hooks {
			if h.State != model.StateOK || slices.Contains(supported[h.Name], h.Tier) {
				continue
			}
			supported[h.Name] = append(supported[h.Name], h.Tier)
			if tiers := r.Hooks[i].Tiers; h.Tier != tiers[len(tiers)-1].Name {
				without = append(without, programsOf(&r.Hooks[i], h.Tier)...)
			}
		}
		if len(supported) == 0 {
			Skip(t, err)
		}
	}
	return supported
}

const maxTiers = 3

func programsOf(h *hook.Hook, tier string) []string {
	i := slices.IndexFunc(h.Tiers, func(t hook.Tier) bool { return t.Name == tier })
	return h.Tiers[i].Programs
}

// want returns the tier of each hook without some programs; a hook without a tier is lost.
func (r *Refusal) want(tiers map[string][]string, without []string) map[string]string {
	want := map[string]string{}
	affected := func(name string) bool { return slices.Contains(without, name) }
	for i := range r.Hooks {
		h := &r.Hooks[i]
		for _, tier := range tiers[h.Name] {
			if want[h.Name] == "" && !slices.ContainsFunc(programsOf(h, tier), affected) {
				want[h.Name] = tier
			}
		}
	}
	for range r.Hooks { // a hook may need another, which needs a third
		for name, needed := range r.Needs {
			if slices.ContainsFunc(needed, func(n string) bool { return len(tiers[n]) > 0 && want[n] == "" }) {
				delete(want, name)
			}
		}
	}
	return want
}

// keep adds the hooks that work although a helper is refused: the kernel removes unreachable calls before it looks at
// them.
func keep(want map[string]string, tiers map[string][]string, hooks []model.Hook) {
	for _, h := range hooks {
		if h.State == model.StateOK && slices.Contains(tiers[h.Name], h.Tier) {
			want[h.Name] = h.Tier
		}
	}
}

func (r *Refusal) check(
	t *testing.T, part Part, tiers map[string][]string, want map[string]string, hooks []model.Hook, snap *model.Snapshot, err error,
) {
	t.Helper()
	works := true
	var lost []string
	for i, h := range r.Hooks {
		got := hooks[i]
		// Without the source, attachable hooks are released.
		if snap != nil && (got.Name != h.Name || got.Tier != want[h.Name] || (got.Reason == "") != (want[h.Name] != "")) {
			t.Errorf("hook %d is %+v, want %s with tier %q", i, got, h.Name, want[h.Name])
		}
		if want[h.Name] == "" && len(tiers[h.Name]) > 0 {
			lost = append(lost, h.Name)
			works = works && !h.Required
		}
	}
	if snap == nil {
		if !errors.Is(err, model.ErrUnsupported) || works && !r.useless(tiers, lost) {
			t.Errorf("the source is lost with %v: %v", lost, err)
		}
		t.Logf("%-40s the source: %v", part, err)
		return
	}
	if !works || r.useless(tiers, lost) {
		t.Errorf("the source works without %v", lost)
	}
	if len(lost) == 0 {
		t.Logf("%-40s nothing", part)
		return
	}
	t.Logf("%-40s hooks: %s; facts: %s", part, strings.Join(lost, " "), strings.Join(r.gone(t, tiers, lost, snap), " "))
}

// useless reports whether the kernel supports hooks of the basis, and all of them are lost.
func (r *Refusal) useless(tiers map[string][]string, lost []string) bool {
	supported := slices.DeleteFunc(slices.Clone(r.Basis), func(name string) bool { return len(tiers[name]) == 0 })
	left := slices.DeleteFunc(slices.Clone(supported), func(name string) bool { return slices.Contains(lost, name) })
	return len(supported) > 0 && len(left) == 0
}

// gone returns the lists that no hook provides any more. It checks that these lists are nil, and no others.
func (r *Refusal) gone(t *testing.T, tiers map[string][]string, lost []string, snap *model.Snapshot) (gone []string) {
	t.Helper()
	provided := map[string]bool{}
	for name, facts := range r.Provides {
		for _, list := range facts {
			provided[list] = provided[list] || len(tiers[name]) > 0 && !slices.Contains(lost, name)
		}
	}
	for list, want := range provided {
		if got := !reflect.ValueOf(snap).Elem().FieldByName(list).IsNil(); got != want {
			t.Errorf("%s is collected: %v, want %v", list, got, want)
		}
		if !want {
			gone = append(gone, list)
		}
	}
	slices.Sort(gone)
	return gone
}
