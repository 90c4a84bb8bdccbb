// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/features"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// startPerProcess returns a Source that probes processes one by one, and a function that writes the status of a process:
// procfs is a FAKE directory with these files only, as no CPU of ours has shadow stacks. The probes are real.
func startPerProcess(t *testing.T, path string, sites []locate.Site) (*testSource, func(f *fake, features string)) {
	t.Helper()
	if features.HaveBPFLinkUprobeMulti() != nil {
		t.Skip("no uprobe_multi")
	}
	procfs := t.TempDir()
	if err := os.Symlink("/proc/self", filepath.Join(procfs, "self")); err != nil {
		t.Fatal(err)
	}
	s := startSource(t, 0, path, sites, func(s *testSource) {
		s.opts.Procfs, s.prober.perProcess = procfs, true
	})
	return s, func(f *fake, features string) {
		t.Helper()
		dir := filepath.Join(procfs, fmt.Sprint(f.Process.Pid))
		if err := errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "status"), []byte("Name:\tprovider\nx86_Thread_features:\t"+features+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// trapped reports whether the kernel has mapped its page of trampolines in the process, as it does when the process first
// hits a return probe or a probe that is single-stepped.
func trapped(t *testing.T, f *fake) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", f.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(maps), "[uprobes]")
}

// TestPerProcess: where return probes kill processes with a shadow stack, such a process has no probes, even while others
// that map the same file are probed, and one that gets a shadow stack loses its probes. FAKE provider.
func TestPerProcess(t *testing.T) {
	path, sites := buildFake(t)
	s, status := startPerProcess(t, path, sites)
	plain, guarded := startFake(t, path), startFake(t, path)
	before := descriptors(t)
	status(plain, "")
	status(guarded, "shstk ")
	refused := func() error {
		_, err := s.Read(t.Context())
		return err
	}
	s.observeFake(guarded)
	eventually(t, "not refused", func() bool { return errors.Is(refused(), locate.ErrShadowStack) })
	if err := refused(); !errors.Is(err, model.ErrUnsupported) || !strings.Contains(err.Error(), fmt.Sprint("process ", guarded.Process.Pid)) {
		t.Errorf("reason: %v", err)
	}
	s.observeFake(plain)
	probed := func(n int) func() bool {
		return func() bool {
			snap, _ := s.Read(t.Context())
			return snap.DataPath.Probes == uint64(n)
		}
	}
	eventually(t, "never probed", probed(len(sites)))
	plain.do("chain", 10)
	guarded.do("chain", 10)
	guarded.do("recv", 10)
	if !trapped(t, plain) || trapped(t, guarded) {
		t.Errorf("trapped: %v without a shadow stack, %v with one", trapped(t, plain), trapped(t, guarded))
	}
	transmitted := func() (bytes uint64) {
		snap, _ := s.Read(t.Context())
		for _, r := range snap.Traffic {
			if r.Direction == model.Transmit {
				bytes += r.Bytes
			}
		}
		return bytes
	}
	const chain = 128 + 64 + 1054
	if got := transmitted(); got != 10*chain {
		t.Errorf("%d bytes, want %d of one process", got, 10*chain)
	}

	// A second process without a shadow stack has probes of its own, and they end with it.
	t.Run("second", func(t *testing.T) {
		second := startFake(t, path)
		status(second, "")
		s.observeFake(second)
		eventually(t, "the second is never probed", probed(2*len(sites)))
		second.do("chain", 5)
	})
	eventually(t, "probes of a process that ended", probed(len(sites)))
	if got := transmitted(); got != 15*chain {
		t.Errorf("%d bytes, want %d of two processes", got, 15*chain)
	}

	// It executes another program, which has a shadow stack and opens a context.
	status(plain, "shstk wrss ")
	s.observeFake(plain)
	eventually(t, "probes stay", probed(0))
	eventually(t, "descriptors stay", func() bool { return descriptors(t) <= before+2 }) // the processes
}

// TestTooManyAlone: the number of processes that are probed one by one is bounded.
func TestTooManyAlone(t *testing.T) {
	s := newTestSource(Options{}, func() {})
	s.opts.Logger, s.prober.perProcess = zap.NewNop(), true
	f := newFile(locate.FileID{Inode: 1}, 0, true)
	for pid := range 256 {
		f.Paths[pid+1] = "provider"
	}
	s.prober.files[f.id] = f
	w := &watched{}
	if s.tracker.refuse(1, w, nil, nil) || w.refused != nil {
		t.Error("a process that is probed is refused")
	}
	if !s.tracker.refuse(257, w, nil, nil) || !errors.Is(w.refused, uprobe.ErrAlone) || !errors.Is(w.refused, model.ErrUnsupported) {
		t.Errorf("one too many: %v", w.refused)
	}
	f.PerProcess = false
	if s.prober.perProcess = false; s.tracker.refuse(257, w, nil, nil) || w.refused != nil {
		t.Error("refused where all processes share the probes")
	}
}

// TestTooManyFiles: an owner may have a number of files probed. Its processes may use files that are probed, and others may bring more.
func TestTooManyFiles(t *testing.T) {
	s := newTestSource(Options{}, func() {})
	s.opts.Logger = zap.NewNop()
	s.opts.OwnerOf = func(id model.CgroupID) (workload, share model.CgroupID) { return id, id / 10 }
	at := func(inode int) []locate.Site { return []locate.Site{{File: locate.FileID{Inode: uint64(inode)}}} }
	one, same, other := &watched{cgroup: 10}, &watched{cgroup: 11}, &watched{cgroup: 20}
	s.processes.byPID[1] = one
	for i := range maxFilesOfOwner {
		if s.tracker.refuse(1, one, at(i), nil) {
			t.Fatalf("file %d is refused: %v", i, one.refused)
		}
		s.prober.addSites(1, locate.Found{Sites: at(i)})
	}
	if !s.tracker.refuse(2, same, at(maxFilesOfOwner), nil) || !errors.Is(same.refused, errFilesOfOwner) || !isPassing(same.refused) {
		t.Errorf("one too many: %v", same.refused)
	}
	if s.tracker.refuse(2, same, at(0), nil) || s.tracker.refuse(3, other, at(maxFilesOfOwner), nil) {
		t.Errorf("a known file: %v; another owner: %v", same.refused, other.refused)
	}
}
