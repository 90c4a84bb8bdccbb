// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// TestPanickingConstructors: the constructors of sources panic, as there is no logger to pass on, which stands in for a defect. Each
// source has failed, with the panic as the reason, and what sources use of each other answers that nothing is known.
func TestPanickingConstructors(t *testing.T) {
	f := Options{Logger: zap.NewNop()}
	f.Runtime, f.Probe, f.PCI, f.RDMA, f.Link, f.DataPath, f.Access, f.Allocations = true, true, true, true, true, "survey", true, true
	f.Collective, f.KernelLog, f.GPU, f.GPUDriver, f.Kubelet, f.Fabric, f.Node = true, true, true, true, true, true, true
	f.Endpoint = "127.0.0.1:1"
	s := newServices(f, parsedFlags{})
	s.log = nil
	panics := map[string]bool{"events": false, "drm": false, "pci": false} // events need the runtimes, and drm and pci log nothing
	for _, name := range []string{
		"runtime", "probe", "rdma", "link", "datapath", "access", "gpumemory", "collective", "kernellog", "gpudriver", "kubelet", "fabric", "node",
		model.NVIDIA.Row().Source, model.AMD.Row().Source, model.Intel.Row().Source,
	} {
		panics[name] = true
	}
	for _, r := range s.sources() {
		name := r.Source.Name()
		want, known := panics[name]
		var panicked *safely.PanicError
		if got := errors.As(r.Err, &panicked); !known || got != want {
			t.Errorf("%s: %v", name, r.Err)
		}
		delete(panics, name)
		if r.Err == nil {
			if err := r.Source.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if len(panics) > 0 {
		t.Errorf("no source for %v", panics)
	}
	var panicked *safely.PanicError
	if _, err := s.peers(); !errors.As(err, &panicked) {
		t.Errorf("peers: %v", err)
	}
	if _, known := s.holders.Holders(); known || s.gpus != nil || s.cgroups != nil || s.objects.Counting() {
		t.Error("services of sources that were not made")
	}

	cgroup := made("cgroup", func() engine.Registration { panic("boom") })
	if cgroup.Source.Name() != "cgroup" || cgroup.Err.Error() != "making the source: panic: boom" {
		t.Errorf("%s: %v", cgroup.Source.Name(), cgroup.Err)
	}
}

// TestSurveyOnSuspicion: the launches of communicators are watched only while calls are counted in surveys. There is no device.
func TestSurveyOnSuspicion(t *testing.T) {
	for mode, watched := range map[string]bool{"survey": true, "always": false} {
		f := Options{Logger: zap.NewNop()}
		f.DataPath, f.Sysfs, f.Procfs, f.PathBudget, f.AttachLimit = mode, t.TempDir(), "/proc", 0.01, time.Second
		s := newServices(f, parsedFlags{})
		r := s.newDataPath()
		if r.Err != nil {
			t.Skip("no uprobes here, or not root: ", r.Err)
		}
		if got := s.survey != nil; got != watched {
			t.Errorf("%s: watched: %v", mode, got)
		}
		if err := errors.Join(r.Source.Close(), s.uprobes.Close()); err != nil {
			t.Error(err)
		}
	}
}
