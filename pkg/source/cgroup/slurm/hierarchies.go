// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Hierarchy is a hierarchy of cgroup v1. Slurm makes the cgroups of jobs only in the hierarchies of what it
// constrains and accounts, which may leave out memory.
type Hierarchy struct{ Controller, Mount string }

// Followed returns the hierarchy in which Slurm has most jobs, or without jobs the first with Slurm's directory. It
// returns the zero value if Slurm has no cgroups of version 1.
func Followed(hierarchies []Hierarchy) (best Hierarchy) {
	most := 0
	for _, h := range hierarchies {
		dirs, jobs := jobsIn(h.Mount)
		if len(jobs) > most || best.Mount == "" && dirs {
			most, best = len(jobs), h
		}
	}
	return best
}

// jobsIn returns the paths of the jobs below the mount of a hierarchy, and whether it has a directory of Slurm.
func jobsIn(mount string) (dirs bool, jobs []string) {
	tree := os.DirFS(mount)
	roots, _ := fs.Glob(tree, "slurm_*")
	if exists(filepath.Join(mount, "slurm")) {
		roots = append(roots, "slurm")
	}
	for _, root := range roots {
		found, _ := fs.Glob(tree, root+"/uid_*/job_*")
		jobs = append(jobs, found...)
	}
	return len(roots) > 0, jobs
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

const (
	checkInterval = 30 * time.Second
	recheckJobs   = 2 * time.Second // when jobs missing in the followed hierarchy are looked for again
)

// Elsewhere finds the jobs that the followed hierarchy lacks.
type Elsewhere struct {
	Followed Hierarchy
	Others   func() []Hierarchy // the other hierarchies that can have jobs

	states  []model.DeviceState
	looked  time.Time
	missing map[string]string // paths of jobs found in another hierarchy only, with its controller
	recheck bool              // jobs are missing for the first time
}

// States reports that a hierarchy is followed because of Slurm, and jobs that the followed hierarchy lacks. It renews
// the states every checkInterval, and soon after jobs were missing for the first time.
func (e *Elsewhere) States(source string, now time.Time) []model.DeviceState {
	wait := checkInterval
	if e.recheck {
		wait = recheckJobs
	}
	if now.Sub(e.looked) < wait {
		return e.states
	}
	before := e.missing
	e.looked, e.states = now, e.find(source)
	e.recheck = len(before) == 0 && len(e.missing) > 0
	return e.states
}

func (e *Elsewhere) find(source string) (states []model.DeviceState) {
	followed, others := e.Followed.Controller, e.Others()
	if slices.ContainsFunc(others, func(h Hierarchy) bool { return h.Controller == "memory" }) {
		states = append(states, model.DeviceState{
			Source: source, Device: "hierarchy", State: model.StateOK,
			Reason: followed + " is followed in place of memory, where Slurm has not all of its jobs; units without a cgroup in " +
				followed + " belong to the cgroup above",
		})
	}
	before := e.missing
	e.missing = e.jobs(others)
	for _, h := range others {
		var missing []string
		for job, c := range e.missing {
			if c == h.Controller && before[job] != "" {
				missing = append(missing, filepath.Base(job))
			}
		}
		if len(missing) > 0 {
			slices.Sort(missing)
			return append(states, model.DeviceState{
				Source: source, Device: "Slurm jobs", State: model.StateFailed,
				Reason: fmt.Sprintf("%s: in the hierarchy %s and not in %s, which is followed since the start: what they use belongs "+
					"to the service of Slurm until the sensor is restarted", some(missing), h.Controller, followed),
			})
		}
	}
	return states
}

// jobs returns the paths of jobs that the followed hierarchy lacks, with the first controller that has them. Slurm
// makes and removes the cgroups of a job in one hierarchy after the other, so a job must be found twice.
func (e *Elsewhere) jobs(others []Hierarchy) map[string]string {
	found := map[string]string{}
	for _, h := range others {
		_, jobs := jobsIn(h.Mount)
		for _, job := range jobs {
			if found[job] == "" && !exists(filepath.Join(e.Followed.Mount, job)) {
				found[job] = h.Controller
			}
		}
	}
	return found
}

func some(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
