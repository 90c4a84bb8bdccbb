// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// opened opens the fake library and returns the handle of its only GPU.
func opened(t *testing.T, s *fake.Scenario, old bool) (*Library, nvml.Device) {
	t.Helper()
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLibrary(wire.Options{Library: nvmltest.Library(t, old)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	d, ret := l.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return l, d
}

func figure(figures []model.Figure, name string) float64 {
	for _, f := range figures {
		if f.Name == name {
			return f.Value
		}
	}
	return -1
}

// TestSlowValuesThroughLibrary reads the fake library through its C functions: with all functions, and without the
// functions added after R450.
func TestSlowValuesThroughLibrary(t *testing.T) {
	for name, old := range map[string]bool{"new": false, "old": true} {
		t.Run(name, func(t *testing.T) {
			_, d := opened(t, nvmltest.OneGPU(t), old)
			var g model.GPU
			everything(d, &g)
			if m := g.Memory; !m.Used.Known || m.Reserved.Known == old ||
				m.Total.Value != m.Used.Value+m.Free.Value+m.Reserved.Value {
				t.Errorf("memory %+v", m)
			}
			if len(g.Links) < 18 || g.Links[1].Transmit != model.Some(1024) || g.Links[0].Up != model.Some(1) ||
				g.Links[len(g.Links)-1].Up != model.Some(0) || g.Links[0].Remote != "0000:05:00.0" ||
				!slices.Equal(g.Links[0].Errors, []model.Counter{{Name: "replay", Value: 1}, {Name: "recovery", Value: 2}, {Name: "crc", Value: 3}}) {
				t.Errorf("links %+v", g.Links)
			}
			if len(g.Errors) != 8 || g.Errors[0] != (model.GPUErrors{Type: "corrected", Scope: "volatile", Block: "dram", Count: 1}) {
				t.Errorf("errors %+v", g.Errors)
			}
			if figure(g.RemappedRows, "uncorrectable") != 2 || figure(g.Throttled, "board_limit") != 3 ||
				figure(g.TemperatureLimits, "slowdown") != 87 || g.PCIe.Receive != model.Some(2000e3) {
				t.Errorf("%+v", g)
			}
		})
	}
}

// TestListThroughTheLibrary: the fake library returns six samples per second. The old library runs in its own process:
// go-nvml keeps the versions of the list functions of the first library that has them.
func TestListThroughTheLibrary(t *testing.T) {
	for name, old := range map[string]bool{"new": false, "old": true} {
		t.Run(name, func(t *testing.T) {
			if old && os.Getenv("ACCELSCOPE_CHILD") == "" {
				child := child.Command(t.Context(), os.Args[0], "-test.run=^TestListThroughTheLibrary$/^old$", "-test.v")
				child.Env = append(os.Environ(), "ACCELSCOPE_CHILD=1")
				if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestListThroughTheLibrary/old") {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			s := nvmltest.OneGPU(t)
			s.Processes = []fake.Process{
				{Device: "0", PID: 11, Memory: 1 << 30, SM: 30, Mem: 20, Encoder: 10, Decoder: 5, Kinds: "CG"},
				{Device: "0", PID: 12, Memory: fake.Unknown, SM: 50, Kinds: "C"},
				{Device: "0", PID: 13, Memory: 5, Kinds: "CM"},
			}
			s.Balance()
			l, d := opened(t, s, old)
			sampler := newSampler(l, "")
			defer sampler.close()
			list := func() ([]model.GPUProcess, []model.Figure) {
				processes, engines, err := sampler.list(d, "GPU-1", nil, time.Now())
				if err != nil || len(processes) != 3 {
					t.Fatal(processes, err)
				}
				return processes, engines
			}
			list()
			time.Sleep(400 * time.Millisecond)
			p, engines := list()
			// The number of samples depends on the elapsed time.
			about := func(p model.GPUProcess, engine string, want float64) bool {
				return math.Abs(figure(p.Engines, engine)-want) < 1e-9
			}
			if !about(p[0], "sm", 0.3) || !about(p[0], "decoder", 0.05) || !about(p[1], "sm", 0.5) ||
				len(p[2].Engines) != 0 || (p[2].Engines == nil) != p[2].MPS {
				t.Errorf("%+v", p)
			}
			if p[0].Memory != model.Some(1<<30) || p[1].Memory.Known || p[2].MPS == old || p[0].MPS {
				t.Errorf("%+v", p)
			}
			if figure(engines, "sm") != 0.8 || figure(engines, "decoder") != 0.07 {
				t.Errorf("engines %v", engines)
			}
			if activity := figure(engines, "sm_active"); old && activity != -1 || !old && activity != 0.5525 {
				t.Errorf("GPM: %v", engines)
			}
		})
	}
}

func TestXIDsThroughTheLibrary(t *testing.T) {
	s := nvmltest.OneGPU(t)
	l, d := opened(t, s, true)
	x, stop, done := newXIDWatch(wire.NewXIDs()), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		x.watch(l, d, "GPU-1", func() {}, stop)
	}()
	seen := func(name string, good func() bool) {
		t.Helper()
		nvmltest.Eventually(t, name, good)
	}
	seen("it does not listen", func() bool { return x.Of("GPU-1") != nil })
	s.XID("0", 79)
	s.XID("0", 31)
	s.XID("0", 79)
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	seen("XIDs are missing", func() bool { c := counts(x.Of("GPU-1")); return c[79] == 2 && c[31] == 1 })
	close(stop)
	nvmltest.Ended(t, done)
}
