// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestRefusedParts refuses each program, map and helper in turn. The programs are loaded, not attached: that needs a GPU driver.
func TestRefusedParts(t *testing.T) {
	bpf.Root(t)
	defer hook.Hold()()
	o := Options{MaxEntries: 64, MaxCalls: 64}
	r := bpf.Refusal{
		Hooks: []hook.Hook{drmHook, ioctlHook, checkHook},
		Basis: []string{drmHook.Name, ioctlHook.Name},
		Provides: map[string][]string{
			drmHook.Name: {"DriverCalls"}, ioctlHook.Name: {"DriverCalls"}, checkHook.Name: {"DriverUses", "DriverTasks"},
		},
		Loads: []func() (*ebpf.CollectionSpec, error){gen.LoadGPUDriver},
		Attach: func(t *testing.T, of []*ebpf.CollectionSpec) ([]model.Hook, *model.Snapshot, error) {
			sensor, hooks, err := open(bpf.Compiled(o.spec(), of[0]))
			if err != nil {
				return hooks, nil, err
			}
			defer sensor.close()
			s := &Source{o: o, sensor: sensor, forget: map[model.CgroupID]bool{}}
			snap, err := s.Read(t.Context())
			return hooks, &snap, err
		},
	}
	r.Run(t)
}
