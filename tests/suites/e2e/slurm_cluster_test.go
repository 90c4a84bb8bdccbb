// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// The configuration of a node as Slurm's guides recommend it, with Slurm's cgroups for all that it can constrain. There
// is no prolog. Two device nodes of a FAKE driver stand in for GPUs. The second slurmd is for heterogeneous jobs, whose
// components Slurm places on different nodes.
const (
	slurmConf = `ClusterName=accelscope
SlurmctldHost=guest(127.0.0.1)
SlurmUser=root
AuthInfo=cred_expire=30
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool.%n
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.%n.log
SlurmdPidFile=/run/slurm/slurmd.%n.pid
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
PrologFlags=Contain
PropagateResourceLimitsExcept=MEMLOCK
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=task=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,bf_interval=2,bf_hetjob_immediate
GresTypes=gpu
MpiDefault=none
ReturnToService=2
MessageTimeout=60
SlurmdTimeout=3000
NodeName=guest NodeAddr=127.0.0.1 CPUs=2 RealMemory=1400 Gres=gpu:2
NodeName=guest2 NodeHostname=guest NodeAddr=127.0.0.1 Port=7018 CPUs=2 RealMemory=400
PartitionName=train Nodes=guest Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
PartitionName=pair Nodes=guest,guest2 MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
`
	cgroupConf = `ConstrainDevices=yes
ConstrainCores=yes
ConstrainRAMSpace=yes
`
	gresConf = "NodeName=guest Name=gpu File=/dev/nvidia[0-1]\n"

	slurmUser  = 1500 // alice
	slurmJobs  = "/run/slurm/jobs"
	slurmBin   = "/run/slurm/bin" // the programs, where alice may run them
	slurmLimit = 3 * time.Minute  // until Slurm has done something in an emulated guest
)

var slurmScenarios = []scenario[*slurm]{
	{"steps", (*slurm).steps, "", nil},
	{"totals", (*slurm).totals, "", nil},
	{"gpus", (*slurm).gpus, "", nil},
	{"array", (*slurm).array, "", nil},
	{"heterogeneous", (*slurm).heterogeneous, "", nil},
	{"suspend", (*slurm).suspend, "", nil},
	{"requeue", (*slurm).requeue, "", nil},
	{"health", (*slurm).health, "", nil},
	{"restart", (*slurm).restart, "", nil},
}

// TestSlurm compares the sensor with a real Slurm of one node: Debian's slurmctld, slurmd and munge under systemd.
// `make test-slurm` runs it.
func TestSlurm(t *testing.T) {
	if !whole() {
		t.Skip("runs in make test-slurm")
	}
	runParallel(t)
	for _, n := range nodes(slurmScenarios) {
		t.Run(n.String(), func(t *testing.T) {
			if guest.Enter(t, n.slurmOptions(t)) {
				play(t, n, slurmScenarios, n.startSlurm(t))
			}
		})
	}
}

// slurmOptions builds, outside the guest, the programs that TestSlurm needs in it.
func (n node) slurmOptions(t *testing.T) vm.Options {
	t.Helper()
	if runParallel(t); os.Getenv(binaryVar) != "" {
		return vm.Options{} // in the guest
	}
	workloads, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := vm.FetchKernel(t.Context(), n.kernel)
	if err != nil {
		t.Fatal(err)
	}
	stub, err := vm.BuildModule(t.Context(), kernel, "../../machines/vm/driver/nvidia.c")
	if err != nil {
		t.Fatal(err)
	}
	library, err := nvml.Build(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sh(t, "go", "build", "-o", dir, "github.com/accelscope/accelscope/cmd/...")
	return vm.Options{
		Kernel: n.kernel, Cgroup: n.cgroup, Devices: 2, Systemd: true, Timeout: time.Hour,
		Env: []string{
			nodesVar + "=" + os.Getenv(nodesVar), binaryVar + "=" + dir + "/accelscope", workloadsVar + "=" + workloads,
			stubVar + "=" + stub, nvmlVar + "=" + library,
			"PATH=" + workloads + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		},
	}
}

// slurm is the cluster, and a sensor on its node.
type slurm struct {
	n    node
	nvml *nvml.Scenario // the answers of the FAKE
	s    *sensor
}

func (n node) startSlurm(t *testing.T) *slurm {
	t.Helper()
	sh(t, "sh", "-ec", fmt.Sprintf(`mkdir -p /etc/slurm /run/slurm/state /run/slurm/spool.guest /run/slurm/spool.guest2 %[1]s
		echo SLURMD_OPTIONS="-N guest" >/etc/default/slurmd
		echo 'alice:x:%[2]d:%[2]d::%[1]s:/bin/sh' >>/etc/passwd
		echo 'alice:x:%[2]d:' >>/etc/group
		echo 127.0.0.1 guest >>/etc/hosts
		chown %[2]d:%[2]d %[1]s
		cp -r %[3]s %[4]s; chmod -R a+rX %[4]s`, slurmJobs, slurmUser, os.Getenv(workloadsVar), slurmBin))
	write(t, slurmBin+"/holding", "#!/bin/sh\nexec \"$@\" </dev/null\n")
	sh(t, "chmod", "755", slurmBin+"/holding")
	for name, text := range map[string]string{"slurm": slurmConf, "cgroup": cgroupConf, "gres": gresConf} {
		write(t, "/etc/slurm/"+name+".conf", text)
	}
	d := newStubDriver(t)
	// The second GPU is an unused PCI function, too: the SATA controller.
	second := *d
	second.address = "0000:00:1f.2"
	d.gpus.AddH100(1)
	d.gpus.Set("1", "nvmlDeviceGetPciInfo", "0000"+strings.ToUpper(second.address), "0x233010DE", "0x16C110DE")
	d.load("550.54.15")
	second.bindTo("nvidia")
	d.makeNodes()
	if err := unix.Mknod("/dev/nvidia1", unix.S_IFCHR|0o666, int(unix.Mkdev(195, 1))); err != nil {
		t.Fatal(err)
	}
	sh(t, "chmod", "666", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := child.Command(context.Background(), "sh", "-c", `squeue -a; squeue -s; scontrol show job -d
				tail -n 60 /run/slurm/*.log; journalctl -b -n 60 --no-pager
				find /sys/fs/cgroup -name 'job_*' -o -name 'step_*' -o -name 'task_*'`).CombinedOutput()
			t.Logf("Slurm:\n%s", out)
		}
	})
	sh(t, "systemctl", "start", "munge", "slurmctld", "slurmd")
	sh(t, "systemd-run", "--unit=slurmd2", "--property=Delegate=yes", "--property=KillMode=process", "--property=LimitMEMLOCK=infinity",
		"slurmd", "-D", "-N", "guest2")
	took := eventually(t, slurmLimit, func() error {
		if state := slurmSays(t, "sinfo", "-h", "-N", "-p", "pair", "-o", "%T"); state != "idle\nidle" {
			return fmt.Errorf("the nodes are %q", state)
		}
		return nil
	})
	t.Logf("%s is ready after %v", strings.TrimSpace(sh(t, "slurmd", "-V")), took.Round(time.Second))
	l := &slurm{n: n, nvml: d.gpus}
	l.begin(t)
	return l
}

// begin starts the sensor. Its probes are ready before the first calls of the jobs.
func (l *slurm) begin(t *testing.T) {
	t.Helper()
	l.s, _ = l.n.watched(t, "--rdma.datapath=always", "--gpu.nvml-library="+os.Getenv(nvmlVar), "--gpu.process-interval=5s",
		"--workload.env=SLURM_PROCID")
}

// slurmSays returns the output of a command of Slurm, without spaces around it. It may fail while Slurm is starting.
func slurmSays(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, _ := child.Command(t.Context(), name, args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}

// submit submits a script as the user alice and returns the number of the job. The outputs of the script are in slurmJobs.
func (l *slurm) submit(t *testing.T, script string, options ...string) string {
	t.Helper()
	file := filepath.Join(slurmJobs, strings.ReplaceAll(t.Name(), "/", "_")+".sh")
	write(t, file, "#!/bin/bash\nexport PATH="+slurmBin+":$PATH\n"+script+"\n")
	args := append([]string{
		fmt.Sprint("--reuid=", slurmUser), fmt.Sprint("--regid=", slurmUser), "--clear-groups",
		"sbatch", "--parsable", "--chdir=" + slurmJobs, "--account=physics", "--partition=train",
	}, options...)
	id := strings.TrimSpace(sh(t, "setpriv", append(args, file)...))
	if _, err := strconv.Atoi(id); err != nil {
		t.Fatalf("sbatch printed %q", id)
	}
	t.Cleanup(func() { l.end(t, id) })
	return id
}

// end cancels a job and waits until nothing of it is left.
func (l *slurm) end(t *testing.T, id string) {
	t.Helper()
	_ = child.Command(context.Background(), "scancel", id).Run()
	eventually(t, slurmLimit, func() error {
		out, err := child.Command(context.Background(), "squeue", "-h", "-j", id).Output()
		if len(out) > 0 {
			return fmt.Errorf("canceled: %s", out)
		}
		return err
	})
}

func (l *slurm) ended(t *testing.T, id string) {
	t.Helper()
	eventually(t, slurmLimit, func() error {
		switch state := l.field(t, id, "JobState"); state {
		case "COMPLETED":
			return nil
		case "FAILED":
			t.Fatalf("job %s failed: %s", id, l.output(t, id))
		default:
			return fmt.Errorf("job %s is %s", id, state)
		}
		return nil
	})
}

// field returns a field of a job as `scontrol show job` prints it.
func (l *slurm) field(t *testing.T, id, name string) string {
	t.Helper()
	text := slurmSays(t, "scontrol", "show", "job", "-d", id)
	if match := regexp.MustCompile(`(?:^|\s)` + name + `=(\S+)`).FindStringSubmatch(text); match != nil {
		return match[1]
	}
	return ""
}

func (l *slurm) output(t *testing.T, id string) string {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join(slurmJobs, "slurm-"+id+".out"))
	return string(text)
}

// printed waits until the batch script of a job has printed a line n times.
func (l *slurm) printed(t *testing.T, id, line string, n int) {
	t.Helper()
	eventually(t, slurmLimit, func() error {
		if got := strings.Count("\n"+l.output(t, id), "\n"+line); got < n {
			if state := l.field(t, id, "JobState"); state == "COMPLETED" || state == "FAILED" {
				t.Fatalf("job %s is %s and has not printed %q: %s", id, state, line, l.output(t, id))
			}
			return fmt.Errorf("job %s is %s and has printed %q %d times, want %d: %s", id, l.field(t, id, "JobState"), line, got, n, l.output(t, id))
		}
		return nil
	})
}

// listed returns the steps of a job and their user, as squeue lists them. squeue shows the job in the form of users:
// 4711_3, 4711+1.
func (l *slurm) listed(t *testing.T, id string) (steps []string) {
	t.Helper()
	shown := id
	for line := range strings.Lines(sh(t, "squeue", "-h", "-r", "-o", "%i %A")) {
		if name, number, _ := strings.Cut(strings.TrimSpace(line), " "); number == id {
			shown = name
		}
	}
	for line := range strings.Lines(sh(t, "squeue", "-s", "-h", "-o", "%i %u")) {
		job, step, _ := strings.Cut(strings.TrimSpace(line), ".")
		if job != shown && job != id { // the latter for a heterogeneous job
			continue
		}
		// Slurm may have removed the cgroup of step extern of a job that was requeued.
		if name, _, _ := strings.Cut(step, " "); name != "extern" || len(l.cgroups(t, id, "step_extern", "memory/step_extern")) > 0 {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps
}

// exported returns the steps of a job and their user, as the sensor exports them, in the form of listed.
func (m metrics) exported(id string) (steps []string) {
	for _, x := range m.all("accelscope_slurm_step_info", "workload", "slurm:"+id, "job_id", id) {
		steps = append(steps, label(x, "step")+" "+label(x, "user"))
	}
	slices.Sort(steps)
	return steps
}
