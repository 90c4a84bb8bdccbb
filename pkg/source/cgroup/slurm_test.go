// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestJobSteps uses trees as created by slurmstepd, in real directories, and a /proc with one
// process of a user and one of root.
func TestJobSteps(t *testing.T) {
	const me, stepd = "77\n", "78\n"
	v2 := "system.slice/slurmstepd.scope/"
	for name, c := range map[string]struct {
		files map[string]string
		want  []model.JobStep
	}{
		"v1": {
			map[string]string{
				"memory/release_agent": "",
				"memory/slurm/uid_1234/job_7/step_0/task_0/cgroup.procs": me, "memory/slurm/uid_1234/job_7/step_extern/cgroup.procs": "",
				"memory/slurm/uid_999/job_8/step_batch/cgroup.procs": me,
			},
			[]model.JobStep{
				{Job: "7", Step: "0", User: "ada"},
				{Job: "7", Step: "extern", User: "ada"},
				{Job: "8", Step: "batch", User: "999"}, // not in passwd
			},
		},
		"v2": {
			map[string]string{
				"cgroup.controllers":                              "memory",
				v2 + "job_7/step_0/slurm/cgroup.procs":            "1\n",
				v2 + "job_7/step_0/user/task_0/cgroup.procs":      me,
				v2 + "job_7/step_extern/user/task_0/cgroup.procs": "",
				v2 + "job_9/step_0/user/task_0/cgroup.procs":      "nonsense\n",
				v2 + "job_10/step_0/user/task_0/cgroup.procs":     stepd,
			},
			[]model.JobStep{
				{Job: "10", Step: "0"}, // still runs as root
				{Job: "7", Step: "0", User: "ada"},
				{Job: "7", Step: "extern", User: "ada"},
				{Job: "9", Step: "0"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, c.files)
			passwd := filepath.Join(t.TempDir(), "passwd")
			write(t, filepath.Dir(passwd), map[string]string{
				"passwd": "root:x:0:0::/root:/bin/sh\nada:x:1234:100:Ada:/home/ada:/bin/sh\nbroken\nmask:x:1234:1::/:/bin/sh\n",
			})
			proc := t.TempDir()
			write(t, proc, map[string]string{
				"77/status": "Name:\tsleep\nUid:\t1234\t0\t0\t0\nGid:\t1\t1\t1\t1\n", "78/status": "Name:\tx\nUid:\t0\t0\t0\t0\n",
			})
			s, err := New(Options{Root: root, Procfs: proc, Passwd: passwd})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // nothing to lose
			steps := func() []model.JobStep {
				got, err := s.Resolve(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				return got.JobSteps
			}
			if d := cmp.Diff(c.want, steps()); d != "" {
				t.Error(d)
			}
			// A user added to passwd has a name from then on.
			write(t, filepath.Dir(passwd), map[string]string{"passwd": "new:x:999:1::/:/bin/sh\n"})
			later := time.Now().Add(time.Minute)
			if err := os.Chtimes(passwd, later, later); err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			s.jobs.users = nil
			s.mu.Unlock()
			for _, step := range steps() {
				if step.Job == "8" && step.User != "new" {
					t.Errorf("user of job 8: %q", step.User)
				}
			}
			// An ended job has the same user, if its path contains the number.
			if name == "v1" {
				dir := filepath.Join(root, "memory/slurm/uid_999/job_8/step_batch")
				id, err := cgroupID(dir)
				if err != nil {
					t.Fatal(err)
				}
				user := func() string {
					got, err := s.Resolve(t.Context(), []model.CgroupID{id})
					if err != nil {
						t.Fatal(err)
					}
					return byID(t, &got)[id].User
				}
				if got := user(); got != "new" {
					t.Errorf("user of a running job: %q", got)
				}
				if err := os.RemoveAll(filepath.Join(root, "memory/slurm/uid_999")); err != nil {
					t.Fatal(err)
				}
				for range 50 {
					if time.Sleep(10 * time.Millisecond); len(steps()) == 2 {
						break
					}
				}
				if got := user(); got != "new" {
					t.Errorf("user of an ended job: %q", got)
				}
			}
		})
	}
}
