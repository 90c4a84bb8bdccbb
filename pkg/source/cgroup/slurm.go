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
)

// jobs knows whose the Slurm jobs are, without a prolog script. On cgroup v1
// the path says so (uid_N); on v2 the processes of a step do, which belong to
// the user of the job below step_S/user.
type jobs struct {
	users map[string]string // by the path of the job's cgroup; "" is not known yet
	names passwd
}

// jobSteps tells the steps of living jobs and learns whose they are. Under s.mu.
func (s *Source) jobSteps() []model.JobStep {
	users := map[string]string{}
	steps := []model.JobStep{}
	for _, g := range s.table.byPath {
		if g.fact.Runtime != "slurm" {
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
		steps[i].User = users[steps[i].User]
	}
	slices.SortFunc(steps, func(a, b model.JobStep) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
	})
	return steps
}

// userOfProcess is the user of the first process of a task, empty if g is none.
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
	uid := realUser(filepath.Join(s.procfs, pid, "status"))
	// Root is what slurmstepd is until it becomes the user.
	if uid == "" || uid == "0" {
		return ""
	}
	return s.jobs.names.of(uid)
}

// userOf is the user of a job's cgroup, also of one that is over.
func (s *Source) userOf(g *group) string {
	if g.fact.User != "" {
		return s.jobs.names.of(g.fact.User)
	}
	return s.jobs.users[g.top]
}

// maxStatus is more than the lines of /proc/PID/status up to Uid.
const maxStatus = 4 << 10

// realUser reads the real user id from /proc/PID/status, empty if it cannot.
func realUser(status string) string {
	b, err := boundedfile.ReadOnce(status, make([]byte, maxStatus))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), "\nUid:")
	line, _, _ := strings.Cut(rest, "\n")
	if fields := strings.Fields(line); len(fields) > 0 {
		return fields[0]
	}
	return ""
}

// passwd is the names of the users of the node, from its file; who is known to
// a directory service alone goes by number. It is read again when it changes.
type passwd struct {
	path    string
	changed time.Time
	names   map[string]string
}

// Users beyond this many are numbers.
const maxUsers = 65536

func (p *passwd) of(uid string) string {
	if info, err := os.Stat(p.path); err == nil && !info.ModTime().Equal(p.changed) {
		p.changed = info.ModTime()
		p.read()
	}
	return cmp.Or(p.names[uid], uid)
}

func (p *passwd) read() {
	p.names = map[string]string{}
	f, err := os.Open(p.path)
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && len(p.names) < maxUsers; {
		fields := strings.SplitN(lines.Text(), ":", 4)
		if len(fields) == 4 && p.names[fields[2]] == "" {
			p.names[fields[2]] = clean(fields[0], maxLabel)
		}
	}
}
