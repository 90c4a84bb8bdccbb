// SPDX-License-Identifier: Apache-2.0

package access

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// below creates a cgroup some levels below another, which is removed with everything below.
func (g group) below(t *testing.T, names ...string) group {
	t.Helper()
	for _, name := range names {
		g.dir = filepath.Join(g.dir, name)
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(g.dir)
	if err != nil {
		t.Fatal(err)
	}
	g.id = info.Sys().(*syscall.Stat_t).Ino
	return g
}

// TestOpensOfWorkload: the opens of a job's tasks are counted for the job, opens below a unit by cgroup.
func TestOpensOfWorkload(t *testing.T) {
	for version, g := range groups(t) {
		t.Run(version, func(t *testing.T) {
			spec, err := gen.LoadDevices()
			if err != nil {
				t.Fatal(err)
			}
			workloads, err := hook.NewWorkloads(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer workloads.Close() //nolint:errcheck // memory of the kernel
			f := newTree(t, "1 drm")
			f.name(t, "1:7", "renderD128") // /dev/full
			o := f.options(g.subsystem)
			o.Workloads = workloads
			s := counting(t, o)

			job, unit := g.below(t, "job"), g.below(t, "unit")
			for _, err := range []error{workloads.Mark(model.CgroupID(job.id), true), workloads.Mark(model.CgroupID(unit.id), false)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			task, deep := job.below(t, "step", "task"), job.below(t, "a", "b", "c", "d", "e")
			service := unit.below(t, "service")
			task.do(t, "open 3 /dev/full")
			deep.do(t, "open 4 /dev/full")
			job.do(t, "open 5 /dev/full")
			service.do(t, "open 6 /dev/full")
			for _, c := range []struct {
				name  string
				group group
				opens uint64
			}{{"job", job, 3 + 4 + 5}, {"task", task, 0}, {"deep", deep, 0}, {"unit", unit, 0}, {"service", service, 6}} {
				rows, _, _ := read(t, s, c.group)
				var n uint64
				for _, r := range rows {
					n += r.Value.Allowed
				}
				if n != c.opens {
					t.Errorf("%s: %d opens, want %d", c.name, n, c.opens)
				}
			}
		})
	}
}
