// SPDX-License-Identifier: Apache-2.0

package access

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestRefusedParts refuses each program, map and helper in turn. A kernel without kprobes and fentry has the iterator
// only.
func TestRefusedParts(t *testing.T) {
	bpf.Root(t)
	defer hook.Hold()()
	o := newTree(t, "1 kfd").options("").sized(1, 64)
	r := bpf.Refusal{
		Hooks:    append(slices.Clip(accessHooks), filesHook),
		Basis:    []string{accessHooks[0].Name, filesHook.Name},
		Provides: map[string][]string{accessHooks[0].Name: {"DeviceOpens"}, filesHook.Name: {"DeviceHandles"}},
		Loads:    []func() (*ebpf.CollectionSpec, error){gen.LoadDevices},
		Attach: func(t *testing.T, of []*ebpf.CollectionSpec) ([]model.Hook, *model.Snapshot, error) {
			sensor, hooks, err := open(o, bpf.Compiled(o.spec(), of[0]))
			if err != nil {
				return hooks, nil, err
			}
			defer sensor.close()
			s := &Source{o: o, sensor: sensor, hooks: hooks, nodes: newNodes(), forget: map[model.CgroupID]bool{}}
			if err := sensor.watch(&s.nodes); err != nil {
				t.Error(err)
			}
			s.list()
			snap, err := s.Read(t.Context())
			if unseen := hooks[1].State != model.StateOK && sensor.counts; unseen != snap.DenialsUnseen {
				t.Errorf("denials are not seen: %v, with %+v", snap.DenialsUnseen, hooks[1])
			}
			return hooks, &snap, err
		},
	}
	r.Run(t)
}
