// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func isFS(dir string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && int64(st.Type) == magic
}

var jobPath = regexp.MustCompile(`^(/(?:slurm(?:_[^/]+)?/uid_(\d+)|system\.slice/slurmstepd\.scope)/(?:job_)?([^/]+))(?:/step_([^/]+))?`)

// cgroupsIn returns the current cgroups of jobs below a mount. It stands in for the parser of the package cgroup.
func cgroupsIn(t *testing.T, mount string) iter.Seq[Cgroup] {
	t.Helper()
	var all []Cgroup
	err := filepath.WalkDir(mount, func(dir string, d fs.DirEntry, err error) error {
		path := strings.TrimPrefix(dir, mount)
		m := jobPath.FindStringSubmatch(path)
		if err != nil || !d.IsDir() || m == nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			id := info.Sys().(*syscall.Stat_t).Ino
			all = append(all, Cgroup{ID: model.CgroupID(id), Path: path, Top: m[1], User: m[2], Job: m[3], Step: m[4]})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Values(all)
}

// newJobs makes Jobs, which are stopped after the test. Users without a name have their numbers.
func newJobs(t *testing.T, o Options) *Jobs {
	t.Helper()
	if o.UserName == nil {
		o.UserName = func(uid string) string { return uid }
	}
	o.Label = strings.ToUpper
	j := New(o)
	t.Cleanup(j.Stop)
	return j
}

// again lets the next read start a round, waits for it, and reads the result.
func again[T any](b *background[T], read func()) {
	b.mu.Lock()
	b.began = time.Time{}
	b.mu.Unlock()
	read()
	b.round.Wait()
	read()
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
