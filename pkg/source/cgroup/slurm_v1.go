// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
	known := map[string]bool{}
	_, jobs := slurmJobs(h.Mount)
	for _, job := range jobs {
		known[job] = true
	}
	for _, c := range controllers {
		dir := filepath.Join(s.opt.Root, c)
		if c == h.Controller || !isV1(dir) {
			continue
		}
		var missing []string
		_, jobs := slurmJobs(dir)
		for _, job := range jobs {
			if !known[job] {
				missing = append(missing, filepath.Base(job))
			}
		}
		if len(missing) > 0 {
			return append(states, model.DeviceState{
				Source: s.Name(), Device: "Slurm jobs", State: model.StateFailed,
				Reason: fmt.Sprintf("%s: in the hierarchy %s and not in %s, which is followed since the start: what they use belongs "+
					"to the service of Slurm until the sensor is restarted", some(missing), c, h.Controller),
			})
		}
	}
	return states
}

// some returns the first names of a list.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
