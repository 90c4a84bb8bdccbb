// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// delegated are cgroups below which another user than the node's root makes cgroups with any name, with their
// workloads.
var delegated = []struct{ path, workload string }{
	{"/lxc/101", "lxc:101"},
	{"/lxc.payload/web", "lxc:web"},
	{"/lxc.payload.web", "lxc:web"},
	{"/lab", "cgroup:/lab"},
	{"/lab/team/" + id64, "cgroup:/lab/team/" + id64},
	{"/gpu.slice/" + id64, "cgroup:/gpu.slice/" + id64},
	{"/lab/libpod-" + id64, "cgroup:/lab/libpod-" + id64},
	{"/lab/docker-" + id64 + ".scope", "cgroup:/lab/docker-" + id64 + ".scope"},
	{"/docker/" + id64, "docker:" + id12},
	{"/docker/buildkit/abc", "cgroup:/docker/buildkit/abc"},
	{"/system.slice/docker-" + id64 + ".scope", "docker:" + id12},
	{"/libpod_parent/libpod-" + id64, "podman:" + id12},
	{"/kubepods/burstable/pod" + uid + "/" + id64, "pod:" + uid + "/" + id12},
	{"/kubepods.slice/kubepods-pod" + uidSD + ".slice/crio-" + id64 + ".scope", "pod:" + uid + "/" + id12},
	{"/slurm/uid_1000/job_7", "slurm:7"},
	{"/system.slice/slurmstepd.scope/job_7", "slurm:7"},
	{"/system.slice/slurmstepd.scope/s5K1KKYAYG5D00", "slurm:s5K1KKYAYG5D00"},
	{"/pbs_jobs.service/jobid/12.pbs", "pbs:12.pbs"},
	{"/lsf/cluster/job.12.1.2", "lsf:12"},
	{"/system.slice/htcondor/condor_execute_slot1@n", "condor:slot1"},
	{"/oar/ada_12", "oar:12"},
	{"/oar.slice/oar-u1.slice/oar-u1-j12.slice", "oar:12"},
	{"/machine.slice/machine-web.scope", "unit:machine-web.scope"},
	{"/machine.slice/systemd-nspawn@web.service", "unit:systemd-nspawn@web.service"},
	{"/system.slice/batch.service", "unit:batch.service"},
	{"/system.slice/docker.service/lab", "unit:docker.service"},
	{"/user.slice/user-1000.slice/session-3.scope", "unit:session-3.scope"},
	{"/user.slice/user-1000.slice/user@1000.service", "unit:user@1000.service"},
	{"/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", "unit:user@1000.service/a.service"},
}

// segments are names that others may give their cgroups: names that the parser knows, with ids of a victim.
var segments = []string{
	"docker", other, "docker-" + other + ".scope", "k8s.io", "libpod_parent", "libpod-" + other, "libpod-" + other + ".scope",
	"libpod-payload-" + other, "nerdctl-" + other + ".scope", "cri-containerd-" + other + ".scope", "crio-" + other + ".scope",
	"kubepods", "burstable", "besteffort", "pod" + uid, "kubepods.slice", "kubepods-burstable.slice", "kubepods-pod" + uidSD + ".slice",
	"kubepods-pod" + uidSD + ".slice:cri-containerd:" + other, "kubelet", "k3s", "kubelet-kubepods.slice",
	"slurm", "slurm_node", "uid_0", "job_1", "slurmstepd.scope", "node_slurmstepd.scope", "s5K1KKYAYG5D00", "step_0", "user", "task_0",
	"lxc", "lxc.payload", "lxc.payload.victim", "victim", "101", "ns", "system.slice", "user.slice", "user-0.slice", "user@0.service",
	"machine.slice", "machine-victim.scope", "docker.service", "containerd.service", "k3s.service", "k0sworker.service", "ssh.service",
	"init.scope", "pbs_jobs.service", "jobid", "jobs", "1.server", "htcondor", "condor.service", "condor_var_lib_condor_execute_slot1_1@n",
	"lsf", "cluster", "job.1.2.3", "oar", "victim_1", "oar.slice", "oar-u0.slice", "oar-u0-j1.slice", "imp-shell-0-fVICTIM.service", "x",
}

// TestDelegated: a path below a delegated cgroup has no owner outside of it. A container of rootless Podman below a
// unit or a user is only claimed, and its id is not used.
func TestDelegated(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same paths each time
	for _, d := range delegated {
		outer, workload := d.path, d.workload
		if e, _, _ := parse(outer); e.Workload != workload {
			t.Errorf("%s belongs to %q, want %q", outer, e.Workload, workload)
		}
		for range 20000 {
			path := outer
			for range 1 + random.IntN(6) {
				path += "/" + segments[random.IntN(len(segments))]
			}
			checkDelegated(t, outer, workload, path)
			if t.Failed() {
				break
			}
		}
	}
}

func checkDelegated(t *testing.T, outer, workload, path string) {
	t.Helper()
	e, top, _ := parse(path)
	inside := strings.HasPrefix(top, outer)
	switch {
	case e.Workload == workload:
	case e.Claimed && inside && (strings.HasPrefix(outer, "/user.slice/") || outer == "/system.slice/batch.service"):
	case inside && e.Workload == clean("cgroup:"+top, maxLabel) && e.ContainerID == "" && e.PodUID == "":
	case inside && strings.HasPrefix(workload, "unit:user@") && strings.HasPrefix(e.Workload, "unit:user@1000.service/"):
	default:
		t.Errorf("%s belongs to %+v, outside of %s (%s)", path, e, outer, workload)
	}
}

// TestGuestsOwnWhatTheyMake has the paths of LXC guests, and of a container with an unknown parent.
func TestGuestsOwnWhatTheyMake(t *testing.T) {
	for _, tt := range []struct{ path, want string }{
		{"/lxc/101", "lxc:101"},
		{"/lxc/101/ns/docker/" + id64, "lxc:101"},
		{"/lxc/101/ns/system.slice/ssh.service", "lxc:101"},
		{"/lxc/102/ns/kubepods/burstable/pod" + uid + "/" + id64, "lxc:102"},
		{"/lxc.payload/web/docker/" + id64, "lxc:web"},
		{"/lxc.payload.web/docker/" + id64, "lxc:web"},
		{"/lab/" + other + "/docker/" + id64, "cgroup:/lab/" + other},
		{"/ecs/48cb34f5/" + other + "/docker/" + id64, "cgroup:/ecs/48cb34f5/" + other},
		{"/lab/docker/" + id64, "cgroup:/lab/docker/" + id64},
		{"/lab/kubepods/burstable/pod" + uid + "/" + id64, "cgroup:/lab/kubepods/burstable/pod" + uid + "/" + id64},
		{"/lxc", "cgroup:/lxc"},
		{"/lxc.monitor/101", "cgroup:/lxc.monitor/101"},
		{"/machine.slice/machine-web.scope/payload/libpod_parent/libpod-" + other, "unit:machine-web.scope"},
	} {
		if e, _, _ := parse(tt.path); e.Workload != tt.want {
			t.Errorf("%s belongs to %q, want %q", tt.path, e.Workload, tt.want)
		}
	}
}
