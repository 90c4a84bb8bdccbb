// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestSLUID has the jobs of Slurm 26.05 beside one in the form of earlier releases. The number comes from the environment or the title of
// slurmstepd. A process of the user, or one of root that the user may have started, does not name the job.
func TestSLUID(t *testing.T) {
	const scope = "system.slice/slurmstepd.scope/"
	root, proc := t.TempDir(), t.TempDir()
	write(t, root, map[string]string{
		"cgroup.controllers": "memory",
		scope + "s5K1KKYAYG5D00/step_0/slurm/cgroup.procs":           "10\n",
		scope + "s5K1KKYAYG5D00/step_0/user/task_0/cgroup.procs":     "11\n12\n",
		scope + "s5K1KKYAYG5D00/step_batch/user/task_0/cgroup.procs": "",
		scope + "s5K1KKYAYG5E00/step_extern/slurm/cgroup.procs":      "20\n",
		scope + "s5K1KKYAYG5F00/step_0/slurm/cgroup.procs":           "11\n",
		scope + "s5K1KKYAYG5F00/step_0/user/task_0/cgroup.procs":     "12\n",
		scope + "job_77/step_0/user/task_0/cgroup.procs":             "",
		scope + "system/cgroup.procs":                                "1\n",
	})
	user := "Name:\tx\nUid:\t1234\t1234\t1234\t1234\n"
	daemon := "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n"
	write(t, proc, map[string]string{
		"10/status": daemon, "10/environ": "A=1\x00SLURM_JOB_ID=4711\x00", "10/cmdline": "slurmstepd: [1.0]\x00",
		"11/status": user, "11/environ": "SLURM_JOB_ID=77\x00", "11/cmdline": "slurmstepd: [77.0]\x00",
		"12/status": daemon, "12/environ": "SLURM_JOB_ID=77\x00", // sudo has the environment that its user gave it
		"20/status": daemon, "20/environ": "", "20/cmdline": "slurmstepd: [4712.extern]\x00",
	})
	now := time.Unix(1000, 0)
	s, err := New(Options{Root: root, Procfs: proc, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	workloads := func() (map[string]string, []string) {
		ids := []model.CgroupID{}
		s.mu.Lock()
		for id := range s.table.byID {
			ids = append(ids, id)
		}
		s.mu.Unlock()
		got := resolve(t, s, ids)
		found := map[string]string{}
		for _, c := range got.Cgroups {
			if name, ok := strings.CutPrefix(string(c.Path), "/"+scope); ok {
				found[name] = c.Workload
			}
		}
		steps := []string{}
		for _, step := range got.JobSteps {
			steps = append(steps, step.Job+"."+step.Step)
		}
		return found, steps
	}
	want := map[string]string{
		"s5K1KKYAYG5D00": "slurm:4711", "s5K1KKYAYG5E00": "slurm:4712", "s5K1KKYAYG5F00": "slurm:s5K1KKYAYG5F00", "job_77": "slurm:77",
	}
	found, steps := workloads()
	if d := cmp.Diff(want, found); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"4711.0", "4711.batch", "4712.extern", "77.0", "s5K1KKYAYG5F00.0"}, steps); d != "" {
		t.Error(d)
	}
	// The slurmstepd of a job may be seen later than its cgroup, and end before it.
	write(t, proc, map[string]string{"30/status": daemon, "30/environ": "SLURM_JOB_ID=4713\x00", "10/environ": ""})
	write(t, root, map[string]string{scope + "s5K1KKYAYG5F00/step_0/slurm/cgroup.procs": "30\n"})
	now = now.Add(jobNumberInterval)
	want["s5K1KKYAYG5F00"] = "slurm:4713"
	if found, _ = workloads(); cmp.Diff(want, found) != "" {
		t.Error(cmp.Diff(want, found))
	}
}

// TestSLUIDKeepsItsNumber: a step that begins after the slurmstepd of the others ended, and after the numbers of too many jobs, has the
// number of its job.
func TestSLUIDKeepsItsNumber(t *testing.T) {
	const job = "system.slice/slurmstepd.scope/s5K1KKYAYG5D00/"
	root, proc := t.TempDir(), t.TempDir()
	write(t, root, map[string]string{"cgroup.controllers": "memory", job + "step_0/slurm/cgroup.procs": "10\n"})
	write(t, proc, map[string]string{"10/status": "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n", "10/environ": "SLURM_JOB_ID=4711\x00"})
	s, err := New(Options{Root: root, Procfs: proc})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	resolve(t, s, nil)
	s.mu.Lock()
	for i := range maxNumberedJobs + 1 {
		s.table.numbers[fmt.Sprintf("s%013d", i)] = "1"
	}
	s.mu.Unlock()
	write(t, proc, map[string]string{"10/environ": ""})
	resolve(t, s, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	g, _ := s.table.add(nil, "/"+job+"step_1", 1<<50, s.opt.Now())
	if g.fact.Workload != "slurm:4711" || len(s.table.numbers) > 1 {
		t.Errorf("%q, %d numbers", g.fact.Workload, len(s.table.numbers))
	}
}

// TestSLUIDAfterDeadline: a job whose turn did not come is looked up in the next refresh.
func TestSLUIDAfterDeadline(t *testing.T) {
	const scope = "system.slice/slurmstepd.scope/"
	root, proc := t.TempDir(), t.TempDir()
	files := map[string]string{"cgroup.controllers": "memory"}
	const jobs = 8
	for i := range jobs {
		files[fmt.Sprintf("%ss%013d/step_0/slurm/cgroup.procs", scope, i)] = "10\n"
	}
	write(t, root, files)
	write(t, proc, map[string]string{"10/status": "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n", "10/environ": "SLURM_JOB_ID=4711\x00"})
	now := time.Unix(1000, 0)
	s, err := New(Options{Root: root, Procfs: proc, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Resolve(over, nil); err == nil {
		t.Error("no error without time")
	}
	resolve(t, s, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.table.numbers) != jobs {
		t.Errorf("%d of %d jobs have a number", len(s.table.numbers), jobs)
	}
}
