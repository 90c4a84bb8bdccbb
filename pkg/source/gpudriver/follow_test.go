// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestLoaded loads a module, and loads it again.
func TestLoaded(t *testing.T) {
	sysfs := t.TempDir()
	module := filepath.Join(sysfs, "module/nvidia")
	if got := loaded(sysfs); len(got) > 0 {
		t.Errorf("no module: %v", got)
	}
	numbers := map[uint64]bool{}
	for range 3 {
		makeDir(t, module, "holders")
		got := loaded(sysfs)
		if len(got) != 1 || got["nvidia"] == 0 {
			t.Fatalf("%v", got)
		}
		numbers[got["nvidia"]] = true
		if err := os.Rename(module, filepath.Join(t.TempDir(), "gone")); err != nil { // keeps its number in use
			t.Fatal(err)
		}
	}
	if len(numbers) != 3 {
		t.Errorf("the numbers %v do not distinguish the modules", numbers)
	}
}

// TestSource starts without a driver, and finds one that this kernel does not have. Attaching to real drivers is tested in
// guests (tests/suites/e2e).
func TestSource(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := hook.Usable(); err != nil {
		t.Fatal(err)
	}
	sysfs := t.TempDir()
	makeDir(t, sysfs, kprobeEvents)
	s, err := New(Options{Sysfs: sysfs, Procfs: "/proc"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	snap, err := s.Read(t.Context())
	if !errors.Is(err, model.ErrAbsent) || snap.DriverCalls != nil || len(snap.Hooks) != len(functions) {
		t.Fatalf("%+v, %v", snap, err)
	}
	makeDir(t, sysfs, "module/nvidia")
	states := func() map[string]model.Hook {
		hooks := map[string]model.Hook{}
		snap, err := s.Read(t.Context())
		if err != nil && !errors.Is(err, model.ErrAbsent) {
			t.Fatal(err)
		}
		for _, h := range snap.Hooks {
			hooks[h.Name] = h
		}
		return hooks
	}
	for end := time.Now().Add(30 * time.Second); states()["nvidia_unlocked_ioctl"].State != model.StateUnsupported; {
		if time.Now().After(end) {
			t.Fatalf("%+v", states())
		}
		time.Sleep(50 * time.Millisecond)
	}
	want := model.Hook{Name: "nvidia_unlocked_ioctl", State: model.StateUnsupported, Reason: "this nvidia has no function nvidia_unlocked_ioctl"}
	if got := states()["nvidia_unlocked_ioctl"]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want = model.Hook{Name: "kfd_ioctl", State: model.StateAbsent, Reason: "the module amdgpu is not loaded"}
	if got := states()["kfd_ioctl"]; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if snap, _ = s.Read(t.Context()); snap.DriverCalls == nil || snap.DriverTasks == nil {
		t.Errorf("collected, and there is none: %+v", snap)
	}
}

// TestRefused has a driver with a function that this kernel has, on a kernel that refuses kprobes, and on one without.
func TestRefused(t *testing.T) {
	former := functions[0].name
	functions[0].name = "chrdev_open"
	t.Cleanup(func() { functions[0].name = former })
	for name, kprobes := range map[string]bool{"no kprobes": false, "refused": true} {
		t.Run(name, func(t *testing.T) { refused(t, kprobes) })
	}
}

func refused(t *testing.T, kprobes bool) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sysfs := t.TempDir()
	want := model.StateUnsupported
	makeDir(t, sysfs, "module/drm")
	if kprobes {
		want = model.StateFailed
		makeDir(t, sysfs, kprobeEvents)
	}
	s, err := New(Options{Sysfs: sysfs, Procfs: "/proc"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	snap, err := s.Read(t.Context())
	h := snap.Hooks[0]
	if h.State == model.StateOK {
		t.Skip("this kernel has kprobes")
	}
	t.Log(err)
	if h.State != want || h.Err == nil || err == nil || errors.Is(err, model.ErrUnsupported) == kprobes {
		t.Errorf("%+v, %v", h, err)
	}
	if snap.Hooks[1].State != model.StateAbsent {
		t.Errorf("%+v", snap.Hooks[1])
	}
	tried := func() {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.retry.Waiting(time.Now()) {
			t.Error("not tried again")
		}
		s.retry = hook.Retry{}
		s.retry.Failed(time.Now().Add(-time.Hour)) // due
	}
	tried()
	s.follow()
	tried()
	if err := os.RemoveAll(filepath.Join(sysfs, "module/drm")); err != nil {
		t.Fatal(err)
	}
	s.follow()
	if snap, err = s.Read(t.Context()); kprobes && err != nil || snap.Hooks[0].State == model.StateOK {
		t.Errorf("the driver is gone: %+v, %v", snap.Hooks[0], err)
	}
}

func makeDir(t *testing.T, sysfs, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(sysfs, dir), 0o755); err != nil {
		t.Fatal(err)
	}
}
