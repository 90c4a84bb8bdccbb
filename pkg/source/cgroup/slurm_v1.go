// SPDX-License-Identifier: Apache-2.0

package cgroup

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

// On cgroup v1 Slurm makes the cgroups of jobs only in the hierarchies of what it constrains and accounts, which can be without memory.

// slurmController returns the controller in whose hierarchy Slurm has most jobs, or while it has no job the first one with its
// directory. It returns "" if Slurm has no cgroups of version 1.
func slurmController(mounts map[string]string) string {
	most, best := 0, ""
	for _, c := range controllers {
		if mounts[c] == "" {
			continue
		}
		dirs, jobs := slurmJobs(mounts[c])
		if len(jobs) > most || best == "" && dirs {
			most, best = len(jobs), c
		}
	}
	return best
}

// slurmJobs returns the paths of the jobs below the mount of a hierarchy, and whether it has a directory of Slurm.
func slurmJobs(mount string) (dirs bool, jobs []string) {
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

// recheckJobs is the time after which jobs that the followed hierarchy does not have are looked for again.
const recheckJobs = 2 * time.Second

// checkHierarchy renews the states of the hierarchy every walkUnseen, and soon after jobs were missing for the first time.
func (s *Source) checkHierarchy() {
	now := s.opt.Now()
	wait := walkUnseen
	if s.recheck {
		wait = recheckJobs
	}
	if now.Sub(s.looked) < wait {
		return
	}
	before := len(s.missing)
	s.looked, s.states = now, s.hierarchyStates()
	s.recheck = before == 0 && len(s.missing) > 0
}

// hierarchyStates reports that a hierarchy is followed because of Slurm, and jobs that the followed hierarchy does not have.
func (s *Source) hierarchyStates() (states []model.DeviceState) {
	h := s.hierarchy
	if h.Controller == "" {
		return nil
	}
	if memory := filepath.Join(s.opt.Root, "memory"); h.Controller != "memory" && isV1(memory) {
		states = append(states, model.DeviceState{
			Source: s.Name(), Device: "hierarchy", State: model.StateOK,
			Reason: h.Controller + " is followed in place of memory, where Slurm has not all of its jobs; units without a cgroup in " +
				h.Controller + " belong to the cgroup above",
		})
	}
	before := s.missing
	s.missing = s.jobsElsewhere()
	for _, c := range controllers {
		var missing []string
		for job := range s.missing {
			if s.missing[job] == c && before[job] != "" {
				missing = append(missing, filepath.Base(job))
			}
		}
		if len(missing) > 0 {
			slices.Sort(missing)
			return append(states, model.DeviceState{
				Source: s.Name(), Device: "Slurm jobs", State: model.StateFailed,
				Reason: fmt.Sprintf("%s: in the hierarchy %s and not in %s, which is followed since the start: what they use belongs "+
					"to the service of Slurm until the sensor is restarted", some(missing), c, h.Controller),
			})
		}
	}
	return states
}

// jobsElsewhere returns the paths of jobs that the followed hierarchy does not have, with the first controller that has them. Slurm makes
// and removes the cgroups of a job in one hierarchy after the other: only a job that is found twice is not followed.
func (s *Source) jobsElsewhere() map[string]string {
	found := map[string]string{}
	for _, c := range controllers {
		dir := filepath.Join(s.opt.Root, c)
		if c == s.hierarchy.Controller || !isV1(dir) {
			continue
		}
		_, jobs := slurmJobs(dir)
		for _, job := range jobs {
			if found[job] == "" && !exists(filepath.Join(s.hierarchy.Mount, job)) {
				found[job] = c
			}
		}
	}
	return found
}

// some returns the first names of a list.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
