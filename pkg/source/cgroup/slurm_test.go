// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// Slurm is not on this machine: these are trees as slurmstepd makes them, of
// real directories, with our own process in the place of the job's.
func TestJobSteps(t *testing.T) {
	me := fmt.Sprintln(os.Getpid())
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
				{Job: "8", Step: "batch", User: "999"}, // in no list of users
			},
		},
		"v2": {
			map[string]string{
				"cgroup.controllers":                              "memory",
				v2 + "job_7/step_0/slurm/cgroup.procs":            "1\n",
				v2 + "job_7/step_0/user/task_0/cgroup.procs":      me,
				v2 + "job_7/step_extern/user/task_0/cgroup.procs": "",
				v2 + "job_9/step_0/user/task_0/cgroup.procs":      "nonsense\n",
			},
			[]model.JobStep{
				{Job: "7", Step: "0", User: "root"},
				{Job: "7", Step: "extern", User: "root"},
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
			s, err := New(Options{Root: root, Passwd: passwd})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // nothing to lose
			steps := func() []model.JobStep {
				got, err := s.Resolve(t.Context(), nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := range got.JobSteps {
					if got.JobSteps[i].Cgroup == 0 {
						t.Error("a step without its cgroup")
					}
					got.JobSteps[i].Cgroup = 0
				}
				return got.JobSteps
			}
			if d := cmp.Diff(c.want, steps()); d != "" {
				t.Error(d)
			}
			// A user who is new in the list has a name from then on.
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
		})
	}
}
