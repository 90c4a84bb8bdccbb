// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	id64  = "3f4e1cba0987d6c5b4a392817060f5e4d3c2b1a0998877665544332211ffeedd"
	id12  = "3f4e1cba0987"
	other = "aaaaaaaaaaaa6c5b4a392817060f5e4d3c2b1a0998877665544332211ffeedd0"
	uid   = "5d9ef7a1-6a2c-4f0b-9d3e-1b2c3d4e5f60"
	uidSD = "5d9ef7a1_6a2c_4f0b_9d3e_1b2c3d4e5f60"
	// uidStatic is the UID of a static pod.
	uidStatic = "0123456789abcdef0123456789abcdef"
)

func inPod(uid, id, runtime, path string) model.Cgroup {
	e := model.Cgroup{Workload: "pod:" + uid, PodUID: uid, Runtime: runtime, ContainerID: id, Path: model.CgroupPath(path)}
	if id != "" {
		e.Workload += "/" + id[:min(12, len(id))]
	}
	return e
}

func alone(runtime, path string) model.Cgroup {
	return model.Cgroup{Workload: runtime + ":" + id12, Runtime: runtime, ContainerID: id64, Path: model.CgroupPath(path)}
}

func unit(name, path string) model.Cgroup {
	return model.Cgroup{Workload: "unit:" + name, Runtime: "systemd", Path: model.CgroupPath(path)}
}

func job(job, step, path string) model.Cgroup {
	_, user, _ := strings.Cut(path, "/uid_") // only in a path of cgroup v1
	user, _, _ = strings.Cut(user, "/")
	return model.Cgroup{Workload: "slurm:" + job, Runtime: "slurm", User: user, Step: step, Path: model.CgroupPath(path)}
}

func bare(path string) model.Cgroup {
	return model.Cgroup{Workload: "cgroup:" + path, Path: model.CgroupPath(path)}
}

func TestParse(t *testing.T) {
	const (
		burst = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSD + ".slice"
		best  = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidSD + ".slice"
		guar  = "/kubepods.slice/kubepods-pod" + uidSD + ".slice"
		kind  = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/" +
			"kubelet-kubepods-burstable-pod" + uidSD + ".slice"
		user = "/user.slice/user-1000.slice/user@1000.service"
	)
	for _, tt := range []struct {
		name string
		top  string // the cgroup of the workload
		sub  string // rest of the path
		want func(top string) model.Cgroup
	}{
		// containerd, systemd driver
		{"containerd burstable", burst + "/cri-containerd-" + id64 + ".scope", "", pod64("containerd")},
		{"containerd besteffort", best + "/cri-containerd-" + id64 + ".scope", "", pod64("containerd")},
		{"containerd guaranteed", guar + "/cri-containerd-" + id64 + ".scope", "", pod64("containerd")},
		{"containerd nested", burst + "/cri-containerd-" + id64 + ".scope", "/init.scope", pod64("containerd")},
		{
			"containerd systemd inside", burst + "/cri-containerd-" + id64 + ".scope", "/system.slice/sshd.service",
			pod64("containerd"),
		},
		{"kind", kind + "/cri-containerd-" + id64 + ".scope", "", pod64("containerd")},
		{"kind below kubelet", "/kubelet" + burst + "/cri-containerd-" + id64 + ".scope", "", pod64("containerd")},
		{"cgroup root", "/custom.slice/custom-kubepods.slice/custom-kubepods-pod" + uidSD +
			".slice/cri-containerd-" + id64 + ".scope", "", pod64("containerd")},
		{"static pod", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidStatic +
			".slice/cri-containerd-" + id64 + ".scope", "", func(top string) model.Cgroup {
			return inPod(uidStatic, id64, "containerd", top)
		}},
		{"colons", "/system.slice/containerd.service/kubepods-besteffort-pod" + uidSD +
			".slice:cri-containerd:" + id64, "", pod64("containerd")},
		{"colons at the root", "/kubepods-pod" + uidSD + ".slice:cri-containerd:" + id64, "/x", pod64("containerd")},
		{"colons crio", "/kubepods-pod" + uidSD + ".slice:crio:" + id64, "", pod64("cri-o")},
		{"colons docker", "/kubepods-pod" + uidSD + ".slice:docker:" + id64, "", pod64("docker")},
		// cgroupfs driver: the path does not contain the runtime
		{"cgroupfs burstable", "/kubepods/burstable/pod" + uid + "/" + id64, "", pod64("")},
		{"cgroupfs besteffort", "/kubepods/besteffort/pod" + uid + "/" + id64, "", pod64("")},
		{"cgroupfs guaranteed", "/kubepods/pod" + uid + "/" + id64, "", pod64("")},
		{"cgroupfs nested", "/kubepods/burstable/pod" + uid + "/" + id64, "/a/b/c", pod64("")},
		{"cgroupfs k3s", "/k3s/kubepods/burstable/pod" + uid + "/" + id64, "", pod64("")},
		{"cgroupfs kubelet", "/kubelet/kubepods/besteffort/pod" + uid + "/" + id64, "", pod64("")},
		{"cgroupfs static pod", "/kubepods/burstable/pod" + uidStatic + "/" + id64, "", func(top string) model.Cgroup {
			return inPod(uidStatic, id64, "", top)
		}},
		{"cgroupfs short id", "/kubepods/burstable/pod" + uid + "/writer-container-2", "", func(top string) model.Cgroup {
			return model.Cgroup{
				Workload: "pod:" + uid + "/writer-container-2", ContainerID: "writer-container-2",
				PodUID: uid, Path: model.CgroupPath(top),
			}
		}},
		// CRI-O
		{"crio", burst + "/crio-" + id64 + ".scope", "", pod64("cri-o")},
		{"crio nested", burst + "/crio-" + id64 + ".scope", "/container", pod64("cri-o")},
		{"crio cgroupfs", "/kubepods/burstable/pod" + uid + "/crio-" + id64, "", pod64("cri-o")},
		{"crio conmon", burst, "/crio-conmon-" + id64 + ".scope", pod64("")},
		{"crio conmon cgroupfs", "/kubepods/besteffort/pod" + uid, "/crio-conmon-" + id64, pod64("")},
		// Docker
		{"kubepods docker", burst + "/docker-" + id64 + ".scope", "", pod64("docker")},
		{"docker scope", "/system.slice/docker-" + id64 + ".scope", "", docker},
		{"docker scope nested", "/system.slice/docker-" + id64 + ".scope", "/init", docker},
		{"docker parent slice", "/gpu.slice/gpu-jobs.slice/docker-" + id64 + ".scope", "", docker},
		{"docker cgroupfs", "/docker/" + id64, "", docker},
		{"docker cgroupfs nested", "/docker/" + id64, "/kubelet.slice/x.service", docker},
		{"docker in docker", "/docker/" + id64, "/docker/" + other, docker},
		{"kind from outside", "/docker/" + id64, kind + "/cri-containerd-" + other + ".scope", docker},
		{"docker under its service", "/system.slice/docker.service/docker/" + id64, "", docker},
		{"docker, other parent", "/lab/" + id64, "", bare},
		{"buildkit", "/docker/buildkit/abc", "", bare},
		// Podman
		{"podman", "/machine.slice/libpod-" + id64 + ".scope", "", podman},
		{"podman nested", "/machine.slice/libpod-" + id64 + ".scope", "/container", podman},
		{"podman pod", "/machine.slice/machine-libpod_pod_" + other + ".slice/libpod-" + id64 + ".scope", "", podman},
		{"podman cgroupfs", "/libpod_parent/libpod-" + id64, "", podman},
		{"podman cgroupfs pod", "/libpod_parent/" + other + "/libpod-" + id64, "", podman},
		{"podman split", "/system.slice/web.service/libpod-payload-" + id64, "", claimed},
		{"podman rootless", user + "/user.slice/libpod-" + id64 + ".scope", "/container", claimed},
		{"podman rootless split", user + "/app.slice/web.service/libpod-payload-" + id64, "", claimed},
		{"podman conmon", "/machine.slice/libpod-conmon-" + id64 + ".scope", "", func(top string) model.Cgroup {
			return unit("libpod-conmon-"+id64+".scope", top)
		}},
		{"podman conmon cgroupfs", "/libpod_parent/libpod-conmon-" + id64, "", bare},
		// containerd without Kubernetes
		{"nerdctl", "/system.slice/nerdctl-" + id64 + ".scope", "", alone12("containerd")},
		{"cri without parent", "/k8s.io/" + id64, "", alone12("containerd")},
		{"cri scope without pod", "/system.slice/cri-containerd-" + id64 + ".scope", "", alone12("containerd")},
		{"ctr", "/default/web", "", bare},
		{"nerdctl cgroupfs", "/default/" + id64, "", bare},
		{"crio scope without pod", "/system.slice/crio-" + id64 + ".scope", "", alone12("cri-o")},
		{"lxc", "/lxc.payload.web", "/system.slice/docker-" + id64 + ".scope", func(top string) model.Cgroup {
			return model.Cgroup{Workload: "lxc:web", Runtime: "lxc", Path: model.CgroupPath(top)}
		}},
		// Slurm
		{"slurm v1", "/slurm/uid_1000/job_123", "/step_0/task_0", slurmJob("123", "0")},
		{"slurm v1 batch", "/slurm/uid_1000/job_123", "/step_batch", slurmJob("123", "batch")},
		{"slurm v1 job", "/slurm/uid_1000/job_123", "", slurmJob("123", "")},
		{"slurm v1 node", "/slurm_node17/uid_0/job_9", "/step_extern", slurmJob("9", "extern")},
		{"slurm v1 user only", "/slurm/uid_1000", "", bare},
		{"slurm v2", "/system.slice/slurmstepd.scope/job_123", "/step_0/user/task_0", slurmJob("123", "0")},
		{
			"slurm v2 node", "/system.slice/node17_slurmstepd.scope/job_5", "/step_interactive/slurm",
			slurmJob("5", "interactive"),
		},
		{"slurm v2 of 26.05", "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00", "/step_batch/user/task_0", slurmJob("s5K1KKYAYG5D00", "batch")},
		{"slurm v2 node of 26.05", "/hpc.slice/n1_slurmstepd.scope/sEKNKTV3WPV500", "/step_0", slurmJob("sEKNKTV3WPV500", "0")},
		{"slurm v1 has no SLUID", "/slurm/uid_1000/s5K1KKYAYG5D00", "", bare},
		{"slurm v2 daemon", "/system.slice/slurmstepd.scope", "/system", func(top string) model.Cgroup {
			return unit("slurmstepd.scope", top)
		}},
		{
			"container in a job", "/system.slice/slurmstepd.scope/job_7", "/step_0/user/task_0/docker/" + id64,
			slurmJob("7", "0"),
		},
		// pods and trees without a container
		{"pod slice", burst, "", pod64("")},
		{"pod directory", "/kubepods/pod" + uid, "", pod64("")},
		{"qos slice", "/kubepods.slice/kubepods-burstable.slice", "", bare},
		{"qos directory", "/kubepods/burstable", "", bare},
		{"root", "/", "", bare},
		// systemd
		{"service", "/system.slice/sshd.service", "", unit64("sshd.service")},
		{"service with children", "/system.slice/sshd.service", "/worker/1", unit64("sshd.service")},
		{"nested slices", "/system.slice/system-getty.slice/getty@tty1.service", "", unit64("getty@tty1.service")},
		{
			"escaped", `/system.slice/system-serial\x2dgetty.slice/serial-getty@ttyS0.service`, "",
			unit64("serial-getty@ttyS0.service"),
		},
		{"escaped unit", `/system.slice/dev-disk-by\x2duuid.swap`, "", unit64(`dev-disk-by\x2duuid.swap`)},
		{"underscore", "/system.slice/_cpu.service", "", unit64("cpu.service")},
		{"session", "/user.slice/user-1000.slice/session-3.scope", "", unit64("session-3.scope")},
		{"user unit", user + "/app.slice/foo.service", "", unit64("user@1000.service/foo.service")},
		{
			"user unit nested", user + "/app.slice/app-org.slice/foo.scope", "/x",
			unit64("user@1000.service/foo.scope"),
		},
		{"user manager", user + "/init.scope", "", unit64("user@1000.service/init.scope")},
		{"user manager itself", user, "", unit64("user@1000.service")},
		{"init", "/init.scope", "", unit64("init.scope")},
		{"mount", "/system.slice/tmp.mount", "", unit64("tmp.mount")},
		{"slice", "/system.slice", "", bare},
		{"runtime's service", "/system.slice/containerd.service", "", unit64("containerd.service")},
		{"plain", "/lab/rdma/a", "", bare},
		{"unit's name in a plain tree", "/lab/bob/sshd.service", "", bare},

		// hostile: the name of another workload, below the own cgroup
		{
			"pod in a pod", burst + "/cri-containerd-" + id64 + ".scope", guar + "/crio-" + other + ".scope",
			pod64("containerd"),
		},
		{"pod in docker", "/docker/" + id64, burst + "/cri-containerd-" + other + ".scope", docker},
		{"job in a pod", "/kubepods/burstable/pod" + uid + "/" + id64, "/slurm/uid_0/job_1", pod64("")},
		{"pod in a job", "/slurm/uid_1000/job_123", "/step_0" + burst, slurmJob("123", "0")},
		{
			"pod of a user", user + "/app.slice/x.service", burst + "/cri-containerd-" + id64 + ".scope",
			unit64("user@1000.service/x.service"),
		},
		{
			"pod of a user's manager", user, "/kubepods/burstable/pod" + uid + "/" + id64,
			unit64("user@1000.service"),
		},
		{"pod slice of a user", user, burst, unit64("user@1000.service")},
		{
			"docker of a user", user + "/docker-" + id64 + ".scope", "",
			unit64("user@1000.service/docker-" + id64 + ".scope"),
		},
		{
			"docker directory of a user", "/user.slice/user-1000.slice/session-1.scope", "/docker/" + id64,
			unit64("session-1.scope"),
		},
		{"job of a user", user, "/slurm/uid_0/job_1", unit64("user@1000.service")},
		{
			"job scope of a user", user + "/slurmstepd.scope", "/job_1",
			unit64("user@1000.service/slurmstepd.scope"),
		},
		{"unit of a user", user + "/sshd.service", "", unit64("user@1000.service/sshd.service")},
		{"unit of a user's unit", user + "/a.service", "/b.service", unit64("user@1000.service/a.service")},
		{
			"manager of a session", "/user.slice/user-1000.slice/session-1.scope", "/user@0.service/sshd.service",
			unit64("session-1.scope"),
		},
		{
			"pod in a delegated service", "/system.slice/batch.service", burst + "/crio-" + id64 + ".scope",
			unit64("batch.service"),
		},
		{"docker in a delegated service", "/system.slice/batch.service", "/docker/" + id64, unit64("batch.service")},
		{"lxc of a user", user, "/lxc.payload.web", unit64("user@1000.service")},
		{"podman in a container", "/docker/" + id64, "/libpod_parent/libpod-" + other, docker},
		{"not an id", "/docker/" + strings.ToUpper(id64), "", bare},
		{"pod without an id", "/kubepods.slice/kubepods-pod.slice", "", bare},
		{"not kubepods", "/mykubepods/pod" + uid + "/" + id64, "", bare},
		{"job without a number", "/slurm/uid_1/job_x", "", bare},
		{"unit without a name", "/system.slice/.service", "", bare},
		{"deleted is a name here", "/lab/a (deleted)", "", bare},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, _, _ := parse(tt.top + tt.sub)
			if diff := cmp.Diff(tt.want(tt.top), e); diff != "" {
				t.Errorf("parse(%q): (-want +got)\n%s", tt.top+tt.sub, diff)
			}
		})
	}
}

func pod64(runtime string) func(string) model.Cgroup {
	return func(top string) model.Cgroup {
		id := id64
		if !strings.Contains(top, id64) {
			id = ""
		}
		return inPod(uid, id, runtime, top)
	}
}

func alone12(runtime string) func(string) model.Cgroup {
	return func(top string) model.Cgroup { return alone(runtime, top) }
}

func unit64(name string) func(string) model.Cgroup {
	return func(top string) model.Cgroup { return unit(name, top) }
}

func slurmJob(number, step string) func(string) model.Cgroup {
	return func(top string) model.Cgroup { return job(number, step, top) }
}

// claimed is a Podman container. A user or a unit may have chosen its name.
func claimed(top string) model.Cgroup {
	e := podman(top)
	e.Claimed = true
	return e
}

var docker, podman = alone12("docker"), alone12("podman")

// TestClosed: what is below a closed cgroup is neither watched nor listed.
func TestClosed(t *testing.T) {
	for path, want := range map[string]bool{
		"/":                                false,
		"/system.slice":                    false,
		"/system.slice/containerd.service": false,
		"/system.slice/web.service":        false, // podman split puts a container there
		"/system.slice/web.service/deep":   true,
		"/system.slice/web.service/libpod-payload-" + id64:        true,
		"/system.slice/slurmstepd.scope":                          false,
		"/system.slice/slurmstepd.scope/job_7/step_0/user":        false,
		"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0": true,
		"/user.slice":                                             false,
		"/user.slice/user-1000.slice":                             true,
		"/user.slice/user-1000.slice/user@1000.service":           true,
		"/user.slice/user-1000.slice/user@1000.service/app.slice": true,
		"/user.slice/user-1000.slice/session-1.scope":             true,
		"/kubepods/burstable/pod" + uid:                           false,
		"/kubepods/burstable/pod" + uid + "/" + id64:              true,
		"/docker/" + id64:                                         true,
		"/lxc.payload.one":                                        true,
	} {
		if _, _, closed := parse(path); closed != want {
			t.Errorf("%s: %v, want %v", path, closed, want)
		}
	}
}

// TestParseHostileBytes: names of any bytes become valid and bounded labels that stay
// different.
func TestParseHostileBytes(t *testing.T) {
	long := "/" + strings.Repeat("x", 250) + "/" + strings.Repeat("y", 250)
	seen := map[string]string{}
	for path, want := range map[string]string{
		"/a\xff":                       `cgroup:/a\xff`,
		"/a\ufffd":                     "cgroup:/a\ufffd",
		"/a\x1b[31m":                   `cgroup:/a\x1b[31m`,
		"/käfig":                       "cgroup:/käfig",
		"/a\u202eb":                    `cgroup:/a\xe2\x80\xaeb`,
		"/system.slice/a\tb.service":   `unit:a\x09b.service`,
		"/system.slice/a\xc3b.service": `unit:a\xc3b.service`,
		long + "1":                     "",
		long + "2":                     "",
		"//a///b/":                     "cgroup:/a/b",
		"":                             "cgroup:/",
	} {
		e, _, _ := parse(path)
		if want != "" && e.Workload != want {
			t.Errorf("parse(%q).Workload = %q, want %q", path, e.Workload, want)
		}
		if len(e.Workload) > maxLabel {
			t.Errorf("parse(%q).Workload has %d bytes", path, len(e.Workload))
		}
		if seen[e.Workload] != "" {
			t.Errorf("%q and %q are both %q", path, seen[e.Workload], e.Workload)
		}
		seen[e.Workload] = path
	}
}

func FuzzParse(f *testing.F) {
	for _, path := range []string{
		"/", "", "/../..", "/kubepods.slice/kubepods-pod" + uidSD + ".slice/cri-containerd-" + id64 + ".scope",
		"/kubepods/burstable/pod" + uid + "/crio-" + id64, "/kubepods-pod" + uidSD + ".slice:cri-containerd:" + id64,
		"/docker/" + id64, "/machine.slice/libpod-" + id64 + ".scope/container", "/k8s.io/" + id64,
		"/slurm_n/uid_1/job_2/step_3", "/system.slice/n_slurmstepd.scope/job_1/step_batch/user/task_0",
		"/user.slice/user-1.slice/user@1.service/app.slice/a.service/b", "/a\xff\n/\x1b", "/lxc.payload.x",
		strings.Repeat("/\u202e\xff", 300),
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		e, top, _ := parse(path)
		if _, name, ok := strings.Cut(e.Workload, ":"); !ok || name == "" {
			t.Errorf("no workload in %+v", e)
		}
		for _, label := range []string{e.Workload, e.ContainerID, e.PodUID, e.Runtime, e.Step} {
			if !utf8.ValidString(label) || len(label) > maxLabel || strings.ContainsAny(label, "\n\x00\x1b") {
				t.Errorf("label %q of %+v", label, e)
			}
		}
		if p := string(e.Path); !utf8.ValidString(p) || len(p) > maxPath || !strings.HasPrefix(p, "/") {
			t.Errorf("path %q", p)
		}
		// A cgroup below a matched workload belongs to this workload.
		if below, _, _ := parse(top + "/x"); !strings.HasPrefix(e.Workload, "cgroup:") && e.PodUID == "" &&
			e.Runtime != "systemd" && below.Workload != e.Workload {
			t.Errorf("%q is %q, a child is %q", top, e.Workload, below.Workload)
		}
	})
}

func FuzzProcCgroup(f *testing.F) {
	for _, text := range []string{
		"0::/init.scope\n", "12:cpu,cpuacct:/a:b\n4:memory:/x\n0::/\n", "1:name=systemd:/\n", "0::", "::/\n", "0::relative\n",
	} {
		f.Add([]byte(text), "memory")
		f.Add([]byte(text), "")
	}
	f.Fuzz(func(t *testing.T, b []byte, controller string) {
		path, ok := procCgroup(b, controller)
		if ok != strings.HasPrefix(path, "/") || strings.Contains(path, "\n") {
			t.Errorf("procCgroup(%q, %q) = %q, %v", b, controller, path, ok)
		}
		if !strings.Contains(string(b), path) {
			t.Errorf("path %q is not in %q", path, b)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	path := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSD +
		".slice/cri-containerd-" + id64 + ".scope"
	for b.Loop() {
		parse(path)
	}
}
