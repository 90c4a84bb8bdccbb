// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
	fakes "github.com/accelscope/accelscope/tests/fakes/collective"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// builtOnce is where the FAKES are built, once for all tests.
var builtOnce string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(builtOnce)
		os.Exit(code)
	}))
}

// build returns FAKES of the test's own: a probe is on a file.
func build(t testing.TB) fakes.Built {
	t.Helper()
	if os.Getenv(fakes.BuiltVar) == "" {
		if builtOnce == "" {
			dir, err := os.MkdirTemp("", "collective") //nolint:usetesting // it outlives the test
			if err != nil {
				t.Fatal(err)
			}
			builtOnce = dir
			fakes.Build(t, dir)
		}
		t.Setenv(fakes.BuiltVar, builtOnce)
	}
	return fakes.Build(t, t.TempDir())
}

// holders are the processes that have a GPU open, which this machine lacks.
type holders struct {
	mu   sync.Mutex
	pids []int
}

func (h *holders) Holders() ([]int, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pids), true
}

func (h *holders) add(r *fakes.Rank) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pids = append(h.pids, r.Process.Pid)
}

func (h *holders) options(t testing.TB, change ...func(*Options)) Options {
	t.Helper()
	// The Gate refuses a file for good if forks wait longer for a probe, as they do for the default on a busy machine.
	gate, err := uprobe.New(uprobe.Options{Limit: time.Minute})
	if err != nil {
		bpf.Skip(t, err)
	}
	t.Cleanup(func() { _ = gate.Close() })
	o := Options{Gate: gate, Procfs: "/proc", Holders: h.Holders, Interval: 20 * time.Millisecond, CgroupOf: cgroupOf}
	for _, f := range change {
		f(&o)
	}
	return o
}

func startSource(t testing.TB, h *holders, change ...func(*Options)) *Source {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := hook.Usable(); err != nil {
		t.Fatal(err)
	}
	s, err := newSource(h.options(t, change...))
	if err != nil {
		t.Fatal(err)
	}
	s.begin()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A cgroup of version 2.
type cgroup struct {
	dir string
	id  model.CgroupID
}

func newCgroup(t testing.TB) cgroup {
	t.Helper()
	dir, id := testcgroup.New(t, testcgroup.V2())
	return cgroup{dir, model.CgroupID(id)}
}

// cgroupOf returns the cgroup of version 2 of a process.
func cgroupOf(pid int) (model.CgroupID, error) {
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

// start starts a program in the cgroup.
func (c cgroup) start(t testing.TB, program string) *fakes.Rank {
	t.Helper()
	dir, err := os.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := command(program)
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return fakes.Start(t, cmd)
}

func command(program string) *exec.Cmd { return child.Command(context.Background(), program) }

// eventually waits until f returns no error, longer than the Gate defers an operation on a file.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// probed waits until functions have a state.
func probed(t testing.TB, s *Source, state model.State, names ...string) {
	t.Helper()
	eventually(t, func() error {
		snap, _ := s.Read(t.Context())
		for _, h := range snap.Hooks {
			if slices.Contains(names, h.Name) && h.State != state {
				return fmt.Errorf("%+v, want %s", h, state)
			}
		}
		return nil
	})
}

// all are the functions that NCCL has.
var all = func() (names []string) {
	for _, f := range functions {
		if !slices.Contains([]string{
			"ncclAllToAll", "ncclAllToAllv", "cuGraphLaunch", "cuGraphLaunch_ptsz", "cudaGraphLaunch", "cudaGraphLaunch_ptsz", "hipGraphLaunch",
		}, f.name) {
			names = append(names, f.name)
		}
	}
	return names
}()

// read returns the facts of a cgroup, sorted.
func read(t testing.TB, s *Source, c cgroup) (
	ranks []model.Communicator, others map[model.CollectiveKey]model.Launches, gaps []model.CollectiveGap,
) {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range snap.Communicators {
		if f.Cgroup == c.id {
			ranks = append(ranks, f)
		}
	}
	slices.SortStableFunc(ranks, func(a, b model.Communicator) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rank, b.Rank))
	})
	others = map[model.CollectiveKey]model.Launches{}
	for _, f := range snap.Collectives {
		if f.Cgroup == c.id {
			others[f.Key] = f.Value
		}
	}
	for _, f := range snap.CollectiveCoverage {
		if f.Cgroup == c.id {
			gaps = append(gaps, f.Gap)
		}
	}
	slices.Sort(gaps)
	return ranks, others, gaps
}

// operationsOf returns the launches of a rank by operation.
func operationsOf(c *model.Communicator) map[string]model.Launches {
	out := map[string]model.Launches{}
	for _, o := range c.Operations {
		out[o.Operation] = o.Launches
	}
	return out
}

// lossless requires that nothing was lost.
func lossless(t testing.TB, s *Source) {
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
