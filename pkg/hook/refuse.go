// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// ErrRefused reports that the kernel does not load a program or make a map: the verifier rejects it, or the kernel
// lacks a feature or denies permission. A retry does not help.
var ErrRefused = errors.New("refused by the kernel")

// Refused reports whether the kernel, or this machine, does not run a program.
func Refused(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, model.ErrUnsupported)
}

// refusal adds ErrRefused to an error of loading a program or making a map, unless memory or a capability is missing.
func refusal(err error) error {
	err = WithoutGuess(err)
	for _, passing := range []error{syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, passing) {
			return err
		}
	}
	if err == nil || !capable() {
		return err
	}
	return model.WithReason(err, ErrRefused)
}

// WithoutGuess removes the guess of the BPF library from an error: it names RLIMIT_MEMLOCK for each EPERM, but Usable
// has raised this limit, and doctor checks it.
func WithoutGuess(err error) error {
	if errors.Is(err, syscall.EPERM) {
		return syscall.EPERM
	}
	return err
}

// capable reports whether this thread has the capabilities for loading and attaching tracing programs.
func capable() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return false
	}
	has := func(capability int) bool { return sets[capability/32].Effective>>(capability%32)&1 != 0 }
	return has(unix.CAP_SYS_ADMIN) || has(unix.CAP_BPF) && has(unix.CAP_PERFMON)
}

// Unsupported adds model.ErrUnsupported to the error of a source whose programs the kernel refuses.
func Unsupported(err error) error {
	if errors.Is(err, ErrRefused) {
		return model.WithReason(err, model.ErrUnsupported)
	}
	return err
}

// Missing returns the error of the first required hook that is not attached. hooks has the states of all, in the same
// order.
func Missing(all []Hook, hooks []model.Hook) error {
	for i := range all {
		if all[i].Required && hooks[i].State != model.StateOK {
			return Unsupported(fmt.Errorf("hook %w", Failure(hooks[i])))
		}
	}
	return nil
}

// Closed returns the states of the hooks of an object that was closed because of err: attached hooks are detached.
func Closed(hooks []model.Hook, err error) []model.Hook {
	closed := slices.Clone(hooks)
	for i := range closed {
		if closed[i].State == model.StateOK {
			closed[i] = model.Hook{Name: closed[i].Name, State: model.StateUnsupported, Reason: err.Error(), Err: err}
		}
	}
	return closed
}

// makeMaps makes the maps of an object one by one, and returns the errors of refused maps. shared are maps of other
// objects.
func makeMaps(spec *ebpf.CollectionSpec, kernel *Kernel, shared map[string]*ebpf.Map) (*ebpf.Collection, map[string]error, error) {
	base, refused := *spec, map[string]error{}
	base.Programs, base.Maps, base.Variables = nil, maps.Clone(spec.Maps), maps.Clone(spec.Variables)
	made := maps.Clone(shared)
	if made == nil {
		made = map[string]*ebpf.Map{}
	}
	for name := range base.Maps {
		if made[name] != nil {
			continue
		}
		m, err := makeMap(&base, kernel, name)
		if err = refusal(err); errors.Is(err, ErrRefused) {
			refused[name] = err
			delete(base.Maps, name)
			maps.DeleteFunc(base.Variables, func(_ string, v *ebpf.VariableSpec) bool { return v.SectionName == name })
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		defer m.Close() //nolint:errcheck // the collection has a descriptor of its own
		made[name] = m
	}
	coll, err := ebpf.NewCollectionWithOptions(&base, ebpf.CollectionOptions{Cache: kernel.Cache, MapReplacements: made})
	return coll, refused, err
}

func makeMap(of *ebpf.CollectionSpec, kernel *Kernel, name string) (*ebpf.Map, error) {
	one := *of
	one.Maps = map[string]*ebpf.MapSpec{name: of.Maps[name]}
	one.Variables = maps.Clone(of.Variables)
	maps.DeleteFunc(one.Variables, func(_ string, v *ebpf.VariableSpec) bool { return v.SectionName != name })
	coll, err := ebpf.NewCollectionWithOptions(&one, ebpf.CollectionOptions{Cache: kernel.Cache})
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	return coll.DetachMap(name), nil
}

// readOnly is the map with the constants of an object.
const readOnly = ".rodata"

// collection loads programs with the maps of the object and the constants of a spec.
func (o *Object) collection(of *ebpf.CollectionSpec, programs ...string) (*ebpf.Collection, error) {
	spec := *of
	spec.Programs, spec.Maps, spec.Variables = map[string]*ebpf.ProgramSpec{}, maps.Clone(of.Maps), maps.Clone(of.Variables)
	for _, name := range programs {
		if err := o.unmade(of.Programs[name]); err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
		spec.Programs[name] = of.Programs[name]
	}
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return o.refused[name] != nil })
	maps.DeleteFunc(spec.Variables, func(_ string, v *ebpf.VariableSpec) bool { return o.refused[v.SectionName] != nil })
	shared := maps.Clone(o.Coll.Maps)
	if of != o.Compiled {
		delete(shared, readOnly)
	}
	coll, err := ebpf.NewCollectionWithOptions(&spec, ebpf.CollectionOptions{
		Cache: o.Kernel.Cache, MapReplacements: shared, Programs: ebpf.ProgramOptions{KernelTypes: o.targets},
	})
	return coll, refusal(err)
}

// unmade returns the error of a refused map that a program uses.
func (o *Object) unmade(p *ebpf.ProgramSpec) error {
	for i := range p.Instructions {
		if err := o.refused[p.Instructions[i].Reference()]; err != nil {
			return err
		}
	}
	return nil
}
