// SPDX-License-Identifier: Apache-2.0

// Package slurm reads what the paths of cgroups do not name: the users, names, numbers and GPUs of Slurm jobs, and the
// ranks of the processes of any workload.
//
// The package cgroup parses the paths, and passes the cgroups of jobs (Cgroup). No file of a node has the other facts:
// they are in the processes of the jobs, mostly in their environments, which are read in the background. On cgroup v1
// this package also finds the hierarchy with the jobs.
package slurm

import (
	"cmp"
	"iter"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

// Options configure Jobs.
type Options struct {
	Mount    string                    // of the followed hierarchy
	Procfs   string                    // usually /proc
	Devices  string                    // mount of the devices controller of cgroup v1, or ""
	Programs bool                      // device programs of cgroup v2 restrict the steps
	UserName func(uid string) string   // the name of a user, or the number
	Label    func(value string) string // makes a value valid as a label
}

// A Cgroup is the cgroup of a job, or a cgroup below it.
type Cgroup struct {
	ID   model.CgroupID
	Path string // below the mount
	Top  string // path of the cgroup of the job
	Job  string // number of the job, or its SLUID
	Step string // "" if the path has no step
	User string // number of the user, or "" if the path lacks it
}

func (c Cgroup) isStep() bool { return c.Step != "" && strings.HasSuffix(c.Path, "/step_"+c.Step) }

// Jobs finds the users, names and GPUs of jobs without a prolog script. The caller serializes the calls.
//
// On cgroup v1 the path contains the user (uid_N). On v2 the processes below step_S/user have the user.
type Jobs struct {
	opt   Options
	users map[string]string // by the path of the job's cgroup; "" while unknown
	gres  *gres
	names *jobNames
}

// New makes Jobs. It reads nothing yet.
func New(o Options) *Jobs {
	j := &Jobs{opt: o, gres: newGres(o)}
	j.names = newJobNames(j.gres, o.Label)
	return j
}

// Stop waits for the reads in the background.
func (j *Jobs) Stop() {
	j.gres.stop()
	j.names.stop()
}

// GPUs returns the GPUs of the steps from the last round, and starts a round if they are old.
func (j *Jobs) GPUs(cgroups iter.Seq[Cgroup], now time.Time) ([]model.JobGPUs, error) {
	return j.gres.read(cgroups, now)
}

// ReadNames starts a round that reads the names of jobs, if the last round is old. It returns why names may be missing.
func (j *Jobs) ReadNames(cgroups iter.Seq[Cgroup], now time.Time) error {
	return j.names.read(cgroups, now)
}

// Steps returns the steps of running jobs and looks up their users.
func (j *Jobs) Steps(cgroups iter.Seq[Cgroup]) []model.JobStep {
	users := map[string]string{}
	steps := []model.JobStep{}
	for c := range cgroups {
		if users[c.Top] == "" {
			users[c.Top] = j.users[c.Top]
		}
		if users[c.Top] == "" {
			users[c.Top] = j.User(c)
		}
		if users[c.Top] == "" {
			users[c.Top] = j.userOfProcess(c)
		}
		if c.isStep() {
			steps = append(steps, model.JobStep{Job: c.Job, Step: c.Step, User: c.Top})
		}
	}
	j.users = users
	for i := range steps {
		job := steps[i].User
		n := j.names.of(job)
		steps[i].User, steps[i].Account, steps[i].Partition, steps[i].Name = users[job], n.account, n.partition, n.name
	}
	slices.SortFunc(steps, func(a, b model.JobStep) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
	})
	return steps
}

// userOfProcess returns the user of the first process of a task, or "" for other cgroups.
func (j *Jobs) userOfProcess(c Cgroup) string {
	if !strings.Contains(strings.TrimPrefix(c.Path, c.Top), "/user/") {
		return ""
	}
	procs, err := boundedfile.ReadOnce(filepath.Join(j.opt.Mount, c.Path, "cgroup.procs"), make([]byte, 64))
	if err != nil {
		return ""
	}
	pid, _, _ := strings.Cut(string(procs), "\n")
	if number, err := strconv.Atoi(pid); err != nil || number <= 0 {
		return ""
	}
	uid := procfile.RealUser(filepath.Join(j.opt.Procfs, pid))
	// slurmstepd runs as root until it switches to the user.
	if uid == "" || uid == "0" {
		return ""
	}
	return j.opt.UserName(uid)
}

// User returns the user of the cgroup of a job, including an ended job.
func (j *Jobs) User(c Cgroup) string {
	if c.User != "" {
		return j.opt.UserName(c.User)
	}
	return j.users[c.Top]
}
