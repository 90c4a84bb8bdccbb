// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

var rdmaPrefixes = []string{"ib_", "rdma_", "uverbs_", "opa_"}

func isRDMA(name string) bool {
	return slices.ContainsFunc(rdmaPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// targets returns the types that the programs of an object are relocated against: the kernel's types with the same
// names.
func (k *Kernel) targets(spec *ebpf.CollectionSpec) (*btf.Spec, error) {
	if spec.Types == nil {
		return k.Types, nil
	}
	var b btf.Builder
	added := map[string]bool{}
	for local, err := range spec.Types.All() {
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(local.TypeName(), "___") // the rest distinguishes variants of a type
		if name == "" || !hasMembers(local) || added[name] {
			continue
		}
		added[name] = true
		found, err := k.find(name)
		if err != nil {
			return nil, fmt.Errorf("type %s: %w", name, err)
		}
		for _, typ := range found {
			if _, err := b.Add(typ); err != nil {
				return nil, fmt.Errorf("type %s: %w", name, err)
			}
		}
	}
	return b.Spec()
}

// find returns the types of the kernel with a name. Types of RDMA modules come from the modules: the kernel image may
// describe the same structure in another layout, and relocation against both would be ambiguous.
func (k *Kernel) find(name string) ([]btf.Type, error) {
	if !isRDMA(name) {
		found, err := layoutsOf(name, k.Types)
		if len(found) > 0 || err != nil {
			return found, err
		}
		return layoutsOf(name, k.Modules...)
	}
	if k.refused != nil {
		return nil, nil
	}
	found, err := layoutsOf(name, k.Modules...)
	// The BTF of modules in the kernel leaves out types that equal a type of the kernel image. The BTF in a file is
	// complete.
	if len(found) > 0 || err != nil || k.files {
		return found, err
	}
	return layoutsOf(name, k.Types)
}

// layoutsOf returns the distinct layouts of the types with a name.
func layoutsOf(name string, specs ...*btf.Spec) (found []btf.Type, err error) {
	for _, spec := range specs {
		types, err := spec.AnyTypesByName(name)
		if err != nil && !errors.Is(err, btf.ErrNotFound) {
			return nil, err
		}
		for _, typ := range types {
			if !hasMembers(typ) {
				continue // a forward declaration, a function
			}
			typ = layout(typ)
			if !slices.ContainsFunc(found, func(other btf.Type) bool { return reflect.DeepEqual(typ, other) }) {
				found = append(found, typ)
			}
		}
	}
	return found, nil
}

// ambiguous returns an error if a program reads a structure that the modules describe in several ways.
func ambiguous(spec *ebpf.CollectionSpec, targets *btf.Spec) error {
	for name, p := range spec.Programs {
		if _, err := btf.CORERelocate(relocations(p), []*btf.Spec{targets}, spec.ByteOrder, anyID); err != nil {
			return fmt.Errorf("%w: %s contradict each other: program %s: %w", ErrTypes, strings.Join(rdmaModules, " and "), name, err)
		}
	}
	return nil
}

func relocations(p *ebpf.ProgramSpec) (found []*btf.CORERelocation) {
	for i := range p.Instructions {
		if r := btf.CORERelocationMetadata(&p.Instructions[i]); r != nil {
			found = append(found, r)
		}
	}
	return found
}

func anyID(btf.Type) (btf.TypeID, error) { return 0, nil }

// hasMembers reports whether a type is a complete structure, union or enumeration.
func hasMembers(typ btf.Type) bool {
	switch typ.(type) {
	case *btf.Struct, *btf.Union, *btf.Enum:
		return true
	}
	return false
}

// layout returns a copy of a type without qualifiers, type names and pointer targets: relocation needs nothing else.
func layout(typ btf.Type) btf.Type {
	switch typ := btf.UnderlyingType(typ).(type) {
	case *btf.Pointer:
		return &btf.Pointer{Target: (*btf.Void)(nil)}
	case *btf.Array:
		return &btf.Array{Index: layout(typ.Index), Type: layout(typ.Type), Nelems: typ.Nelems}
	case *btf.Struct:
		return &btf.Struct{Name: typ.Name, Size: typ.Size, Members: layouts(typ.Members)}
	case *btf.Union:
		return &btf.Union{Name: typ.Name, Size: typ.Size, Members: layouts(typ.Members)}
	default:
		return typ
	}
}

func layouts(members []btf.Member) []btf.Member {
	out := slices.Clone(members)
	for i := range out {
		out[i].Type, out[i].Tags = layout(out[i].Type), nil
	}
	return out
}
