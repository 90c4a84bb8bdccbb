// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"errors"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestRefusedParts refuses each program, map and helper in turn. All functions have the same programs: if a program is missing, the
// source is unsupported.
func TestRefusedParts(t *testing.T) {
	bpf.Root(t)
	spec, err := gen.LoadGPUMemory()
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKernel((&Options{}).spec())
	if err != nil {
		bpf.Skip(t, err)
	}
	k.close()
	for _, part := range bpf.Parts(spec) {
		changed := spec.Copy()
		used := bpf.Refuse(changed, part)
		k, err := newKernel(bpf.Compiled((&Options{}).spec(), changed))
		t.Logf("%-30s %v", part, err)
		switch {
		case err == nil:
			k.close()
			// The kernel removes calls that it never makes before it looks at them.
			if len(used) > 0 && !strings.HasPrefix(part.String(), "helper") {
				t.Errorf("%s is refused, and %v work", part, used)
			}
		case !errors.Is(err, model.ErrUnsupported) || len(used) == 0:
			t.Errorf("%s, which %v use: %v", part, used, err)
		}
	}
}

// TestRefusedFunction: the kernel refuses the programs of one function. Others are probed.
func TestRefusedFunction(t *testing.T) {
	s, err := newSource((&holders{}).options(t))
	if err != nil {
		bpf.Skip(t, err)
	}
	defer s.kernel.close()
	s.kernel.refused[1] = hook.ErrRefused
	if h := s.loop.hookOf(1); h.State != model.StateUnsupported || h.Reason != hook.ErrRefused.Error() {
		t.Errorf("%+v", h)
	}
	if h := s.loop.hookOf(0); h.State != model.StateAbsent {
		t.Errorf("%+v", h)
	}
	if _, err := s.kernel.probe(&place{function: 1}, 0, true)("/proc/self/exe"); !errors.Is(err, hook.ErrRefused) {
		t.Errorf("attached: %v", err)
	}
}
