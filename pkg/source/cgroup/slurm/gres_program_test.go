// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/slurmjob"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func device(kind, major, minor int64, allow bool) slurmjob.Device {
	return slurmjob.Device{Kind: kind, Major: major, Minor: minor, Allow: allow}
}

// makeStep makes the cgroups of a job's step in the tree of version 2. It returns the paths of the mount and the step.
func makeStep(t *testing.T) (mount, step string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create cgroups")
	}
	for _, mount = range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", ""} {
		if mount != "" && isFS(mount, unix.CGROUP2_SUPER_MAGIC) {
			break
		}
	}
	if mount == "" {
		t.Fatal("no cgroups of version 2 are mounted")
	}
	job := fmt.Sprintf("/accelscope_job_%d", os.Getpid())
	step = job + "/step_0"
	for _, dir := range []string{job, step, step + "/user", step + "/user/task_0"} {
		if err := os.Mkdir(mount+dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			eventually(t, "the cgroup is empty", func() bool { return os.Remove(mount+dir) == nil })
		})
	}
	return mount, step
}

// opened returns the device nodes that a process in the cgroup may open: the kernel answers EPERM before it looks for
// the driver (ENXIO), which this machine lacks.
func opened(t *testing.T, cgroup string, majors map[uint64]string, devices []slurmjob.Device) []string {
	t.Helper()
	dir, script, names := t.TempDir(), "echo $$ >"+cgroup+"/cgroup.procs || exit\n", map[string]string{}
	for _, d := range devices {
		node, ok := gpuNode(majors[uint64(d.Major)], uint64(d.Minor))
		if majors[uint64(d.Major)] == "" || !ok || d.Kind == 1 || names[node] != "" {
			continue
		}
		names[node] = filepath.Join(dir, strings.ReplaceAll(node, "/", "_"))
		if err := unix.Mknod(names[node], unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(d.Major), uint32(d.Minor)))); err != nil {
			t.Fatal(err)
		}
		script += fmt.Sprintf("(: <%s) 2>%s.out\n", names[node], names[node])
	}
	if out, err := child.Command(t.Context(), "sh", "-c", script+"true").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	allowed := []string{}
	for node, file := range names {
		text, err := os.ReadFile(file + ".out")
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.Contains(string(text), "No such device"):
			allowed = append(allowed, node)
		case !strings.Contains(string(text), "not permitted"):
			t.Fatalf("%s: %s", node, text)
		}
	}
	slices.Sort(allowed)
	return allowed
}

// TestDeviceProgram attaches device programs like Slurm's to cgroups and compares the result with the opens that the
// kernel allows.
func TestDeviceProgram(t *testing.T) {
	mount, step := makeStep(t)
	job, user, task := mount+filepath.Dir(step), mount+step+"/user", mount+step+"/user/task_0"
	// Numbers of drivers that this machine lacks: 240 to 254 are for local use.
	majors := map[uint64]string{240: driverNVIDIA, 241: driverCaps, 242: driverDRM}
	g := newGres(Options{Mount: mount, Programs: true, Procfs: t.TempDir()})
	defer g.stop()
	found := func() *model.JobGPUs {
		got, err := g.ofStep(Cgroup{Path: step}, majors)
		if err != nil {
			t.Error(err)
		}
		return got
	}
	gpu := func(minor int64, allow bool) slurmjob.Device { return device(2, 240, minor, allow) }

	for name, devices := range map[string][]slurmjob.Device{
		"two of four":       {gpu(0, false), gpu(1, true), gpu(2, true), gpu(3, false)},
		"all":               {gpu(0, true), gpu(1, true)},
		"none":              {gpu(0, false), gpu(1, false)},
		"the first decides": {gpu(0, true), gpu(0, false), gpu(1, false), gpu(1, true), gpu(2, true), gpu(2, true)},
		"a MIG instance":    {gpu(0, true), device(2, 241, 21, true), device(2, 241, 30, false)},
		"AMD":               {device(2, 242, 128, true), device(2, 242, 1, true), device(2, 242, 129, false), device(2, 242, 70, true)},
		"other devices":     {gpu(0, false), device(1, 240, 1, false), device(2, 1, 9, true), gpu(255, true), device(-1, 240, 1, true)},
	} {
		t.Run(name, func(t *testing.T) {
			detach := slurmjob.Attach(t, user, slurmjob.Program(devices...), slurmjob.AllowOverride)
			defer detach()
			want := opened(t, task, majors, devices)
			got := found()
			if got == nil || got.Nodes == nil {
				t.Fatalf("%+v, the kernel allows %v", got, want)
			}
			slices.Sort(got.Nodes)
			if d := cmp.Diff(want, got.Nodes); d != "" || got.Numbers != nil || got.UUIDs != nil {
				t.Errorf("%+v (-kernel +got)\n%s", got, d)
			}
		})
	}

	// The job's program applies to a step without a program, such as batch. A program of the step replaces it.
	endJob := slurmjob.Attach(t, job, slurmjob.Program(gpu(0, true), gpu(1, true), gpu(2, false)), slurmjob.AllowOverride)
	if d := cmp.Diff(&model.JobGPUs{Nodes: []string{"/dev/nvidia0", "/dev/nvidia1"}}, found()); d != "" {
		t.Errorf("the program of the job (-want +got)\n%s", d)
	}
	endStep := slurmjob.Attach(t, user, slurmjob.Program(gpu(0, false), gpu(1, true), gpu(2, false)), slurmjob.AllowOverride)
	if d := cmp.Diff(&model.JobGPUs{Nodes: []string{"/dev/nvidia1"}}, found()); d != "" {
		t.Errorf("the program of the step (-want +got)\n%s", d)
	}
	endStep()
	endJob()

	// Without a capability the program is not readable, and the environment decides.
	endStep = slurmjob.Attach(t, user, slurmjob.Program(gpu(1, true)), slurmjob.AllowOverride)
	without(t, unix.CAP_SYS_ADMIN, func() {
		if got := found(); got != nil || !errors.Is(g.unread, unix.EPERM) {
			t.Errorf("without CAP_SYS_ADMIN: %+v, %v", got, g.unread)
		}
	})
	g.unread = nil
	if got := found(); got == nil || g.unread != nil {
		t.Errorf("with CAP_SYS_ADMIN: %+v, %v", got, g.unread)
	}
	endStep()

	// If a program does not show the GPUs of a step, the environments decide, which are missing here.
	unknown := func(what string) {
		t.Helper()
		if got := found(); got != nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
	unknown("no program")
	allow, deny := slurmjob.Program(gpu(0, true)), slurmjob.Program(gpu(0, true))
	deny[len(deny)-2] = asm.Mov.Imm(asm.R0, 0)
	for what, program := range map[string]asm.Instructions{
		"a program without GPUs": slurmjob.Program(device(2, 1, 9, true)),
		"all GPUs of a driver":   slurmjob.Program(gpu(0, true), gpu(-1, false)),
		"any driver":             slurmjob.Program(gpu(0, true), device(2, -1, 3, false)),
		"denial by default":      deny,
		"a large program":        slurmjob.Program(slices.Repeat([]slurmjob.Device{gpu(0, true)}, 2000)...),
		"one that allows all":    {asm.Mov.Imm(asm.R0, 1), asm.Return()},
	} {
		detach := slurmjob.Attach(t, user, program, slurmjob.AllowOverride)
		unknown(what)
		detach()
	}
	endJob = slurmjob.Attach(t, job, asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, slurmjob.AllowMulti)
	endStep = slurmjob.Attach(t, user, allow, slurmjob.AllowMulti)
	unknown("two programs")
	endStep()
	endJob()
}

func without(t *testing.T, capability int, call func()) {
	t.Helper()
	runtime.LockOSThread() // capabilities belong to the thread
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		t.Fatal(err)
	}
	less := had
	less[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&header, &less[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&header, &had[0]); err != nil {
			t.Fatal(err)
		}
	}()
	call()
}

// TestSlurmRules changes one field of one instruction at a time. The kernel refuses many of these programs; the others
// must not be read like Slurm's.
func TestSlurmRules(t *testing.T) {
	whole := slurmjob.Program(device(2, 195, 0, true), device(-1, 195, 1, false), device(2, 195, -1, true))
	rules, ok := slurmRules(whole)
	if len(rules) != 3 || !ok {
		t.Fatalf("%+v, %v", rules, ok)
	}
	for i := range whole {
		for name, change := range map[string]func(*asm.Instruction){
			"operation":   func(in *asm.Instruction) { in.OpCode ^= 0x10 },
			"source":      func(in *asm.Instruction) { in.OpCode ^= 0x08 },
			"class":       func(in *asm.Instruction) { in.OpCode ^= 0x01 },
			"destination": func(in *asm.Instruction) { in.Dst = (in.Dst + 6) % 10 },
			"offset":      func(in *asm.Instruction) { in.Offset++ },
			"value": func(in *asm.Instruction) {
				if in.OpCode != asm.JNE.Op(asm.ImmSource) { // another device
					in.Constant += 2
				} else {
					in.Offset--
				}
			},
		} {
			program := slices.Clone(whole)
			if change(&program[i]); sameInstruction(program[i], whole[i]) {
				t.Fatalf("%s of %v: no change", name, whole[i])
			}
			if rules, ok := slurmRules(program); ok {
				t.Errorf("%s of instruction %d, %v: %+v", name, i, program[i], rules)
			}
		}
		if _, ok := slurmRules(whole[:i]); ok {
			t.Errorf("the first %d instructions", i)
		}
	}
	if _, ok := slurmRules(append(slices.Clone(whole), asm.Return())); ok {
		t.Error("more instructions after the end")
	}
}
