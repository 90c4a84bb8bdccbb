// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestSlurmJob: the package slurm gets the jobs of a node, and its results are in the facts.
func TestSlurmJob(t *testing.T) {
	const uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	root, proc := t.TempDir(), t.TempDir()
	var c clock
	write(t, root, map[string]string{
		"memory/release_agent": "", "devices/release_agent": "", "devices/slurm/uid_999/job_8/step_0/task_0/cgroup.procs": "77\n",
		"devices/user.slice/slurm/uid_1/job_9/step_0/task_0/cgroup.procs": "77\n", "devices/system.slice/a.service/cgroup.procs": "77\n", // no jobs
		"devices/slurm/uid_999/job_6/x": "", "memory/slurm/uid_999/job_7/x": "", // devices has more jobs
	})
	write(t, proc, map[string]string{
		"devices": "Character devices:\n195 nvidia\n", "77/status": "Name:\tx\nUid:\t999\t0\t0\t0\n",
		"77/stat":    "77 (a) S 1" + strings.Repeat(" 0", 17) + " 9 4096\n",
		"77/environ": "SLURM_JOB_GPUS=0\x00CUDA_VISIBLE_DEVICES=" + uuid + "\x00SLURM_JOB_NAME=a\nb\x00RANK=3\x00",
		"passwd":     "ada:x:999:100:Ada:/home/ada:/bin/sh\n",
	})
	s := fakeTree(t, Options{
		Root: root, Procfs: proc, Passwd: proc + "/passwd", RankVariables: []string{"RANK"}, Now: c.now,
	})
	id, err := cgroupID(root + "/devices/slurm/uid_999/job_8")
	if err != nil {
		t.Fatal(err)
	}
	step, err := cgroupID(root + "/devices/slurm/uid_999/job_8/step_0")
	if err != nil {
		t.Fatal(err)
	}
	var read model.Snapshot
	var steps []model.JobStep
	eventually(t, "a job with a GPU, a name and a rank", func() bool {
		c.advance(time.Minute)
		if read, err = s.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		steps = resolve(t, s, nil).JobSteps
		return len(read.JobGPUs) > 0 && len(read.Ranks) > 0 && len(steps) > 0 && steps[0].Name != ""
	})
	if want := []model.JobStep{{Job: "8", Step: "0", User: "ada", Name: `a\x0ab`}}; !cmp.Equal(want, steps) {
		t.Errorf("steps (-want +got)\n%s", cmp.Diff(want, steps))
	}
	if want := []model.JobGPUs{{Cgroup: step, UUIDs: []string{uuid}}}; !cmp.Equal(want, read.JobGPUs) {
		t.Errorf("GPUs (-want +got)\n%s", cmp.Diff(want, read.JobGPUs))
	}
	if want := []model.Ranks{{Cgroup: id, Ranks: "3"}}; !cmp.Equal(want, read.Ranks) {
		t.Errorf("ranks (-want +got)\n%s", cmp.Diff(want, read.Ranks))
	}
	devices := []string{}
	for _, d := range read.DeviceStates {
		devices = append(devices, d.Device+": "+string(d.State))
	}
	if want := []string{"hierarchy: ok", "Slurm jobs: failed"}; !slices.Equal(want, devices) {
		t.Errorf("states %q, want %q", devices, want)
	}
}

// TestUserOfEndedJob: if the path of an ended job contains the user's number, the job gets a user name that passwd
// lists later.
func TestUserOfEndedJob(t *testing.T) {
	root, passwd := t.TempDir(), t.TempDir()
	job := filepath.Join(root, "memory/slurm/uid_999")
	write(t, root, map[string]string{"memory/release_agent": ""})
	write(t, passwd, map[string]string{"passwd": "root:x:0:0::/root:/bin/sh\nbroken\nada:x:999:100::/:/bin/sh\nmask:x:999:1::/:/bin/sh\n"})
	s := fakeTree(t, Options{Root: root, Procfs: t.TempDir(), Passwd: passwd + "/passwd"}, "memory/slurm/uid_999/job_8/step_batch")
	id, err := cgroupID(job + "/job_8/step_batch")
	if err != nil {
		t.Fatal(err)
	}
	user := func() string {
		got := resolve(t, s, []model.CgroupID{id})
		return byID(t, &got)[id].User
	}
	if got := user(); got != "ada" {
		t.Errorf("user of a running job: %q", got)
	}
	if err := os.RemoveAll(job); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job has ended", func() bool { return len(resolve(t, s, nil).JobSteps) == 0 })
	write(t, passwd, map[string]string{"passwd": "new:x:999:1::/:/bin/sh\n"})
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(passwd+"/passwd", later, later); err != nil {
		t.Fatal(err)
	}
	if got := user(); got != "new" {
		t.Errorf("user of an ended job: %q", got)
	}
}

// TestSLUID has jobs of Slurm 26.05 and a job of an earlier release. The number comes from the environment or the title
// of slurmstepd. A process of the user, or a process of root that the user may have started, does not name the job.
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
	now = now.Add(5 * time.Second)
	want["s5K1KKYAYG5F00"] = "slurm:4713"
	if found, _ = workloads(); cmp.Diff(want, found) != "" {
		t.Error(cmp.Diff(want, found))
	}
	// A step that begins after the slurmstepd of the other steps ended has the number of its job.
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, _ := s.table.add(nil, "/"+scope+"s5K1KKYAYG5D00/step_1", 1<<50, now); g.fact.Workload != "slurm:4711" {
		t.Errorf("workload %q", g.fact.Workload)
	}
}
