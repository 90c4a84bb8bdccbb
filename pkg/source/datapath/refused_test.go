// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestRefusedParts refuses each program, map and helper in turn. On a machine without InfiniBand, there are no hooks in the kernel.
func TestRefusedParts(t *testing.T) {
	bpf.Root(t)
	defer hook.Hold()()
	path, sites := buildFake(t)
	r := bpf.Refusal{
		Hooks: slices.Concat(kernelHooks, programHooks), Provides: map[string][]string{"datapath_outstanding": {"Stalled", "QueuePairWaits"}},
		Loads: []func() (*ebpf.CollectionSpec, error){gen.LoadDatapath},
	}
	inKernel := kernelHooks
	if !bpf.InGuest() {
		r.Hooks, inKernel = programHooks, nil
	}
	r.Attach = func(t *testing.T, of []*ebpf.CollectionSpec) ([]model.Hook, *model.Snapshot, error) {
		k, hooks, err := open("/sys", bpf.Compiled((&Options{}).spec(), of[0]), inKernel)
		if err != nil {
			return hooks, nil, err
		}
		defer k.close()
		k.checkProbes(t, path, sites)
		s := newTestSource(Options{}, func() {})
		s.meter.setKernel(k, hooks, nil)
		snap, err := s.Read(t.Context())
		return hooks, &snap, err
	}
	r.Run(t)
}

// checkProbes: a function whose program is refused is not probed, and others are.
func (k *kernel) checkProbes(t *testing.T, path string, sites []locate.Site) {
	t.Helper()
	for _, s := range sites {
		refused := k.refused[functionPrograms[s.Function].entry]
		if refused == nil && s.Function != locate.PostSend {
			continue
		}
		probe, err := k.probe(half{Target: target{Place: s}})(path)
		if !errors.Is(err, refused) || err != nil && !errors.Is(err, hook.ErrRefused) {
			t.Errorf("probe of function %d: %v, want %v", s.Function, err, refused)
		}
		if err == nil {
			_ = probe.Close()
		}
	}
}

// TestNothingAttached: without a required hook, no hook is reported as attached.
func TestNothingAttached(t *testing.T) {
	bpf.Root(t)
	k, hooks, err := newKernel(Options{Sysfs: "/sys"})
	if err == nil {
		k.close()
		t.Skip("this kernel has InfiniBand: TestPadded takes the types of its structures away (make test-kernels)")
	}
	if len(hooks) != len(kernelHooks)+len(programHooks) {
		t.Errorf("%d hooks", len(hooks))
	}
	for _, h := range hooks {
		if h.State == model.StateOK || h.Reason == "" {
			t.Errorf("%+v", h)
		}
	}
}
