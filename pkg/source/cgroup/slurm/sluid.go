// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/procfile"
)

// Limits of the search for the numbers of Slurm jobs.
const (
	jobNumberInterval = 5 * time.Second        // per job, as its cgroup is made before its first process
	jobNumberDeadline = 50 * time.Millisecond  // per job
	jobNumbersWithin  = 200 * time.Millisecond // all jobs in a call of Find
	maxNumberedJobs   = 4096                   // then the numbers of ended jobs are dropped
	maxTitle          = 256                    // bytes of a command line
)

// Numbers finds the numbers of Slurm jobs whose cgroups are named by SLUID, in their slurmstepd processes: no file of
// the node has them. The zero value knows no number. The caller serializes all calls except Find.
type Numbers struct {
	mount, procfs string
	calls         hang.Group[string, string]
	numbers       map[string]string    // by SLUID
	tried         map[string]time.Time // by SLUID
}

// NewNumbers makes Numbers for jobs below a mount.
func NewNumbers(mount, procfs string) *Numbers {
	return &Numbers{mount: mount, procfs: procfs, numbers: map[string]string{}, tried: map[string]time.Time{}}
}

// IsSLUID reports whether a name is a job's name from Slurm 26.05 on: s5K1KKYAYG5D00.
func IsSLUID(name string) bool {
	rest, ok := strings.CutPrefix(name, "s")
	return ok && len(rest) >= 10 && strings.Trim(rest, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// Of returns the number of a job, or "" if it is unknown.
func (n *Numbers) Of(sluid string) string { return n.numbers[sluid] }

// Due returns the paths of running jobs without a number that were not looked up lately, by SLUID. If there are many
// numbers, it drops the numbers of jobs without a running or ended cgroup: the next step of a job must have the job's name.
func (n *Numbers) Due(running, all iter.Seq[Cgroup], now time.Time) map[string]string {
	if len(n.numbers) > maxNumberedJobs || len(n.tried) > maxNumberedJobs {
		jobs := map[string]bool{}
		for c := range all {
			jobs[filepath.Base(c.Top)] = true
		}
		maps.DeleteFunc(n.numbers, func(sluid, _ string) bool { return !jobs[sluid] })
		maps.DeleteFunc(n.tried, func(sluid string, _ time.Time) bool { return !jobs[sluid] })
	}
	var jobs map[string]string
	for c := range running {
		if !IsSLUID(c.Job) {
			continue
		}
		if last, ok := n.tried[c.Job]; ok && now.Sub(last) < jobNumberInterval {
			continue
		}
		if jobs == nil {
			jobs = map[string]string{}
		}
		jobs[c.Job] = c.Top
	}
	return jobs
}

// Find looks up the numbers of jobs, which are paths by SLUID. A job whose turn does not come is missing in the result.
func (n *Numbers) Find(ctx context.Context, jobs map[string]string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, jobNumbersWithin)
	defer cancel()
	found := map[string]string{}
	for sluid, path := range jobs {
		if ctx.Err() != nil {
			break
		}
		number, err := n.calls.Do(ctx, sluid, jobNumberDeadline, func() (string, error) { return n.ofJob(path), nil })
		if err == nil {
			found[sluid] = number
		}
	}
	return found
}

// Add adds what Find returned.
func (n *Numbers) Add(found map[string]string, now time.Time) {
	for sluid, number := range found {
		n.tried[sluid] = now
		if number != "" {
			n.numbers[sluid] = number
		}
	}
}

// ofJob returns the number of the job at a path, from the slurmstepd of a step. step_S/slurm has only slurmstepd, while
// a user may give any environment to the processes in step_S/user.
func (n *Numbers) ofJob(path string) string {
	f, err := os.Open(filepath.Join(n.mount, path))
	if err != nil {
		return ""
	}
	names, _ := f.Readdirnames(4 * maxSteps) // with the files of the cgroup
	_ = f.Close()
	for _, name := range names {
		if !strings.HasPrefix(name, "step_") {
			continue
		}
		for _, pid := range firstProcesses(filepath.Join(f.Name(), name, "slurm"), maxProcesses) {
			if number := n.ofProcess(filepath.Join(n.procfs, pid)); number != "" {
				return number
			}
		}
	}
	return ""
}

// ofProcess returns the number of the job of a slurmstepd, from its environment or its title, slurmstepd: [JOB.STEP].
// It returns "" if the process does not belong to root.
func (n *Numbers) ofProcess(dir string) string {
	if procfile.RealUser(dir) != "0" {
		return ""
	}
	environ, _ := boundedfile.ReadFile(filepath.Join(dir, "environ"), nil, maxEnviron)
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		number, ok := bytes.CutPrefix(entry, []byte("SLURM_JOB_ID="))
		if ok && len(number) > 0 && len(bytes.Trim(number, "0123456789")) == 0 {
			return string(number)
		}
	}
	title, _ := boundedfile.ReadOnce(filepath.Join(dir, "cmdline"), make([]byte, maxTitle))
	job, ok := strings.CutPrefix(string(title), "slurmstepd: [")
	if !ok {
		return ""
	}
	return job[:len(job)-len(strings.TrimLeft(job, "0123456789"))]
}
