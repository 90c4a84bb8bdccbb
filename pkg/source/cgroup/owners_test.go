// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOwners has a row for each runtime, scheduler and driver: a path, its owner, and the source of the path's form.
// The owner "cgroup:" is the path itself, which only the list of the runtime names (Source.OfContainer).
func TestOwners(t *testing.T) {
	const (
		systemdPod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSD + ".slice/"
		pod        = "pod:" + uid + "/" + id12
		user       = "/user.slice/user-1000.slice/user@1000.service/"
		slurm2605  = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0"
		ownList    = "cgroup:"
	)
	for _, tt := range []struct{ manager, path, owner, source string }{
		{"Docker, cgroupfs", "/docker/" + id64, "docker:" + id12, "moby/moby daemon/oci_linux.go"},
		{"Docker, cgroupfs, a parent", "/ecs/48cb34f5/" + id64, ownList, "aws/amazon-ecs-agent#1119, moby/moby daemon/oci_linux.go"},
		{"Docker, systemd", "/system.slice/docker-" + id64 + ".scope", "docker:" + id12, "moby/moby daemon/oci_linux.go"},
		{"Docker, systemd, a parent", "/ci.slice/ci-jobs.slice/docker-" + id64 + ".scope", "docker:" + id12, "moby/moby daemon/oci_linux.go"},
		{
			"Docker, systemd, the slice of a user", "/user.slice/user-1000.slice/docker-" + id64 + ".scope", "unit:docker-" + id64 + ".scope",
			"moby/moby daemon/oci_linux.go",
		},
		{"Docker in Docker", "/docker/" + id64 + "/docker/" + other, "docker:" + id12, "moby/moby hack/dind"},
		{"containerd, CRI, cgroupfs", "/kubepods/burstable/pod" + uid + "/" + id64, pod, "containerd/containerd pkg/cri/server/helpers.go"},
		{"containerd, CRI, systemd", systemdPod + "cri-containerd-" + id64 + ".scope", pod, "containerd/containerd pkg/cri/server/helpers.go"},
		{"containerd, CRI without a parent", "/k8s.io/" + id64, "containerd:" + id12, "containerd/containerd pkg/cri/server/helpers.go"},
		{
			"containerd, CRI, systemd of the kubelet only", "/system.slice/containerd.service/kubepods-pod" + uidSD + ".slice:cri-containerd:" + id64, pod,
			"containerd/containerd pkg/cri/server/helpers.go",
		},
		{"containerd, ctr", "/default/web", ownList, "containerd/containerd pkg/oci/spec.go"},
		{"containerd, ctr, an id", "/default/" + id64, ownList, "containerd/containerd pkg/oci/spec.go"},
		{"nerdctl, cgroupfs", "/default/" + id64, ownList, "containerd/nerdctl pkg/cmd/container/run_cgroup_linux.go"},
		{
			"nerdctl, systemd", "/system.slice/nerdctl-" + id64 + ".scope", "containerd:" + id12,
			"containerd/nerdctl pkg/cmd/container/run_cgroup_linux.go",
		},
		{"Podman, cgroupfs", "/libpod_parent/libpod-" + id64, "podman:" + id12, "containers/podman libpod/container_internal_linux.go"},
		{"Podman, systemd", "/machine.slice/libpod-" + id64 + ".scope", "podman:" + id12, "containers/podman libpod/container_internal_linux.go"},
		{
			"Podman, rootless", user + "user.slice/libpod-" + id64 + ".scope/container", "podman:" + id12,
			"containers/podman libpod/container_internal_linux.go",
		},
		{
			"Podman, split", "/system.slice/web.service/libpod-payload-" + id64, "podman:" + id12,
			"containers/podman libpod/container_internal_linux.go",
		},
		{"CRI-O, cgroupfs", "/kubepods/burstable/pod" + uid + "/crio-" + id64, pod, "cri-o/cri-o internal/config/cgmgr/cgroupfs_linux.go"},
		{"CRI-O, systemd", systemdPod + "crio-" + id64 + ".scope", pod, "cri-o/cri-o internal/config/cgmgr/systemd_linux.go"},
		{"cri-dockerd, systemd", systemdPod + "docker-" + id64 + ".scope", pod, "Mirantis/cri-dockerd core/sandbox_helpers.go"},
		{"cri-dockerd, its service", "/system.slice/cri-docker.service/kubepods/pod" + uid + "/" + id64, pod, "Mirantis/cri-dockerd core/sandbox_helpers.go"},
		{"k3s", "/k3s/kubepods/burstable/pod" + uid + "/" + id64, pod, "k3s-io/k3s pkg/cgroups/cgroups_linux.go"},
		{
			"k3s, its service", "/system.slice/k3s.service/kubepods-burstable-pod" + uidSD + ".slice:cri-containerd:" + id64, pod,
			"k3s-io/k3s pkg/cgroups/cgroups_linux.go",
		},
		{
			"k0s, its service", "/system.slice/k0sworker.service/kubepods-pod" + uidSD + ".slice:cri-containerd:" + id64, pod,
			"k0sproject/k0s, the services k0scontroller and k0sworker",
		},
		{
			"microk8s, its service", "/system.slice/snap.microk8s.daemon-containerd.service/kubepods/besteffort/pod" + uid + "/" + id64, pod,
			"canonical/microk8s, the services of the snap",
		},
		{
			"kind, from the node", "/system.slice/docker-" + id64 + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uidSD +
				".slice/cri-containerd-" + other + ".scope", "docker:" + id12,
			"kubernetes-sigs/kind images/base/files/etc/systemd/system/kubelet.slice",
		},
		{
			"kind, from inside", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uidSD + ".slice/cri-containerd-" + id64 + ".scope", pod,
			"kubernetes-sigs/kind images/base/files/etc/systemd/system/kubelet.slice",
		},
		{"kind, cgroupfs", "/kubelet/kubepods/pod" + uid + "/" + id64, pod, "cilium/cilium pkg/cgroups, nested environments"},
		{"LXC before 3.1", "/lxc/101/ns/init.scope", "lxc:101", "lxc/lxc src/lxc/cgroups/cgfsng.c"},
		{"LXC 3.1 and 3.2", "/lxc.payload/web/init.scope", "lxc:web", "lxc/lxc src/lxc/cgroups/cgfsng.c"},
		{"LXC, LXD, Incus", "/lxc.payload.web/system.slice/ssh.service", "lxc:web", "lxc/lxc src/lxc/cgroups/cgfsng.c"},
		{
			"systemd-nspawn", "/machine.slice/systemd-nspawn@web.service/payload/system.slice/ssh.service", "unit:systemd-nspawn@web.service",
			"systemd/systemd src/nspawn/nspawn-register.c",
		},
		{
			"systemd-nspawn, a scope", "/machine.slice/machine-web.scope/payload/init.scope", "unit:machine-web.scope",
			"systemd/systemd src/nspawn/nspawn-register.c",
		},
		{
			"Nomad", "/nomad.slice/share.slice/5f9c2d1e-0000-4000-8000-000000000000.web.scope", "unit:5f9c2d1e-0000-4000-8000-000000000000.web.scope",
			"hashicorp/nomad client/lib/cgroupslib/editor.go",
		},
		{"Nomad, Docker", "/nomad.slice/share.slice/docker-" + id64 + ".scope", "docker:" + id12, "hashicorp/nomad client/lib/cgroupslib/editor.go"},
		{"Slurm, cgroup v1", "/slurm/uid_1000/job_7/step_0/task_0", "slurm:7", "slurm.schedmd.com/cgroups.html"},
		{"Slurm, cgroup v2", "/system.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0", "slurm:7", "slurm.schedmd.com/cgroup_v2.html"},
		{"Slurm from 26.05 on", slurm2605, "slurm:s5K1KKYAYG5D00", "cgroup.conf(5), CgroupJobIdPaths"},
		{"PBS, cgroup v1", "/pbs_jobs.service/jobid/12.pbs", "pbs:12.pbs", "openpbs/openpbs test/tests/functional/pbs_cgroups_hook.py"},
		{"PBS, cgroup v2", "/pbs_jobs.service/jobs/12.pbs/x", "pbs:12.pbs", "0nebody/pbs_exporter, the paths of its collectors"},
		{"PBS, an older hook", "/pbs.service/jobid/12.pbs", "pbs:12.pbs", "openpbs/openpbs test/tests/functional/pbs_cgroups_hook.py"},
		{"PBS, no job", "/pbs_jobs.service/jobid", "unit:pbs_jobs.service", "openpbs/openpbs test/tests/functional/pbs_cgroups_hook.py"},
		{"LSF", "/lsf/cluster1/job.12.10492.1519752391", "lsf:12", "IBM support isg3T1024992, ceems-dev/ceems pkg/collector"},
		{
			"HTCondor, cgroup v1", "/htcondor/condor_var_lib_condor_execute_slot1_2@node/x", "condor:slot1_2",
			"htcondor/htcondor docs/admin-manual/setting-up-special-environments.rst",
		},
		{
			"HTCondor, cgroup v2", "/system.slice/htcondor/condor_var_lib_condor_execute_slot1@node", "condor:slot1",
			"htcondor/htcondor src/condor_starter.V6.1/vanilla_proc.cpp",
		},
		{
			"HTCondor, its service", "/system.slice/condor.service/condor_var_lib_condor_execute_slot2", "condor:slot2",
			"htcondor/htcondor, BASE_CGROUP of RHEL 7",
		},
		{"HTCondor, no job", "/system.slice/condor.service", "unit:condor.service", "htcondor/htcondor, BASE_CGROUP of RHEL 7"},
		{"Flux of another user", user + "app.slice/imp-shell-1-fpUt87KFAo.service", "unit:user@1000.service/imp-shell-1-fpUt87KFAo.service", "flux-framework/flux-core#5962"},
		{"OAR, cgroup v1", "/oar/a_b_4711", "oar:4711", "oar-team/oar sources/core/tools/job_resource_manager_cgroups.pl"},
		{
			"OAR, systemd", "/oar.slice/oar-u1000.slice/oar-u1000-j4711.slice/x.scope", "oar:4711",
			"oar-team/oar sources/core/tools/job_resource_manager_systemd.pl",
		},
	} {
		t.Run(tt.manager, func(t *testing.T) {
			want := tt.owner
			if want == ownList {
				want += tt.path
			}
			if e, _, _ := parse(tt.path); e.Workload != want {
				t.Errorf("%s belongs to %q, want %q (%s)", tt.path, e.Workload, want, tt.source)
			}
		})
	}
}

// TestFlux: only the user of Flux makes units for its jobs.
func TestFlux(t *testing.T) {
	const (
		flux    = "/user.slice/user-500.slice/user@500.service/app.slice/imp-shell-1-fpUt87KFAo.service"
		another = "/user.slice/user-765.slice/user@765.service/imp-shell-450-fPY66riwfnP.service"
		user    = "/user.slice/user-1000.slice/user@1000.service/imp-shell-450-fPY66riwfnP.service"
		service = "/user.slice/user-500.slice/user@500.service/dbus.service"
		nested  = "/user.slice/user-500.slice/session-1.scope/user@500.service/imp-shell-1-fpUt87KFAo.service"
	)
	for passwd, want := range map[string]map[string]string{
		"root:x:0:0::/:/bin/sh\nflux:x:500:500::/:/bin/sh\n": {
			flux: "flux:fpUt87KFAo", another: "unit:user@765.service/imp-shell-450-fPY66riwfnP.service",
			user: "unit:user@1000.service/imp-shell-450-fPY66riwfnP.service", service: "unit:user@500.service/dbus.service",
			nested: "unit:session-1.scope",
		},
		"root:x:0:0::/:/bin/sh\n": { // any user could linger
			flux: "unit:user@500.service/imp-shell-1-fpUt87KFAo.service", another: "unit:user@765.service/imp-shell-450-fPY66riwfnP.service",
			user: "unit:user@1000.service/imp-shell-450-fPY66riwfnP.service",
		},
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"passwd": passwd})
		s := fakeTree(t, Options{Passwd: dir + "/passwd"}, "a")
		for path, workload := range want {
			g, _ := s.table.add(nil, path+"/x", 1<<50, s.opt.Now())
			if g.fact.Workload != workload {
				t.Errorf("%s belongs to %q, want %q", path, g.fact.Workload, workload)
			}
		}
	}
}

// TestFluxOfDirectoryService: the user of Flux is missing in passwd, but has the cgroup of the broker, which starts
// after the sensor.
func TestFluxOfDirectoryService(t *testing.T) {
	broker := os.Getuid()
	s := fakeTree(t, Options{Passwd: t.TempDir() + "/none"}, "a")
	at := filepath.Join(s.hierarchy.Mount, "system.slice/flux.service")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	job := func(uid int) string {
		s.mu.Lock()
		defer s.mu.Unlock()
		g, _ := s.table.add(nil, fmt.Sprintf("/user.slice/user-%d.slice/user@%d.service/imp-shell-1-fpUt87KFAo.service", uid, uid), 1<<50, s.opt.Now())
		return g.fact.Workload
	}
	if broker == 0 {
		if got := job(0); strings.HasPrefix(got, "flux:") {
			t.Errorf("root: %q", got)
		}
		broker = 70765
		if err := os.Chown(at, broker, broker); err != nil {
			t.Fatal(err)
		}
	}
	if got := job(broker); got != "flux:fpUt87KFAo" {
		t.Errorf("the user of the broker: %q", got)
	}
	if got := job(500); strings.HasPrefix(got, "flux:") {
		t.Errorf("another user: %q", got)
	}
}
