// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
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

func options(t testing.TB, h *libraries.Holders, change ...func(*Options)) Options {
	t.Helper()
	o := Options{Options: h.Options(t)}
	o.CgroupOf = libraries.CgroupOf
	for _, f := range change {
		f(&o)
	}
	return o
}

func startSource(t testing.TB, h *libraries.Holders, change ...func(*Options)) *Source {
	t.Helper()
	s, err := New(options(t, h, change...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// start starts a program in a cgroup.
func start(t testing.TB, c libraries.Cgroup, program string) *fakes.Rank {
	t.Helper()
	return c.Start(t, command(program))
}

func command(program string) *exec.Cmd { return child.Command(context.Background(), program) }

// probedRank starts a process that has loaded NCCL, in a cgroup of its own, and a source that probes the library.
func probedRank(t *testing.T) (libraries.Cgroup, *fakes.Rank, *Source) {
	t.Helper()
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	r := start(t, c, b.Rank)
	r.OK("load %s", b.NCCL)
	h.Add(r)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, all...)
	return c, r, s
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
func read(t testing.TB, s *Source, c libraries.Cgroup) (
	ranks []model.Communicator, others map[model.CollectiveKey]model.Launches, gaps []model.CollectiveGap,
) {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range snap.Communicators {
		if f.Cgroup == c.ID {
			ranks = append(ranks, f)
		}
	}
	slices.SortStableFunc(ranks, func(a, b model.Communicator) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rank, b.Rank))
	})
	others = map[model.CollectiveKey]model.Launches{}
	for _, f := range snap.Collectives {
		if f.Cgroup == c.ID {
			others[f.Key] = f.Value
		}
	}
	for _, f := range snap.CollectiveCoverage {
		if f.Cgroup == c.ID {
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
