// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

// jobs finds the users of Slurm jobs without a prolog script. On cgroup v1 the path contains
// the user (uid_N). On v2 it is the user of the processes below step_S/user.
type jobs struct {
	users map[string]string // by the path of the job cgroup; "" while unknown
	names passwd
}

// jobSteps returns the steps of running jobs and looks up their users. It needs s.mu.
func (s *Source) jobSteps() []model.JobStep {
	users := map[string]string{}
	steps := []model.JobStep{}
	for _, g := range s.table.byPath {
		if g.fact.Runtime != runtimeSlurm {
			continue
		}
		if users[g.top] == "" {
			users[g.top] = s.jobs.users[g.top]
		}
		if users[g.top] == "" {
			users[g.top] = s.userOf(g)
		}
		if users[g.top] == "" {
			users[g.top] = s.userOfProcess(g)
		}
		if g.fact.Step != "" && strings.HasSuffix(g.path, "/step_"+g.fact.Step) {
			steps = append(steps, model.JobStep{
				Job: strings.TrimPrefix(g.fact.Workload, "slurm:"), Step: g.fact.Step, User: g.top,
			})
		}
	}
	s.jobs.users = users
	for i := range steps {
		job := steps[i].User
		n := s.jobNames.of(job)
		steps[i].User, steps[i].Account, steps[i].Partition, steps[i].Name = users[job], n.account, n.partition, n.name
	}
	slices.SortFunc(steps, func(a, b model.JobStep) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
	})
	return steps
}

// userOfProcess returns the user of the first process of a task, or "" if g is not a task.
func (s *Source) userOfProcess(g *group) string {
	if !strings.Contains(strings.TrimPrefix(g.path, g.top), "/user/") {
		return ""
	}
	procs, err := boundedfile.ReadOnce(filepath.Join(s.hierarchy.Mount, g.path, "cgroup.procs"), make([]byte, 64))
	if err != nil {
		return ""
	}
	pid, _, _ := strings.Cut(string(procs), "\n")
	if number, err := strconv.Atoi(pid); err != nil || number <= 0 {
		return ""
	}
	uid := procfile.RealUser(filepath.Join(s.opt.Procfs, pid))
	// slurmstepd runs as root until it switches to the user.
	if uid == "" || uid == "0" {
		return ""
	}
	return s.jobs.names.of(uid)
}

// userOf returns the user of the cgroup of a job, including an ended one.
func (s *Source) userOf(g *group) string {
	if g.fact.User != "" {
		return s.jobs.names.of(g.fact.User)
	}
	return s.jobs.users[g.top]
}

// passwd holds the user names of the passwd file. It is read again when the file changes. Users
// of a directory service are shown by number.
type passwd struct {
	path    string
	changed time.Time
	names   map[string]string
}

// maxUsers is the maximum number of user names; other users are shown by number.
const maxUsers = 65536

func (p *passwd) of(uid string) string {
	p.refresh()
	return cmp.Or(p.names[uid], uid)
}

// uid returns the number of a user, empty if the file does not have the user.
func (p *passwd) uid(user string) string {
	p.refresh()
	for uid, name := range p.names {
		if name == user {
			return uid
		}
	}
	return ""
}

func (p *passwd) refresh() {
	if info, err := os.Stat(p.path); err == nil && !info.ModTime().Equal(p.changed) {
		p.changed = info.ModTime()
		p.read()
	}
}

func (p *passwd) read() {
	p.names = map[string]string{}
	f, err := os.Open(p.path)
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for len(p.names) < maxUsers {
		line, long, err := lines.ReadLine()
		if err != nil {
			return
		}
		fields := strings.SplitN(string(line), ":", 4)
		if len(fields) == 4 && p.names[fields[2]] == "" {
			p.names[fields[2]] = clean(fields[0], maxLabel)
		}
		for long && err == nil { // only the start of a line matters
			_, long, err = lines.ReadLine()
		}
	}
}
