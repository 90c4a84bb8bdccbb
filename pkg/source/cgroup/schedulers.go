// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

type scheduler struct {
	name string // prefix of workloads, and value of the label runtime
	// parents are the paths of the directories that contain the cgroups of jobs, at the root or in slices; * is any
	// name.
	parents []string
	// job returns the job from the name of its cgroup, or "".
	job func(name string) string
}

// schedulers lists the schedulers except Slurm, whose jobs have steps. owners_test.go names the sources of the paths.
var schedulers = []scheduler{
	{"pbs", []string{"pbs_jobs.service/jobid", "pbs_jobs.service/jobs", "pbs.service/jobid"}, func(name string) string { return name }},
	{"condor", []string{"htcondor", "condor.service"}, condorSlot},
	{"lsf", []string{"lsf/*", "lsfd.service/lsf/*"}, lsfJob},
	{"oar", []string{"oar", "oar.slice/*"}, oarJob},
	{"flux", []string{""}, fluxJob},
}

// jobOf matches the cgroup of a job at the start of segs. It returns the number of segments.
func jobOf(segs []string) (model.Cgroup, int) {
	for i := range schedulers {
		s := &schedulers[i]
		for _, parent := range s.parents {
			n := passParent(parent, segs)
			if n < 0 || n == len(segs) {
				continue
			}
			if job := s.job(segs[n]); job != "" {
				return model.Cgroup{Workload: s.name + ":" + job, Runtime: s.name}, n + 1
			}
		}
	}
	return model.Cgroup{}, 0
}

// passParent returns the number of segments of a parent at the start of segs, or -1.
func passParent(parent string, segs []string) (n int) {
	for parent != "" {
		name, rest, _ := strings.Cut(parent, "/")
		if n == len(segs) || name != "*" && name != segs[n] {
			return -1
		}
		parent = rest
		n++
	}
	return n
}

func isScheduler(runtime string) bool {
	return slices.ContainsFunc(schedulers, func(s scheduler) bool { return s.name == runtime })
}

func isJob(runtime string) bool { return runtime == runtimeSlurm || isScheduler(runtime) }

func isJobUnit(unit string) bool {
	return isSlurmScope(unit) || slices.ContainsFunc(schedulers, func(s scheduler) bool {
		return slices.ContainsFunc(s.parents, func(parent string) bool {
			first, _, _ := strings.Cut(parent, "/")
			return first == unit
		})
	})
}

// condorSlot returns the slot of condor_EXECUTE_slot1_2@HOST, where EXECUTE is the directory of jobs with _ for /.
func condorSlot(name string) string {
	rest, ok := strings.CutPrefix(name, "condor_")
	if !ok {
		return ""
	}
	rest, _, _ = strings.Cut(rest, "@")
	if i := strings.LastIndex(rest, "_slot"); i >= 0 {
		return rest[i+1:]
	}
	return rest
}

// lsfJob returns the job of job.JOB.PID.TIME, where JOB may have an index: 7[2].
func lsfJob(name string) string {
	rest, ok := strings.CutPrefix(name, "job.")
	job, _, _ := strings.Cut(rest, ".")
	if !ok || strings.Trim(job, "0123456789[]") != "" {
		return ""
	}
	return job
}

// oarJob returns the job of USER_JOB (cgroup v1) and of oar-uUID-jJOB.slice.
func oarJob(name string) string {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		_, job, _ := strings.Cut(slice, "-j")
		return number(job, "")
	}
	user := strings.LastIndexByte(name, '_')
	if user <= 0 {
		return ""
	}
	return number(name[user:], "_")
}

// fluxJob returns the job of imp-shell-RANK-JOB.service, the unit of a job.
func fluxJob(unit string) string {
	rest, ok := strings.CutPrefix(unit, "imp-shell-")
	if !ok {
		return ""
	}
	rank, job, _ := strings.Cut(strings.TrimSuffix(rest, ".service"), "-")
	if number(rank, "") == "" || rest == job {
		return ""
	}
	return job
}

// isFlux reports whether a user runs Flux, so that only Flux makes the user's units: the user flux, who may be in a
// directory service, or the user to whom systemd gave the cgroup of the broker. It needs s.mu.
func (s *Source) isFlux(uid string) bool {
	if flux := s.users.uid("flux"); flux != "" && uid == flux {
		return true
	}
	var broker unix.Stat_t
	err := unix.Lstat(filepath.Join(s.hierarchy.Mount, "system.slice/flux.service"), &broker)
	return err == nil && broker.Uid != 0 && uid == strconv.FormatUint(uint64(broker.Uid), 10)
}
