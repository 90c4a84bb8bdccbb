// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestRefusedParts refuses each program, map and helper in turn. Without InfiniBand the machine has tracepoints and
// cgroups only.
func TestRefusedParts(t *testing.T) {
	bpf.Root(t)
	defer hook.Hold()()
	opts := Options{Sysfs: "/sys", MaxEntries: 64, MaxObjects: 64, Logger: zap.NewNop()}
	verbs, objects := []string{"Verbs", "VerbErrors"}, []string{"Objects", "Created", "Registered"}
	r := bpf.Refusal{
		Hooks:    slices.Concat(verbHooks, objectHooks, []hook.Hook{numberHook, existingHook, peersHook, cgroupHook}),
		Basis:    []string{verbHooks[0].Name, verbHooks[1].Name, restrackHook},
		Provides: map[string][]string{verbHooks[0].Name: verbs, verbHooks[1].Name: verbs, restrackHook: objects},
		Needs: map[string][]string{
			restrackHook: {stepsHook}, stepsHook: {restrackHook}, numberHook.Name: {restrackHook}, peersHook.Name: {restrackHook},
			existingHook.Name: {uobjectHook},
		},
		Loads: []func() (*ebpf.CollectionSpec, error){gen.LoadVerbs, gen.LoadObjects, gen.LoadPeers, gen.LoadCgroups},
		Attach: func(t *testing.T, of []*ebpf.CollectionSpec) ([]model.Hook, *model.Snapshot, error) {
			specs := opts.specs()
			for i, s := range specs.all() {
				*s = bpf.Compiled(*s, of[i])
			}
			sensor, hooks, err := open(opts, specs)
			if err != nil {
				return hooks, nil, err
			}
			defer sensor.close()
			sensor.showDevices(deviceNames{1: "uverbs0"})
			s := &Source{opts: opts, sensor: sensor, hooks: hooks, forget: map[model.CgroupID]bool{1: true}}
			snap, err := s.Read(t.Context())
			if err != nil && hook.Failures(hooks) == nil {
				t.Error(err)
			}
			return hooks, &snap, nil
		},
	}
	for _, h := range objectHooks[2:] {
		r.Needs[h.Name] = []string{restrackHook}
	}
	r.Run(t)
}
