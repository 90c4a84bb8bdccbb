// SPDX-License-Identifier: Apache-2.0

package libraries

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/library"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
)

// Holders are the processes that have a GPU open, which this machine lacks.
type Holders struct {
	Unknown bool

	mu   sync.Mutex
	pids []int
}

// Add adds a process.
func (h *Holders) Add(p *Program) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pids = append(h.pids, p.Process.Pid)
}

func (h *Holders) list() ([]int, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pids), !h.Unknown
}

// Options returns the options of a source. The test needs root, as which BPF must work.
func (h *Holders) Options(t testing.TB) library.Options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := hook.Usable(); err != nil {
		t.Fatal(err)
	}
	// The Gate refuses a file for good if forks wait longer for a probe, as they do for the default on a busy machine.
	gate, err := uprobe.New(uprobe.Options{Limit: time.Minute})
	if err != nil {
		bpf.Skip(t, err)
	}
	t.Cleanup(func() { _ = gate.Close() })
	return library.Options{Gate: gate, Procfs: "/proc", Holders: h.list, Interval: 20 * time.Millisecond}
}

// Source is a source with a Prober.
type Source interface {
	Read(context.Context) (model.Snapshot, error)
}

// Cgroup is a cgroup of version 2.
type Cgroup struct {
	Dir string
	ID  model.CgroupID
}

// NewCgroup makes a cgroup, which is removed at the end of the test.
func NewCgroup(t testing.TB) Cgroup { return newCgroup(t, testcgroup.V2()) }

// Below makes a cgroup below another one.
func (c Cgroup) Below(t testing.TB) Cgroup { return newCgroup(t, c.Dir) }

func newCgroup(t testing.TB, parent string) Cgroup {
	t.Helper()
	dir, id := testcgroup.New(t, parent)
	return Cgroup{dir, model.CgroupID(id)}
}

// CgroupOf returns the cgroup of version 2 of a process.
func CgroupOf(pid int) (model.CgroupID, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return 0, err
	}
	_, path, _ := strings.Cut(string(text), "0::")
	path, _, _ = strings.Cut(path, "\n")
	var st unix.Stat_t
	err = unix.Stat(testcgroup.V2()+path, &st)
	return model.CgroupID(st.Ino), err
}

// Start starts a command in the cgroup.
func (c Cgroup) Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	dir, err := os.Open(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return Start(t, cmd)
}

// Eventually waits until f returns no error, longer than the Gate defers an operation on a file.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Probed waits until functions have a state.
func Probed(t testing.TB, s Source, state model.State, names ...string) {
	t.Helper()
	Eventually(t, func() error {
		snap, _ := s.Read(t.Context())
		for _, h := range snap.Hooks {
			if slices.Contains(names, h.Name) && h.State != state {
				return fmt.Errorf("%+v, want %s", h, state)
			}
		}
		return nil
	})
}

// Lossless requires that nothing was lost.
func Lossless(t testing.TB, s Source) {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil || len(snap.Losses) == 0 {
		t.Fatal(snap.Losses, err)
	}
	for _, l := range snap.Losses {
		if l.Count > 0 {
			t.Errorf("lost: %+v", l)
		}
	}
}

// RefusedParts refuses each program, map and helper of an object in turn: open, which loads the programs, must fail without a used part.
func RefusedParts(t *testing.T, spec hook.Spec, open func(hook.Spec) error) {
	bpf.Root(t)
	if err := open(spec); err != nil {
		bpf.Skip(t, err)
	}
	compiled, err := spec.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range bpf.Parts(compiled) {
		changed := compiled.Copy()
		used := bpf.Refuse(changed, part)
		refused := spec
		refused.Load = func() (*ebpf.CollectionSpec, error) { return changed.Copy(), nil }
		err := open(refused)
		t.Logf("%-30s %v", part, err)
		switch {
		case err == nil:
			// The kernel removes calls that it never makes before it looks at them.
			if len(used) > 0 && !strings.HasPrefix(part.String(), "helper") {
				t.Errorf("%s is refused, and %v work", part, used)
			}
		case !errors.Is(err, model.ErrUnsupported) || len(used) == 0:
			t.Errorf("%s, which %v use: %v", part, used, err)
		}
	}
}
