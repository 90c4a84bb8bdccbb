// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// sourcesOfNodes are the sources of pkg/sensor, and a source that does not exist yet. Only GPU sources are judged by
// name.
var sourcesOfNodes = []string{
	"cgroup", "runtime", "container", "rdma", "pci", "link", "probe", "datapath", "access", "gpumemory", "collective", "amdgpu", "nvidia", "intel", "drm",
	"gpudriver", "kernellog", "kubelet", "fabric", "node", "events", "another",
}

var (
	allStates = []model.State{
		model.StateOK, model.StateAbsent, model.StateUnsupported, model.StateFailed, model.StateStuck, model.StateBlocked,
		model.StateQuarantined, model.StateReleased,
	}
	badStates = []model.State{model.StateFailed, model.StateStuck, model.StateBlocked, model.StateQuarantined}
	// lasting are the problems of GPUs that are judged at once.
	lasting = []string{
		model.ProblemLost, model.ProblemStuck, model.ProblemUnreadable, model.ProblemXID, model.ProblemECC, model.ProblemRemapPending,
		model.ProblemRemapFailure, model.ProblemRetirePending, model.ProblemLinkDown, model.ProblemResetRequired, model.ProblemInfoROM,
		model.ProblemPCIeDegraded, model.ProblemMemoryBadPages, model.ProblemSRAM, model.ProblemFabric,
		model.ProblemFabricNotReady, model.ProblemPowerChange, "a problem of a later version",
	}
)

// TestNothingWrongIsTrue: a node of random sources, devices and GPUs has NothingWrong exactly if no source, device,
// hook or GPU has failed, is stuck, waits for a stuck device, is paused after failures, or is missing without a reason.
func TestNothingWrongIsTrue(t *testing.T) {
	quiet := 0
	for seed := range uint64(20000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		one := func(states []model.State) model.State { return states[rnd.IntN(len(states))] }
		facts, bad := model.Snapshot{}, false
		state := func(states []model.State) model.State { // the first state most of the time
			if rnd.IntN(6) > 0 {
				return states[0]
			}
			s := one(states)
			bad = bad || slices.Contains(badStates, s)
			return s
		}
		var states []model.SourceState
		for _, name := range sourcesOfNodes {
			if s := state(allStates[:5]); rnd.IntN(4) == 0 || slices.Contains(badStates, s) {
				states = append(states, model.SourceState{Source: name, State: s})
			}
		}
		states = append(states, model.SourceState{Source: "rdma", State: model.StateOK})
		for n := range rnd.IntN(4) {
			row := model.GPUVendors[rnd.IntN(len(model.GPUVendors))]
			g := model.GPU{Vendor: row.Vendor, ID: string(rune('0' + n)), UUID: "GPU-" + string(rune('0'+n)), PCIAddress: "0000:c1:00.0"}
			if rnd.IntN(3) > 0 {
				g.Problems = []model.GPUCondition{{Name: model.ProblemLost}}
			}
			if rnd.IntN(12) == 0 {
				g.Problems, bad = append(g.Problems, model.GPUCondition{Name: lasting[rnd.IntN(len(lasting))], Active: true}), true
			}
			facts.GPUs = append(facts.GPUs, g)
		}
		for range rnd.IntN(3) {
			devices := []string{"0", "1", "2", "0000:c1:00.0", "processes", "mlx5_0", ""}
			facts.DeviceStates = append(facts.DeviceStates, model.DeviceState{
				Source: sourcesOfNodes[rnd.IntN(len(sourcesOfNodes))], Device: devices[rnd.IntN(len(devices))], State: state(allStates),
			})
		}
		for range rnd.IntN(2) {
			m := model.MissingDevice{Kind: model.KindGPU, ID: "GPU-x", Excused: rnd.IntN(2) == 0}
			switch rnd.IntN(3) {
			case 0:
				m.Kind, m.ID, m.Name = model.KindHCA, "0x1", "mlx5_7"
			case 1:
				m.Kind, m.ID, m.Name, m.Port = model.KindModule, "0x1/1 SN1", "mlx5_7", 1
			}
			facts.Missing, bad = append(facts.Missing, m), bad || !m.Excused
		}
		if h := state([]model.State{model.StateOK, model.StateAbsent, model.StateUnsupported, model.StateFailed}); h != model.StateOK {
			facts.Hooks = []model.Hook{{Name: "a hook", State: h}}
		}
		in := Input{At: start, Facts: &facts, Shares: &attribution.Attribution{}, States: states}
		got := slices.Contains(names(new(Judge).Update(in)), nothingWrong.Name)
		if got == bad {
			t.Fatalf("seed %d: NothingWrong is %v: %+v %+v", seed, got, states, facts)
		}
		if got {
			quiet++
		}
	}
	if quiet < 100 || quiet > 19900 {
		t.Errorf("%d of 20000 nodes have NothingWrong", quiet)
	}
}
