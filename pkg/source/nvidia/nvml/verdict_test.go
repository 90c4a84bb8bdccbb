// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// recoveryAction reads the action as a round does.
func recoveryAction(d nvml.Device) string {
	return actionOf(new(fieldReader).read(d, roundFields).count(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0))
}

func TestRecoveryAction(t *testing.T) {
	none := nvmltest.Missing(&mock.Device{})
	if got := recoveryAction(none); got != "" {
		t.Errorf("a library without fields: %q", got)
	}
	d := slowDevice()
	for value, want := range map[int]string{
		-1: "", 0: "none", 1: "reset", 2: "reboot", 3: "drain_p2p", 4: "drain_and_reset", 5: "other", 99: "other",
	} {
		have := map[field]uint64{}
		if value >= 0 {
			have[field{230, 0}] = uint64(value)
		}
		d.GetFieldValuesFunc = fieldsOf(have)
		if got := recoveryAction(d); got != want {
			t.Errorf("%d: %q, want %q", value, got, want)
		}
	}
}

// TestFabricUnhealthy builds the masks as the macros of nvml.h do.
func TestFabricUnhealthy(t *testing.T) {
	for name, c := range map[string]struct {
		mask uint32
		want bool
	}{
		"nothing is supported":  {0, false},
		"healthy":               {0x1aa, false},
		"in a partition":        {0x11aa, false},
		"degraded bandwidth":    {0x1a9, true},
		"route recovery":        {0x1a6, true},
		"route unhealthy":       {0x19a, true},
		"access timeout":        {0x16a, true},
		"configuration unknown": {0x0aa, false},
		"no partition":          {0x4aa, true},
		"state of the GPU":      {0x8aa, true},
	} {
		if got := fabricUnhealthy(c.mask); got != c.want {
			t.Errorf("%s (%#x): %t", name, c.mask, got)
		}
	}
}

// TestVerdictsThroughTheLibrary reads the fake library through its C functions.
func TestVerdictsThroughTheLibrary(t *testing.T) {
	for name, old := range map[string]bool{"new": false, "old": true} {
		t.Run(name, func(t *testing.T) {
			s := nvmltest.OneGPU(t)
			s.Set("0", "nvmlDeviceGetSramEccErrorStatus", "1 2 3 4 5 6 7 8 9 10 11 1")
			_, d := opened(t, s, old)
			sram, action := sramThreshold(d), recoveryAction(d)
			f := fabric(d)
			state, unhealthy := f.state, f.unhealthy
			if old {
				if sram != nil || state != "" || unhealthy != nil {
					t.Errorf("%v, %s, %v", sram, state, unhealthy)
				}
				return
			}
			if sram == nil || !*sram || action != model.RecoveryNone || state != "completed" || unhealthy == nil || *unhealthy {
				t.Errorf("%v, %q, %q, %v", sram, action, state, unhealthy)
			}
			set := func(values ...any) {
				s.Set("0", "nvmlDeviceGetGpuFabricInfoV", values...)
				if err := s.Write(); err != nil {
					t.Fatal(err)
				}
			}
			is := func(what, wantState string, want bool) {
				t.Helper()
				nvmltest.Eventually(t, what, func() bool {
					f := fabric(d)
					return f.state == wantState && f.cluster == "" && f.unhealthy != nil && *f.unhealthy == want
				})
			}
			set(3, int(nvml.ERROR_UNKNOWN), 0x1aa)
			is("a registration that failed", "completed", true)
			set(2, int(nvml.ERROR_UNKNOWN), 0)
			is("the status counts only for a registration that has ended", "in_progress", false)
			set(0, 0, 0)
			nvmltest.Eventually(t, "a GPU without a fabric", func() bool { return fabric(d) == fabricFacts{} })
			set(3, 0, 0x1aa, 7, 0xab)
			nvmltest.Eventually(t, "a clique", func() bool {
				return fabric(d).clique == 7 && fabric(d).cluster == "ab000000-0000-0000-0000-000000000000"
			})
			set(3, 0, 0x1aa, 7, 0)
			is("NVSwitches of one node are no cluster", "completed", false)
			set(2, 0, 0x1aa, 7, 0xab)
			is("cluster and clique count only for a registration that has ended", "in_progress", false)
		})
	}
}

// TestRecoveryEvent: when the driver reports a changed action, the GPU is read again at once.
func TestRecoveryEvent(t *testing.T) {
	x, e := newXIDWatch(wire.NewXIDs()), newEvents()
	d := listener(nvml.SUCCESS)
	d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeAll, nvml.SUCCESS }
	d.RegisterEventsFunc = func(types uint64, _ nvml.EventSet) nvml.Return {
		if types != nvml.EventTypeXidCriticalError|nvml.EventTypeGpuRecoveryAction {
			t.Errorf("registered for %#x", types)
		}
		return nvml.SUCCESS
	}
	changed := make(chan struct{})
	end, _ := e.watchingFor(t, x, d, func() { close(changed) })
	e.results <- waitResult{nvml.EventData{EventType: nvml.EventTypeGpuRecoveryAction, EventData: 1}, nvml.SUCCESS}
	nvmltest.Ended(t, changed)
	end()
	if got := x.Of("GPU-a"); len(got) != 0 {
		t.Errorf("it counts as an XID: %v", got)
	}
}
