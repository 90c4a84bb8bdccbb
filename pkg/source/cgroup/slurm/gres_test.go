// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/slurmjob"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	gpuUUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	migUUID = "MIG-11a39e1b-2a76-5a5f-8e3b-6d1f0f0b6c77"
	drivers = "Character devices:\n  1 mem\n195 nvidia\n226 drm\n235 nvidia-caps\n 10 misc\n\nBlock devices:\n195 nvidia\n"
)

// A slurmNode has the trees of jobs and a /proc with a process of each task. The environments are as slurmstepd sets
// them, with renumbered VISIBLE lists (ConstrainDevices).
type slurmNode struct {
	*Jobs
	mount, proc string
}

func newNode(t *testing.T, files map[string]string) slurmNode {
	t.Helper()
	root, proc := t.TempDir(), t.TempDir()
	write(t, root, files)
	status := func(uid int) string { return fmt.Sprintf("Name:\tx\nUid:\t%d\t0\t0\t0\n", uid) }
	environ := func(entries ...string) string { return strings.Join(append(entries, "HOME=/root"), "\x00") + "\x00" }
	write(t, proc, map[string]string{
		"devices":   drivers,
		"77/status": status(1234), "77/environ": environ("SLURM_JOB_ID=7", "SLURM_JOB_GPUS=0,2,5", "SLURM_STEP_GPUS=2,5", "CUDA_VISIBLE_DEVICES=0,1"),
		"78/status": status(0), "78/environ": environ("SLURM_JOB_GPUS=6"), // slurmstepd
		"79/status": status(999), "79/environ": environ("SLURM_JOB_GPUS=3", "CUDA_VISIBLE_DEVICES="+migUUID),
		"80/status": status(1234), "80/environ": environ("CUDA_VISIBLE_DEVICES=" + gpuUUID), // no GPU from Slurm
		"81/status": status(1234), "81/environ": environ("SLURM_JOB_GPUS=5,7"),
	})
	o := Options{Mount: root, Procfs: proc}
	if memory := filepath.Join(root, "memory"); exists(memory) {
		o.Mount, o.Devices = memory, filepath.Join(root, "devices")
	}
	return slurmNode{newJobs(t, o), o.Mount, proc}
}

// rounds waits until the GPUs of the steps were read. It returns them by path, and the reason of a failure.
func rounds(t *testing.T, n slurmNode) (found map[string]model.JobGPUs, why string) {
	t.Helper()
	cgroups := cgroupsIn(t, n.mount)
	again(&n.gres.background, func() {
		gpus, err := n.GPUs(cgroups, time.Now())
		found, why = map[string]model.JobGPUs{}, reason(err)
		for _, j := range gpus {
			for c := range cgroups {
				if c.ID == j.Cgroup {
					slices.Sort(j.Numbers)
					j.Cgroup = 0
					found[c.Path] = j
					break
				}
			}
		}
	})
	return found, why
}

// TestJobGPUs checks the sources of the GPUs of Slurm steps, in trees made from the sources of Slurm.
func TestJobGPUs(t *testing.T) {
	const scope = "/system.slice/slurmstepd.scope"
	for name, c := range map[string]struct {
		files map[string]string
		want  map[string]model.JobGPUs
	}{
		"v2": {
			map[string]string{
				"cgroup.controllers":                                  "memory",
				scope + "/job_7/step_0/slurm/cgroup.procs":            "78\n",
				scope + "/job_7/step_0/user/task_0/cgroup.procs":      "78\n77\n",
				scope + "/job_7/step_0/user/task_1/cgroup.procs":      "81\n",
				scope + "/job_7/step_extern/user/task_0/cgroup.procs": "80\n",
				scope + "/job_8/step_batch/user/task_0/cgroup.procs":  "79\nnonsense\n-1\n404\n",
			},
			map[string]model.JobGPUs{
				scope + "/job_7/step_0":     {Numbers: []int{2, 5, 7}},
				scope + "/job_8/step_batch": {UUIDs: []string{migUUID}},
			},
		},
		"v1": {
			map[string]string{
				"memory/release_agent": "", "devices/release_agent": "",
				"memory/slurm/uid_1234/job_7/step_0/task_0/cgroup.procs": "77\n",
				"devices/slurm/uid_1234/job_7/step_0/devices.list": "b *:* m\nc *:* m\nc 1:3 rwm\nc 195:2 rwm\nc 195:255 rwm\nc 235:30 r\n" +
					"c 226:130 rwm\nc 226:1 rwm\nc 136:* rwm\n",
				"memory/slurm/uid_1234/job_7/step_1/task_0/cgroup.procs": "77\n",
				"devices/slurm/uid_1234/job_7/step_1/devices.list":       "a *:* rwm\n", // the environment decides
				"memory/slurm/uid_1234/job_7/step_2/task_0/cgroup.procs": "77\n",
				"devices/slurm/uid_1234/job_7/step_2/devices.list":       "c 1:3 rwm\n", // no GPU, whatever the environment says
				"memory/slurm/uid_1234/job_7/step_3/task_0/cgroup.procs": "81\n",        // no list
			},
			map[string]model.JobGPUs{
				"/slurm/uid_1234/job_7/step_0": {
					Nodes: []string{"/dev/nvidia2", "/dev/nvidia-caps/nvidia-cap30", "/dev/dri/renderD130", "/dev/dri/card1"},
				},
				"/slurm/uid_1234/job_7/step_1": {Numbers: []int{2, 5}},
				"/slurm/uid_1234/job_7/step_2": {Nodes: []string{}},
				"/slurm/uid_1234/job_7/step_3": {Numbers: []int{5, 7}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newNode(t, c.files)
			got, reason := rounds(t, s)
			if d := cmp.Diff(c.want, got); d != "" || reason != "" {
				t.Errorf("%q (-want +got)\n%s", reason, d)
			}
			// Without a driver of GPUs no environment is read.
			write(t, s.proc, map[string]string{"devices": "Character devices:\n  1 mem\n"})
			if got, reason := rounds(t, s); len(got) != 0 || reason != "" {
				t.Errorf("without a driver: %v, %q", got, reason)
			}
		})
	}
}

// TestBlockedEnvironment: if the environment of a process cannot be read in time, only the GPUs of its own job are
// missing. The FIFO stands for a process that hangs in a driver while it holds its mmap_lock.
func TestBlockedEnvironment(t *testing.T) {
	const scope = "/system.slice/slurmstepd.scope"
	s := newNode(t, map[string]string{
		"cgroup.controllers":                                 "memory",
		scope + "/job_6/step_0/user/task_0/cgroup.procs":     "81\n",
		scope + "/job_7/step_0/user/task_0/cgroup.procs":     "77\n",
		scope + "/job_8/step_batch/user/task_0/cgroup.procs": "79\n",
	})
	fifo := filepath.Join(s.proc, "77/environ")
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second round does not start a further call
		found, reason := rounds(t, s)
		if len(found) != 2 || !strings.Contains(reason, "job_7 could not be read in time") {
			t.Errorf("%v, %q", found, reason)
		}
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0) // both ends: the read returns when it is closed
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	write(t, s.proc, map[string]string{"77/environ": "SLURM_JOB_GPUS=1\x00"})
	for end := time.Now().Add(time.Minute); ; {
		found, reason := rounds(t, s)
		if len(found) == 3 && reason == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v, %q", found, reason)
		}
	}
}

// TestManySteps: the first steps are read.
func TestManySteps(t *testing.T) {
	if n := len(byJob(make([]Cgroup, maxSteps+1))[""]); n != maxSteps {
		t.Errorf("%d steps", n)
	}
}

// TestManyTasks: tasks of a step beyond the limit are reported.
func TestManyTasks(t *testing.T) {
	files := map[string]string{"cgroup.controllers": "memory"}
	for i := range maxTasks + 1 {
		files[fmt.Sprintf("/system.slice/slurmstepd.scope/job_7/step_0/user/task_%d/cgroup.procs", i)] = "77\n"
	}
	s := newNode(t, files)
	found, reason := rounds(t, s)
	if len(found) != 1 || !strings.Contains(reason, "more than 256 tasks") {
		t.Errorf("%v, %q", found, reason)
	}
}

// TestDeviceCgroup compares with the kernel: the list of a real device cgroup of version 1, and the environment of a
// real process.
func TestDeviceCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	root := "/sys/fs/cgroup/devices"
	if !isFS(root, unix.CGROUP_SUPER_MAGIC) {
		t.Skip("no device cgroups of version 1 are mounted") // most machines have only version 2
	}
	path := fmt.Sprintf("/accelscope_%d", os.Getpid())
	dir := filepath.Join(root, path)
	task := filepath.Join(dir, "task_0")
	for _, d := range []string{dir, task} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(d) //nolint:errcheck // the process has ended
	}
	set := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := child.Command(t.Context(), "sleep", "300")
	cmd.Env = []string{"SLURM_JOB_GPUS=1,3"}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 1234, Gid: 1234}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	endProcess := sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	defer endProcess()
	set("task_0/cgroup.procs", fmt.Sprint(cmd.Process.Pid))

	g := newGres(Options{Mount: root, Devices: root, Procfs: "/proc"})
	defer g.stop()
	check := func(what string, want *model.JobGPUs) {
		t.Helper()
		got, err := g.ofStep(Cgroup{Path: path, Top: path}, map[uint64]string{195: driverNVIDIA})
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", what, err, d)
		}
	}
	check("all devices are allowed", &model.JobGPUs{Numbers: []int{1, 3}})
	set("devices.deny", "c 195:1 rwm") // the list does not show it
	check("one device is denied", &model.JobGPUs{Numbers: []int{1, 3}})
	endProcess()
	if err := os.Remove(task); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel has ended the cgroup below, which allows this", func() bool {
		return os.WriteFile(filepath.Join(dir, "devices.deny"), []byte("a"), 0o600) == nil
	})
	check("no device is allowed", &model.JobGPUs{Nodes: []string{}})
	set("devices.allow", "c 195:3 rwm")
	set("devices.allow", "c 195:255 rw")
	set("devices.allow", "c *:* m")
	check("one GPU is allowed", &model.JobGPUs{Nodes: []string{"/dev/nvidia3"}})
}

func TestEnvironment(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("1,", 100), ",")
	for environ, want := range map[string]model.JobGPUs{
		"":                       {},
		"SLURM_STEP_GPUS=":       {},
		"SLURM_STEP_GPUS=0":      {Numbers: []int{0}},
		"SLURM_STEP_GPUS=0,a":    {},
		"SLURM_STEP_GPUS=-1":     {},
		"SLURM_STEP_GPUS=999":    {},
		"SLURM_STEP_GPUS=1,1":    {Numbers: []int{1}},
		"SLURM_JOB_GPUS=" + many: {},
		"SLURM_JOB_GPUS=0,1\x00SLURM_STEP_GPUS=1":                             {Numbers: []int{1}},
		"SLURM_JOB_GPUS=0\x00CUDA_VISIBLE_DEVICES=" + gpuUUID + "," + migUUID: {UUIDs: []string{gpuUUID, migUUID}},
		"SLURM_JOB_GPUS=0\x00CUDA_VISIBLE_DEVICES=" + gpuUUID + ",0":          {Numbers: []int{0}},
		"SLURM_JOB_GPUS=0\x00CUDA_VISIBLE_DEVICES=GPU-\x1b[31m":               {Numbers: []int{0}},
		"CUDA_VISIBLE_DEVICES=" + gpuUUID:                                     {},
		"XSLURM_JOB_GPUS=0\x00SLURM_JOB_GPUS\x00=SLURM_JOB_GPUS=0":            {},
	} {
		var got model.JobGPUs
		addEnvironment(&got, []byte(environ))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q (-want +got)\n%s", environ, d)
		}
	}
}

// observed returns an environment from another site: testdata/README.md.
func observed(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".environ"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(text, []byte("\n"), []byte{0})
}

// TestObservedEnvironments checks the GPUs in environments of other sites. Each number is the node's, even if
// CUDA_VISIBLE_DEVICES is renumbered.
func TestObservedEnvironments(t *testing.T) {
	for name, want := range map[string][]int{
		"prolog": {1}, "batch": {3}, "interactive": {3}, "step": {7}, "srun": {2, 3},
	} {
		path := "/system.slice/slurmstepd.scope/job_9/step_0"
		s := newNode(t, map[string]string{
			"cgroup.controllers":               "memory",
			path + "/user/task_0/cgroup.procs": "82\n",
		})
		write(t, s.proc, map[string]string{
			"82/status": "Name:\tx\nUid:\t1234\t0\t0\t0\n", "82/environ": string(observed(t, name)),
		})
		got, reason := rounds(t, s)
		if d := cmp.Diff(map[string]model.JobGPUs{path: {Numbers: want}}, got); d != "" || reason != "" {
			t.Errorf("%s: %q (-want +got)\n%s", name, reason, d)
		}
	}
}

func FuzzJobGPUs(f *testing.F) {
	var program bytes.Buffer
	if err := slurmjob.Program(device(2, 195, 2, true), device(2, 195, 3, false)).Marshal(&program, binary.LittleEndian); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("c 195:2 rwm\nc 235:30 r\nc 226:130 rw\n"), []byte("SLURM_JOB_GPUS=0,1\x00CUDA_VISIBLE_DEVICES="+gpuUUID), []byte(drivers),
		program.Bytes())
	for _, name := range []string{"step", "srun"} {
		f.Add([]byte{}, observed(f, name), []byte(drivers), []byte{})
	}
	f.Fuzz(func(t *testing.T, list, environ, devices, program []byte) {
		nodes, ok := allowedNodes(list, gpuMajors(devices))
		if ok == (nodes == nil) || len(nodes) > 4*maxJobGPUs {
			t.Errorf("%v, %v", nodes, ok)
		}
		if in, err := asm.AppendInstructions(nil, bytes.NewReader(program), binary.LittleEndian, "linux"); err == nil {
			if rules, ok := slurmRules(in); ok {
				nodes, ok := namedNodes(rules, gpuMajors(devices))
				if ok && nodes == nil || len(nodes) > 4*maxJobGPUs || 5*len(rules)+8 < len(in) {
					t.Errorf("%v, %v, %d rules of %d instructions", nodes, ok, len(rules), len(in))
				}
			}
		}
		var got model.JobGPUs
		addEnvironment(&got, environ)
		if len(got.UUIDs) > maxJobGPUs || len(got.Numbers) > maxJobGPUs || got.UUIDs != nil && got.Numbers != nil {
			t.Errorf("%+v", got)
		}
		for _, uuid := range got.UUIDs {
			if strings.ContainsFunc(uuid, func(r rune) bool { return r < '-' || r > 'z' }) {
				t.Errorf("%q", uuid)
			}
		}
	})
}
