// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// A ranksNode has trees of cgroups and of /proc, which the test writes. The start time of a process is its number.
type ranksNode struct {
	*Ranks
	workloads map[model.CgroupID]string
}

func newRanksNode(t *testing.T, workloads []string, cgroups, environs map[string]string, variables ...string) ranksNode {
	t.Helper()
	root, proc := t.TempDir(), t.TempDir()
	write(t, root, cgroups)
	for pid, environ := range environs {
		write(t, proc, map[string]string{pid + "/stat": statOf(pid, pid), pid + "/environ": environ})
	}
	n := ranksNode{NewRanks(variables, root, proc), map[model.CgroupID]string{}}
	for i, path := range workloads {
		n.workloads[model.CgroupID(i)] = path
	}
	t.Cleanup(n.Stop)
	return n
}

// ranksRound waits until the ranks were read again. It returns them by path, and the reason of a failure.
func ranksRound(n ranksNode) (found map[string]string, why string) {
	again(&n.background, func() {
		ranks, err := n.Read(func() map[model.CgroupID]string { return n.workloads }, time.Now())
		found, why = map[string]string{}, reason(err)
		for _, r := range ranks {
			found[n.workloads[r.Cgroup]] = r.Ranks
		}
	})
	return found, why
}

// statOf returns /proc/PID/stat of a process with a hostile name.
func statOf(pid, started string) string {
	return pid + " (a) S 1 (b) S 1" + strings.Repeat(" 0", 17) + " " + started + " 4096\n"
}

const (
	podContainer1 = "/kubepods.slice/kubepods-pod11111111_1111_1111_1111_111111111111.slice/cri-containerd-" +
		"1111111111111111111111111111111111111111111111111111111111111111.scope"
	podContainer2 = "/kubepods.slice/kubepods-pod11111111_1111_1111_1111_111111111111.slice/cri-containerd-" +
		"2222222222222222222222222222222222222222222222222222222222222222.scope"
	job7 = "/system.slice/slurmstepd.scope/job_7"
)

// TestRanks reads the ranks of containers and of a Slurm job: the first variable that a process has, with all cgroups
// below.
func TestRanks(t *testing.T) {
	s := newRanksNode(t, []string{podContainer1, podContainer2, job7}, map[string]string{
		podContainer1 + "/cgroup.procs":           "10\n11\n12\n13\n",
		podContainer2 + "/cgroup.procs":           "20\n404\n",
		podContainer2 + "/below/cgroup.procs":     "21\n",
		job7 + "/step_0/user/task_0/cgroup.procs": "30\n",
		job7 + "/step_0/user/task_1/cgroup.procs": "31\n",
	}, map[string]string{
		"10": "JOB_COMPLETION_INDEX=1\x00", "11": "RANK=8\x00JOB_COMPLETION_INDEX=1\x00", "12": "RANK=10\x00", "13": "RANK=9\x00",
		"20": "RANK=one\x00JOB_COMPLETION_INDEX=4\x00", "21": "HOME=/\x00",
		"30": "SLURM_PROCID=0\x00", "31": "SLURM_PROCID=2\x00",
	}, "RANK", "JOB_COMPLETION_INDEX", "SLURM_PROCID")
	if found, reason := ranksRound(s); len(found) > 0 || reason != "" {
		t.Errorf("processes that may not have executed their program yet: %v, %q", found, reason)
	}
	want := map[string]string{podContainer1: "8..10", podContainer2: "4", job7: "0,2"}
	found, reason := ranksRound(s)
	if d := cmp.Diff(want, found); d != "" || reason != "" {
		t.Errorf("%q (-want +got)\n%s", reason, d)
	}

	// An environment is not read again. An ended process is left out, and another process with its number counts as
	// new.
	write(t, s.procfs, map[string]string{
		"11/environ": "RANK=77\x00", "12/stat": statOf("12", "99"), "12/environ": "RANK=12\x00",
	})
	write(t, s.mount, map[string]string{podContainer1 + "/cgroup.procs": "11\n12\n"})
	ranksRound(s)
	if found, _ := ranksRound(s); found[podContainer1] != "8,12" {
		t.Errorf("%v, want 8,12", found)
	}
}

// TestNoRanks: without variables no environment is read.
func TestNoRanks(t *testing.T) {
	s := newRanksNode(t, []string{podContainer1}, map[string]string{podContainer1 + "/cgroup.procs": "10\n"}, map[string]string{"10": "RANK=1\x00"})
	for range 2 {
		if found, why := ranksRound(s); len(found) > 0 || why != "" {
			t.Errorf("%v, %q", found, why)
		}
	}
}

// TestBlockedRanks: if the environment of a process cannot be read in time, only the rank of its own workload is
// missing. The FIFO stands for a process that hangs in a driver while it holds its mmap_lock.
func TestBlockedRanks(t *testing.T) {
	s := newRanksNode(t, []string{podContainer1, podContainer2}, map[string]string{
		podContainer1 + "/cgroup.procs": "10\n", podContainer2 + "/cgroup.procs": "20\n",
	}, map[string]string{"10": "RANK=1\x00", "20": "RANK=2\x00"}, "RANK")
	fifo := filepath.Join(s.procfs, "10/environ")
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ranksRound(s)
	for range 2 {
		found, reason := ranksRound(s)
		if len(found) != 1 || found[podContainer2] != "2" || !strings.Contains(reason, "could not be read in time") {
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
}

// TestHostileWorkload checks the bounds for a container with many processes and cgroups.
func TestHostileWorkload(t *testing.T) {
	dir := t.TempDir()
	var many strings.Builder
	for pid := range 10 * maxRankProcesses {
		fmt.Fprintf(&many, "%d\n", pid+1)
	}
	write(t, dir, map[string]string{"a/cgroup.procs": many.String()})
	for i := range 2 * maxRankCgroups {
		write(t, dir, map[string]string{"b/" + strings.Repeat(fmt.Sprintf("%d/", i), 3) + "cgroup.procs": "1\n"})
	}
	if n := len(processesBelow(filepath.Join(dir, "a"))); n != maxRankProcesses {
		t.Errorf("%d processes", n)
	}
	if n := len(processesBelow(filepath.Join(dir, "b"))); n > maxRankCgroups {
		t.Errorf("%d processes of %d cgroups", n, 2*maxRankCgroups)
	}
}

// TestManyWorkloads: the ranks of more workloads are not read, and the error says so.
func TestManyWorkloads(t *testing.T) {
	r := NewRanks([]string{"RANK"}, t.TempDir(), t.TempDir())
	defer r.Stop()
	workloads := map[model.CgroupID]string{}
	for i := range maxRankWorkloads + 1 {
		workloads[model.CgroupID(i)] = fmt.Sprint(i)
	}
	if _, err := r.find(workloads); len(r.known) != maxRankWorkloads || err == nil {
		t.Errorf("%d workloads: %v", len(r.known), err)
	}
}

// TestEnvironOfKernel reads the rank of a real process through the real /proc.
func TestEnvironOfKernel(t *testing.T) {
	cmd := child.Command(t.Context(), "sleep", "300")
	cmd.Env = []string{"RANK=31", "OTHER=1"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	dir := t.TempDir()
	pid := strconv.Itoa(cmd.Process.Pid)
	write(t, dir, map[string]string{"cgroup.procs": pid + "\n"})
	r := NewRanks([]string{"RANK"}, dir, "/proc")
	defer r.Stop()
	workloads := map[model.CgroupID]string{1: "/"}
	eventually(t, "the kernel shows the environment after exec", func() bool {
		found, err := r.find(workloads)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(found, []model.Ranks{{Cgroup: 1, Ranks: "31"}})
	})
	for p := range r.known["/"] {
		if p.started <= 0 {
			t.Errorf("start %v", p.started)
		}
	}
}

func TestParseRanks(t *testing.T) {
	for environ, want := range map[string]int64{
		"": noRank, "RANK=": noRank, "RANK=0\x00": 0, "RANK=12": noRank, "RANK=9999999999\x00": 9999999999, "RANK=12345678901\x00": noRank,
		"RANK=-1\x00": noRank, "RANK= 1\x00": noRank, "RANK=1\x00RANK=2\x00": 1, "XRANK=1\x00RANK": noRank, "RANK=٣\x00": noRank,
		"RANK=x\x00RANK=2\x00": noRank,
	} {
		if got := parseRanks([]byte(environ), []string{"RANK"}); got[0] != want {
			t.Errorf("%q: %d, want %d", environ, got[0], want)
		}
	}
	odd := make([]int64, 100)
	for i := range odd {
		odd[i] = 2 * int64(i)
	}
	for want, numbers := range map[string][]int64{"0": {0}, "0..7": {0, 1, 2, 3, 4, 5, 6, 7}, "1,3..4": {1, 3, 4}, "": odd} {
		if got := rankText(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}

// FuzzRanks: an environment yields only numbers of bounded length.
func FuzzRanks(f *testing.F) {
	f.Add([]byte("RANK=1\x00A=2\x00"))
	f.Add([]byte(statOf("1", "7")))
	f.Fuzz(func(t *testing.T, text []byte) {
		values := parseRanks(text, []string{"RANK", "A"})
		for i, v := range values {
			if v < noRank || v > 9999999999 {
				t.Errorf("%d: %d", i, v)
			}
		}
		if s := ranksOf(map[process]reading{{}: values}, 2); len(s) > maxRanks || strings.Trim(s, "0123456789.,") != "" {
			t.Errorf("%q", s)
		}
	})
}
