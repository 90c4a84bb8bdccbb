// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"context"
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
	jobNumberInterval = 5 * time.Second        // of one job, as its cgroup is made before its first process
	jobNumberDeadline = 50 * time.Millisecond  // of one job
	jobNumbersWithin  = 200 * time.Millisecond // of all jobs in one Resolve
	maxNumberedJobs   = 4096                   // then the numbers of ended jobs are dropped
	maxTitle          = 256                    // bytes of a command line
)

// jobNumbers finds the numbers of Slurm jobs whose cgroups have the name of their SLUID, in their slurmstepd processes: no file of the
// node has them. Source.mu protects tried.
type jobNumbers struct {
	mount, procfs string
	calls         hang.Group[string, string]
	tried         map[string]time.Time // by SLUID
}

func newJobNumbers(mount, procfs string) *jobNumbers {
	return &jobNumbers{mount: mount, procfs: procfs, tried: map[string]time.Time{}}
}

// isSLUID reports whether a name is that of a job from Slurm 26.05 on: s5K1KKYAYG5D00.
func isSLUID(name string) bool {
	rest, ok := strings.CutPrefix(name, "s")
	return ok && len(rest) >= 10 && strings.Trim(rest, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// sluid returns the SLUID in the name of the workload, empty if the workload has a number or is no Slurm job.
func (g *group) sluid() string {
	if g.fact.Runtime != runtimeSlurm {
		return ""
	}
	if job := strings.TrimPrefix(g.fact.Workload, "slurm:"); isSLUID(job) {
		return job
	}
	return ""
}

// number names a cgroup after the number of its job, if that is known.
func (t *table) number(g *group) {
	if number := t.numbers[g.sluid()]; number != "" {
		g.fact.Workload = "slurm:" + number
	}
}

// numberJobs looks up the numbers of jobs that have none. Until one is known, the job has the name of its SLUID.
func (s *Source) numberJobs(ctx context.Context) {
	jobs := s.unnumbered()
	if len(jobs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, jobNumbersWithin)
	defer cancel()
	answers := map[string]string{}
	for sluid, path := range jobs {
		if ctx.Err() != nil {
			break
		}
		number, err := s.jobNumbers.calls.Do(ctx, sluid, jobNumberDeadline, func() (string, error) { return s.jobNumbers.of(path), nil })
		if err == nil {
			answers[sluid] = number
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for sluid, number := range answers {
		s.jobNumbers.tried[sluid] = s.opt.Now()
		if number != "" {
			s.table.numbers[sluid] = number
		}
	}
	for _, g := range s.table.byID {
		s.table.number(g)
	}
}

// unnumbered returns the paths of jobs without a number that were not looked up lately, by SLUID.
func (s *Source) unnumbered() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain()
	s.forgetNumbers()
	now := s.opt.Now()
	var jobs map[string]string
	for _, g := range s.table.byPath {
		sluid := g.sluid()
		if sluid == "" {
			continue
		}
		if last, ok := s.jobNumbers.tried[sluid]; ok && now.Sub(last) < jobNumberInterval {
			continue
		}
		if jobs == nil {
			jobs = map[string]string{}
		}
		jobs[sluid] = g.top
	}
	return jobs
}

// forgetNumbers drops the numbers of jobs without a cgroup, if there are many: the next step of a job must have the name of the others.
func (s *Source) forgetNumbers() {
	if len(s.table.numbers) <= maxNumberedJobs && len(s.jobNumbers.tried) <= maxNumberedJobs {
		return
	}
	jobs := map[string]bool{}
	for _, g := range s.table.byID {
		if g.fact.Runtime == runtimeSlurm {
			jobs[filepath.Base(g.top)] = true
		}
	}
	maps.DeleteFunc(s.table.numbers, func(sluid, _ string) bool { return !jobs[sluid] })
	maps.DeleteFunc(s.jobNumbers.tried, func(sluid string, _ time.Time) bool { return !jobs[sluid] })
}

// of returns the number of the job at a path, from the slurmstepd of one of its steps: step_S/slurm has only that, while a user may give
// any environment to the processes in step_S/user.
func (j *jobNumbers) of(path string) string {
	f, err := os.Open(filepath.Join(j.mount, path))
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
			if number := j.ofProcess(filepath.Join(j.procfs, pid)); number != "" {
				return number
			}
		}
	}
	return ""
}

// ofProcess returns the number of the job of a slurmstepd, from its environment or its title, slurmstepd: [JOB.STEP]. It returns "" for
// a process of another user than root.
func (j *jobNumbers) ofProcess(dir string) string {
	if procfile.RealUser(dir) != "0" {
		return ""
	}
	environ, _ := boundedfile.ReadFile(filepath.Join(dir, "environ"), nil, maxEnviron)
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if number := number(string(entry), "SLURM_JOB_ID="); number != "" {
			return number
		}
	}
	title, _ := boundedfile.ReadOnce(filepath.Join(dir, "cmdline"), make([]byte, maxTitle))
	job, ok := strings.CutPrefix(string(title), "slurmstepd: [")
	if !ok {
		return ""
	}
	return number(job[:len(job)-len(strings.TrimLeft(job, "0123456789"))], "")
}
