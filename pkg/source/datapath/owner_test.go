// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
)

// enter moves a fake to a cgroup.
func (f *fake) enter(dir string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, f.key.Tgid), 0); err != nil {
		f.t.Fatal(err)
	}
}

// TestOwnerOfUnknown: a process that calls a probed provider without a context that is known belongs to its cgroup from
// the first call on, and what its probes took, too. FAKE provider.
func TestOwnerOfUnknown(t *testing.T) {
	path, sites := buildFake(t)
	dir, id := testcgroup.New(t, testcgroup.V2())
	cgroup := model.CgroupID(id)
	s := startSource(t, 0, path, sites)
	s.observeFake(startFake(t, path))
	eventually(t, "never probed", func() bool { return s.snapshot(t).DataPath.Probes == uint64(len(sites)) })
	f := startFake(t, path)
	f.enter(dir)
	const posts = 1000
	f.do("chain", posts)
	spent := func() map[model.CgroupID]time.Duration {
		all := map[model.CgroupID]time.Duration{}
		for _, r := range s.snapshot(t).Spent {
			all[r.Cgroup] += time.Duration(r.Value)
		}
		return all
	}
	least := time.Duration(2 * posts * emulatedTrap)
	eventually(t, "nothing is spent", func() bool { return spent()[cgroup]+spent()[0] >= least })
	if all := spent(); all[0] != 0 || all[cgroup] < least {
		t.Errorf("spent %v, want %v or more of cgroup %d", all, least, cgroup)
	}
}

// TestOwnerOfRemoved: the cost of a removed context stays with its cgroup.
func TestOwnerOfRemoved(t *testing.T) {
	path, sites := buildFake(t)
	k := startKernel(t)
	f := startFake(t, path)
	f.key = k.add(t, event{key: f.key, cgroup: 5}, true)
	k.probeAll(t, path, sites, posts)
	f.do("chain", 10)
	if err := k.removeContext(f.key); err != nil {
		t.Fatal(err)
	}
	found := false
	if err := k.unknownCosts(func(tgid uint32, s *gen.DatapathUnknownCost) {
		if found = tgid == f.key.Tgid; found && s.Cgroup != 5 {
			t.Errorf("cgroup %d, want 5", s.Cgroup)
		}
	}); err != nil || !found {
		t.Errorf("found %v, %v", found, err)
	}
}
