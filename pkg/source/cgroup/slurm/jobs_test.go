// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	stdcmp "cmp"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestJobSteps uses trees as slurmstepd creates them, in real directories, and a /proc with a user's process and a
// process of root.
func TestJobSteps(t *testing.T) {
	const me, stepd = "77\n", "78\n"
	v2 := "system.slice/slurmstepd.scope/"
	for name, c := range map[string]struct {
		controller string
		files      map[string]string
		want       []model.JobStep
	}{
		"v1": {
			"memory",
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
			"",
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
			proc := t.TempDir()
			write(t, proc, map[string]string{
				"77/status": "Name:\tsleep\nUid:\t1234\t0\t0\t0\nGid:\t1\t1\t1\t1\n", "78/status": "Name:\tx\nUid:\t0\t0\t0\t0\n",
			})
			mount := strings.TrimSuffix(filepath.Join(root, c.controller), "/")
			users := map[string]string{"1234": "ada"}
			j := newJobs(t, Options{Mount: mount, Procfs: proc, UserName: func(uid string) string { return stdcmp.Or(users[uid], uid) }})
			if d := cmp.Diff(c.want, j.Steps(cgroupsIn(t, mount))); d != "" {
				t.Error(d)
			}
			// An ended job keeps its user. A job whose path has the number of the user gets the user's new name.
			users["999"] = "new"
			for name, want := range map[string]string{"7": "ada", "8": "new"} {
				for g := range cgroupsIn(t, mount) {
					if got := j.User(g); g.Job == name && got != want {
						t.Errorf("user of job %s: %q, want %q", name, got, want)
					}
				}
			}
			if len(j.Steps(func(func(Cgroup) bool) {})) > 0 || len(j.users) > 0 {
				t.Errorf("users of ended jobs are kept: %v", j.users)
			}
		})
	}
}
