// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"strings"
	"testing"
)

// TestOfContainer: a container has the cgroup of its first process, if this cgroup has the id of the container.
func TestOfContainer(t *testing.T) {
	const pid = 1000
	for name, c := range map[string]struct{ process, path, want string }{
		"a parent":                                     {"/ecs/48cb34f5/" + id64, "", "/ecs/48cb34f5/" + id64},
		"another parent than listed":                   {"/ecs/48cb34f5/" + id64, "/ecs/" + id64, "/ecs/48cb34f5/" + id64},
		"a namespace of containerd":                    {"/default/" + id64, "/default/" + id64, "/default/" + id64},
		"no process":                                   {"", "/default/" + id64, "/default/" + id64},
		"nothing is known":                             {"", "", ""},
		"the slice of a user":                          {"/user.slice/user-1000.slice/docker-" + id64 + ".scope", "", "/user.slice/user-1000.slice/docker-" + id64 + ".scope"},
		"a service":                                    {"/system.slice/web.service/libpod-payload-" + id64, "", "/system.slice/web.service/libpod-payload-" + id64},
		"the path is enough":                           {"/docker/" + id64, "", ""},
		"the path is enough, in a pod":                 {"/kubepods/pod" + uid + "/" + id64, "", ""},
		"the path of runc":                             {"/kubepods-pod" + uidSD + ".slice:cri-containerd:" + id64, "", ""},
		"a nested first process":                       {"/lab/" + id64 + "/init.scope", "", "/lab/" + id64},
		"a hostile first process":                      {"/lab/" + id64 + "/docker/" + other + "/" + id64, "", "/lab/" + id64},
		"not its own, as of podman --cgroups=disabled": {"/user.slice/user-1000.slice/session-1.scope", "", ""},
		"not its own, or the number is used again":     {"/docker/" + other, "", ""},
		"not its own: the id is part of a name only":   {"/lab/x" + id64, "", ""},
		"not its own, below a job of LSF":              {"/lsf/cluster1/job.12.10492.1519752391/" + id64, "", ""},
		"not its own, below a job of PBS":              {"/pbs_jobs.service/jobid/12.pbs/" + id64, "", ""},
		"not its own, below a slot of HTCondor":        {"/htcondor/condor_var_lib_condor_execute_slot1@node/" + id64, "", ""},
		"not its own, below a job of OAR":              {"/oar/ada_12/" + id64, "", ""},
		"not its own, below a step of Slurm":           {"/system.slice/slurmstepd.scope/job_7/step_0/" + id64, "", ""},
		"not its own, below a job of Slurm, v1":        {"/slurm/uid_1000/job_7/docker/" + id64, "", ""},
		"not its own, below a service":                 {"/system.slice/foo.service/docker/" + id64, "", ""},
		"not its own, below a service of a user":       {"/user.slice/user-1000.slice/user@1000.service/a.service/docker/" + id64, "", ""},
		"not its own, below a guest":                   {"/lxc/101/" + id64, "", ""},
		"not its own, below a guest, as listed":        {"", "/lxc.payload.web/docker/" + id64, ""},
		"not its own, below a container":               {"/docker/" + other + "/docker/" + id64, "", ""},
		"not its own, below an unnamed container":      {"/lab/" + other + "/" + id64, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if c.process != "" {
				write(t, proc, map[string]string{fmt.Sprint(pid, "/cgroup"): "0::" + c.process + "\n"})
			}
			s := fakeTree(t, Options{Procfs: proc}, "a")
			elsewhere := strings.HasPrefix(name, "not its own")
			if got, own := s.OfContainer(pid, id64, c.path); got != c.want || own == elsewhere {
				t.Errorf("%q, %v, want %q", got, own, c.want)
			}
		})
	}
}

// TestOfNamedContainer: a container with any name has the cgroup at its path, unless another workload has it: the name
// is not a proof.
func TestOfNamedContainer(t *testing.T) {
	s := fakeTree(t, Options{}, "a")
	for path, want := range map[string]bool{
		"/default/web": true, "/web": true, "/gpu.slice/web": true, "": true,
		"/lsf/cluster1/job.12.10492.1519752391/web": false, "/system.slice/foo.service/web": false, "/lxc/101/web": false, "/lxc/web": false,
		"/system.slice/ctr-web.scope": false, "/docker/" + id64 + "/web": false, "/lab/" + id64 + "/web": false,
	} {
		if _, own := s.OfContainer(0, "web", path); own != want {
			t.Errorf("%s: %v", path, own)
		}
	}
}
