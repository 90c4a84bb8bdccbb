// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// TestProblems: each condition is reported if its input is known, and active only if it applies.
func TestProblems(t *testing.T) {
	yes, no, now := true, false, time.Now()
	for name, c := range map[string]struct {
		problem   string
		good, bad func(*device, *model.GPU)
	}{
		"xid": {
			model.ProblemXID,
			func(d *device, g *model.GPU) { // an XID that the application caused, and an XID from an earlier load of the driver
				d.era.Store(&wire.Era{Since: now})
				g.XIDs = []model.XID{{Code: 13, Count: 9, Last: now.Add(1)}, {Code: 79, Count: 1, Last: now.Add(-1)}}
			},
			func(d *device, g *model.GPU) {
				d.era.Store(&wire.Era{Since: now})
				g.XIDs = []model.XID{{Code: 13, Count: 9, Last: now.Add(1)}, {Code: 79, Count: 1, Last: now.Add(1)}}
			},
		},
		"xid of a part": {
			model.ProblemXID,
			func(d *device, g *model.GPU) { // contained
				d.xids, g.UUID, g.XIDs = newXIDWatch(wire.NewXIDs()), "GPU-a", []model.XID{}
				d.xids.Listen("GPU-a 1/0")
				d.xids.Add("GPU-a 1/0", 94, now)
			},
			func(d *device, g *model.GPU) { // of the hardware
				d.xids, g.UUID, g.XIDs = newXIDWatch(wire.NewXIDs()), "GPU-a", []model.XID{}
				d.xids.Listen("GPU-a 1/0")
				d.xids.Add("GPU-a 1/0", 95, now)
			},
		},
		"ecc": {
			model.ProblemECC,
			func(_ *device, g *model.GPU) {
				g.Errors = []model.GPUErrors{
					{Type: "uncorrected", Scope: "volatile"},
					{Type: "corrected", Scope: "volatile", Count: 3},
					{Type: "uncorrected", Scope: "aggregate", Count: 4}, // before the driver was loaded
				}
			},
			func(_ *device, g *model.GPU) {
				g.Errors = []model.GPUErrors{{Type: "uncorrected", Scope: "volatile", Count: 1}}
			},
		},
		"ecc of a part": {
			model.ProblemECC,
			func(d *device, _ *model.GPU) {
				d.shown.parts = []model.GPU{{Errors: []model.GPUErrors{{Type: "uncorrected", Scope: "volatile"}}}}
			},
			func(d *device, _ *model.GPU) {
				d.shown.parts = []model.GPU{{}, {Errors: []model.GPUErrors{{Type: "uncorrected", Scope: "volatile", Count: 2}}}}
			},
		},
		"remap pending": {
			model.ProblemRemapPending,
			func(d *device, _ *model.GPU) { d.health.remapPending = &no },
			func(d *device, _ *model.GPU) { d.health.remapPending = &yes },
		},
		"remap failure": {
			model.ProblemRemapFailure,
			func(d *device, _ *model.GPU) { d.health.remapFailure = &no },
			func(d *device, _ *model.GPU) { d.health.remapFailure = &yes },
		},
		"retire pending": {
			model.ProblemRetirePending,
			func(d *device, _ *model.GPU) { d.health.retirePending = &no },
			func(d *device, _ *model.GPU) { d.health.retirePending = &yes },
		},
		"thermal": {
			model.ProblemThermal,
			func(_ *device, g *model.GPU) { g.Throttles = []model.GPUCondition{{Name: reasonThermal}} },
			func(_ *device, g *model.GPU) { g.Throttles = []model.GPUCondition{{Name: reasonThermal, Active: true}} },
		},
		"power brake": {
			model.ProblemPowerBrake,
			func(_ *device, g *model.GPU) { g.Throttles = []model.GPUCondition{{Name: reasonPowerBrake}} },
			func(_ *device, g *model.GPU) {
				g.Throttles = []model.GPUCondition{{Name: reasonPowerBrake, Active: true}}
			},
		},
		"pcie": {
			model.ProblemPCIeDegraded,
			func(d *device, _ *model.GPU) { d.health.narrow = &no },
			func(d *device, _ *model.GPU) { d.health.narrow = &yes },
		},
		"recovery action": {
			model.ProblemRecovery,
			func(_ *device, g *model.GPU) { g.RecoveryAction = model.RecoveryNone },
			func(_ *device, g *model.GPU) { g.RecoveryAction = model.RecoveryDrainP2P },
		},
		"xid, and a verdict of the driver": {
			model.ProblemXID,
			func(_ *device, g *model.GPU) {
				g.RecoveryAction, g.XIDs = model.RecoveryNone, []model.XID{{Code: 119, Count: 1, Last: now}}
			},
			func(_ *device, g *model.GPU) {
				g.RecoveryAction, g.XIDs = model.RecoveryReset, []model.XID{{Code: 119, Count: 1, Last: now}}
			},
		},
		"sram": {
			model.ProblemSRAM,
			func(d *device, _ *model.GPU) { d.health.sram = &no },
			func(d *device, _ *model.GPU) { d.health.sram = &yes },
		},
		"fabric": {
			model.ProblemFabric,
			func(d *device, _ *model.GPU) { d.health.fabric = &no },
			func(d *device, _ *model.GPU) { d.health.fabric = &yes },
		},
		"reset": {
			model.ProblemResetRequired,
			func(*device, *model.GPU) {},
			func(d *device, _ *model.GPU) { d.noted("call", nvml.ERROR_RESET_REQUIRED) },
		},
		"lost": {
			model.ProblemLost,
			func(d *device, _ *model.GPU) { d.noted("call", nvml.ERROR_TIMEOUT) },
			func(d *device, _ *model.GPU) { d.noted("call", nvml.ERROR_GPU_IS_LOST) },
		},
	} {
		for active, set := range map[bool]func(*device, *model.GPU){false: c.good, true: c.bad} {
			d, g := &device{caller: &caller{worker: newWorker(0, 0)}, xids: newXIDWatch(wire.NewXIDs())}, model.GPU{}
			set(d, &g)
			if !slices.Contains(d.problems(&g), model.GPUCondition{Name: c.problem, Active: active}) {
				t.Errorf("%s: not reported as %t: %+v", name, active, d.problems(&g))
			}
		}
		if p := (&device{caller: &caller{}}).problems(&model.GPU{}); len(p) != 4 {
			t.Errorf("unknown conditions are reported: %+v", p)
		}
	}
}

func TestThrottles(t *testing.T) {
	bits := func(v uint64) func() (uint64, nvml.Return) {
		return func() (uint64, nvml.Return) { return v, nvml.SUCCESS }
	}
	g := nvmltest.Missing(&mock.Device{
		GetCurrentClocksThrottleReasonsFunc:   bits(nvml.ClocksThrottleReasonHwThermalSlowdown),
		GetSupportedClocksThrottleReasonsFunc: bits(nvml.ClocksThrottleReasonHwThermalSlowdown | nvml.ClocksThrottleReasonGpuIdle),
	})
	q := &quickReader{caller: &caller{worker: newWorker(0, 0)}, reasons: supportedReasons(g)}
	got, want := q.throttles(g), []model.GPUCondition{{Name: "gpu_idle"}, {Name: reasonThermal, Active: true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestProfile(t *testing.T) {
	for want, a := range map[string]nvml.DeviceAttributes{
		"1g.10gb":    {GpuInstanceSliceCount: 1, ComputeInstanceSliceCount: 1, MemorySizeMB: 9984},
		"1c.3g.40gb": {GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 1, MemorySizeMB: 40448},
	} {
		if got := profileOf(a); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestPendingModes: a mode that an administrator has changed and that the next reset of the GPU applies is shown.
func TestPendingModes(t *testing.T) {
	for _, c := range []struct {
		ecc  nvml.EnableState
		mig  int
		want string
	}{
		{nvml.FEATURE_ENABLED, nvml.DEVICE_MIG_DISABLE, "map[ecc:enabled mig:disabled]"},
		{nvml.FEATURE_DISABLED, nvml.DEVICE_MIG_ENABLE, "map[ecc:enabled ecc_pending:disabled mig:disabled mig_pending:enabled]"},
	} {
		r := &roundReader{attachment: &attachment{handle: nvmltest.Missing(&mock.Device{
			GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
				return nvml.FEATURE_ENABLED, c.ecc, nvml.SUCCESS
			},
			GetMigModeFunc: func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, c.mig, nvml.SUCCESS },
		})}}
		r.rarely.due = true
		if r.readModes(); fmt.Sprint(r.draft.facts.Modes) != c.want {
			t.Errorf("modes %v, want %s", r.draft.facts.Modes, c.want)
		}
	}
}

// TestMemoryOfTheKernel: only a GPU whose memory is a NUMA node has this mode.
func TestMemoryOfTheKernel(t *testing.T) {
	const address = "0009:01:00.0"
	procfs := t.TempDir()
	mode := func() string {
		r := &roundReader{o: wire.Options{Procfs: procfs}, attachment: &attachment{handle: nvmltest.Missing(&mock.Device{})}}
		r.draft.facts.PCIAddress = address
		r.readModes()
		return r.draft.facts.Modes["numa"]
	}
	dir := filepath.Join(procfs, "driver/nvidia/gpus", address)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != "" {
		t.Errorf("memory of its own: %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "numa_status"), []byte("Node: 1\nStatus: online\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != "enabled" {
		t.Errorf("memory of a NUMA node: %q", got)
	}
}
