// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestWorkloads: each container and job of a fake tree is listed once, with its own cgroup and inode, and nothing else.
func TestWorkloads(t *testing.T) {
	id := strings.Repeat("0a", 32)
	want := []string{
		"/docker/" + id,
		"/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-" + id + ".scope",
		"/kubepods/burstable/pod1-2/" + id,
		"/slurm/uid_1000/job_7",
		"/system.slice/slurmstepd.scope/job_8",
	}
	others := []string{
		"/user.slice/user-1000.slice/docker-" + id + ".scope", // created by a user
		"/system.slice/sshd.service", "/lxc.payload.web", "/kubepods/burstable/pod1-2",
		want[0] + "/docker/" + id, want[3] + "/step_0", want[4] + "/step_0/user/task_0",
	}
	s := fakeTree(t, Options{}, append(slices.Clone(want), others...)...)

	got := map[string]uint64{}
	for inode, path := range s.Workloads() {
		got[path] = uint64(inode)
	}
	inodes := map[string]uint64{}
	for _, path := range want {
		inode, err := cgroupID(filepath.Join(s.hierarchy.Mount, path))
		if err != nil {
			t.Fatal(err)
		}
		inodes[path] = uint64(inode)
	}
	if d := cmp.Diff(inodes, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}

	if err := os.RemoveAll(filepath.Join(s.hierarchy.Mount, "docker")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container is gone", func() bool {
		_, there := s.Workloads()[model.CgroupID(inodes[want[0]])]
		return !there
	})
}
