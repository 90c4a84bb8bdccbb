// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// namedJobs waits for a round. It returns the names of the jobs by step, and the reason of a failure.
func namedJobs(t *testing.T, n slurmNode) (found map[string]string, why string) {
	t.Helper()
	cgroups := cgroupsIn(t, n.mount)
	again(&n.names.background, func() { why = reason(n.ReadNames(cgroups, time.Now())) })
	found = map[string]string{}
	for _, step := range n.Steps(cgroups) {
		found[step.Job+"."+step.Step] = step.Account + "|" + step.Partition + "|" + step.Name
	}
	return found, why
}

// TestJobNames: all steps of a job have the names in the environment of the user's first process, which is read once.
func TestJobNames(t *testing.T) {
	const job = "memory/slurm/uid_1234/job_7/"
	s := newNode(t, map[string]string{
		"memory/release_agent":                                  "",
		job + "step_extern/cgroup.procs":                        "",
		job + "step_0/task_0/cgroup.procs":                      "78\n77\n",
		"memory/slurm/uid_999/job_8/step_0/task_0/cgroup.procs": "79\n",
		"memory/slurm/uid_0/job_9/step_0/task_0/cgroup.procs":   "78\n",
	})
	environment := func(pid string, entries ...string) {
		write(t, s.proc, map[string]string{pid + "/environ": strings.Join(entries, "\x00") + "\x00"})
	}
	environment("77", "SLURM_JOB_ACCOUNT=physics", "SLURM_JOB_PARTITION=train", "SLURM_JOB_NAME=llm", "SLURM_JOB_NAME=other")
	environment("78", "SLURM_JOB_NAME=stepd")
	environment("79", "HOME=/")
	want := map[string]string{"7.extern": "PHYSICS|TRAIN|LLM", "7.0": "PHYSICS|TRAIN|LLM", "8.0": "||", "9.0": "||"}
	got, reason := namedJobs(t, s)
	if d := cmp.Diff(want, got); d != "" || reason != "" {
		t.Errorf("%s%s", d, reason)
	}
	environment("77", "SLURM_JOB_NAME=forged")
	environment("79", "SLURM_JOB_NAME=later")
	want["8.0"] = "||LATER"
	if got, _ = namedJobs(t, s); !cmp.Equal(want, got) {
		t.Error(cmp.Diff(want, got))
	}
}

// TestJobNamesUnreadable: an environment that cannot be read, or not in time, is reported.
func TestJobNamesUnreadable(t *testing.T) {
	s := newNode(t, map[string]string{
		"memory/release_agent": "", "memory/slurm/uid_1234/job_7/step_0/task_0/cgroup.procs": "77\n",
	})
	environ := filepath.Join(s.proc, "77/environ")
	if err := os.Remove(environ); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(environ, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, reason := namedJobs(t, s); !strings.Contains(reason, "job_7/step_0") {
		t.Errorf("reason %q", reason)
	}
	if err := os.Remove(environ); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(environ, 0o644); err != nil { // it hangs until a process writes to it
		t.Fatal(err)
	}
	if _, reason := namedJobs(t, s); !strings.Contains(reason, "in time") {
		t.Errorf("reason %q", reason)
	}
	writer, err := os.OpenFile(environ, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
}

func FuzzJobNames(f *testing.F) {
	f.Add([]byte("SLURM_JOB_ACCOUNT=a\x00SLURM_JOB_PARTITION=p\x00SLURM_JOB_NAME=n\x00"))
	f.Add([]byte("SLURM_JOB_NAME\x00SLURM_JOB_NAME=\xff\n\x00SLURM_JOB_ACCOUNT=cut"))
	f.Fuzz(func(t *testing.T, environ []byte) {
		label := func(value string) string { return fmt.Sprintf("%q", value) }
		n := parseNames(environ, label)
		for _, s := range []string{n.account, n.partition, n.name} {
			if s != "" && s[0] != '"' {
				t.Errorf("%q is not made valid", s)
			}
		}
	})
}
