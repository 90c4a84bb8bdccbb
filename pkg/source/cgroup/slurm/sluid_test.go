// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// numbersNode has jobs of root's slurmstepd, process 10, whose environment names job 4711.
func numbersNode(t *testing.T, jobs int) (n *Numbers, cgroups iter.Seq[Cgroup]) {
	t.Helper()
	root, proc := t.TempDir(), t.TempDir()
	for i := range jobs {
		write(t, root, map[string]string{fmt.Sprintf("system.slice/slurmstepd.scope/s%013d/step_0/slurm/cgroup.procs", i): "10\n"})
	}
	write(t, proc, map[string]string{"10/status": "Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n", "10/environ": "SLURM_JOB_ID=4711\x00"})
	return NewNumbers(root, proc), cgroupsIn(t, root)
}

// TestKeptNumber: when there are too many numbers, a job that has a cgroup keeps its number.
func TestKeptNumber(t *testing.T) {
	n, cgroups := numbersNode(t, 1)
	job, now := "s0000000000000", time.Unix(1000, 0)
	n.Add(n.Find(t.Context(), n.Due(cgroups, cgroups, now)), now)
	for i := range maxNumberedJobs + 1 {
		n.numbers[fmt.Sprintf("t%013d", i)] = "1"
	}
	ended := func(func(Cgroup) bool) {}
	if due := n.Due(ended, cgroups, now); len(due) > 0 || n.Of(job) != "4711" || len(n.numbers) != 1 {
		t.Errorf("%d due, number %q of %d", len(due), n.Of(job), len(n.numbers))
	}
}

// TestNumberAfterDeadline: a job whose turn did not come is looked up at the next refresh, other jobs after an
// interval.
func TestNumberAfterDeadline(t *testing.T) {
	const jobs = 8
	n, cgroups := numbersNode(t, jobs)
	now := time.Unix(1000, 0)
	due := n.Due(cgroups, cgroups, now)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	n.Add(n.Find(over, due), now)
	if d := cmp.Diff(due, n.Due(cgroups, cgroups, now)); d != "" || len(due) != jobs {
		t.Errorf("%d due %s", len(due), d)
	}
	n.Add(n.Find(t.Context(), due), now)
	if len(n.numbers) != jobs || len(n.Due(cgroups, cgroups, now)) > 0 || len(n.Due(cgroups, cgroups, now.Add(jobNumberInterval))) != jobs {
		t.Errorf("%d of %d jobs have a number", len(n.numbers), jobs)
	}
}
