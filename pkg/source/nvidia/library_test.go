// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

func TestMain(m *testing.M) { nvmltest.Main(m) }

// TestSourceOnFakeLibrary reads eight GPUs, two of them with MIG, through the fake library.
func TestSourceOnFakeLibrary(t *testing.T) {
	s := nvmltest.OneGPU(t)
	s.Remove("0")
	s.Node(os.Getpid())
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	source, err := New(Options{Options: wire.Options{
		Library: nvmltest.Library(t, false), Sysfs: t.TempDir(), Procfs: t.TempDir(), Interval: 100 * time.Millisecond,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = source.Close()
		nvmltest.Ended(t, source.done) // the next test opens the library, too
	}()
	snapshot := until(t, source, func(s model.Snapshot) bool {
		return len(s.GPUs) == 14 && len(s.GPUProcesses) == 1 && s.GPUs[0].XIDs != nil &&
			!slices.ContainsFunc(s.GPUs, func(g model.GPU) bool { return !g.Memory.Used.Known })
	})
	for _, g := range snapshot.GPUs {
		if g.Parent == "" && g.Modes["mig"] != "enabled" && !g.Utilization.Known {
			t.Errorf("utilization of %s is not known", g.ID)
		}
	}
	if snapshot.GPUDrivers[0].CUDA != "12.4" {
		t.Errorf("driver %+v", snapshot.GPUDrivers)
	}
}

// until reads until the snapshot is good.
func until(t *testing.T, s *Source, good func(model.Snapshot) bool) model.Snapshot {
	t.Helper()
	var snapshot model.Snapshot
	var err error
	for end := time.Now().Add(nvmltest.Long); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		snapshot, err = s.Read(context.Background())
		if good(snapshot) {
			return snapshot
		}
	}
	t.Fatalf("not within %v: %v\n%+v\n%+v", nvmltest.Long, err, snapshot.GPUs, snapshot.DeviceStates)
	return snapshot
}
