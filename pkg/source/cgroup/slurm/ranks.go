// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

// Limits of the search for ranks. A container can have any number of processes and cgroups.
const (
	ranksInterval    = 15 * time.Second
	ranksDeadline    = time.Second // per workload
	maxRankWorkloads = 1024
	maxRankProcesses = 256 // per workload
	maxRankCgroups   = 64  // per workload
	maxRankEntries   = 512 // per directory
)

// Ranks finds the ranks of the processes of workloads in their environments, in the background like gres.
//
// The environment of a process is read once, when two rounds have seen the process: a newly forked process has the
// environment of its parent, until it executes its own program.
type Ranks struct {
	background[[]model.Ranks]

	variables []string // in the order of precedence; empty: no environment is read
	mount     string   // of the followed hierarchy
	procfs    string
	calls     hang.Group[string, map[process]reading]
	known     map[string]map[process]reading // by the path of the workload; only the round uses it
}

// process identifies a process by its number and its start since boot, because numbers are reused.
type process struct {
	pid     string
	started time.Duration
}

// reading has the values of the variables of a process, or noRank for missing variables. It is nil before the
// environment was read.
type reading []int64

// NewRanks makes Ranks. Without variables it reads no environment.
func NewRanks(variables []string, mount, procfs string) *Ranks {
	r := &Ranks{variables: variables, mount: mount, procfs: procfs}
	r.start()
	return r
}

// Read returns the results of the last round, and starts a round if they are old.
func (r *Ranks) Read(workloads func() map[model.CgroupID]string, now time.Time) ([]model.Ranks, error) {
	if len(r.variables) == 0 {
		return nil, nil
	}
	return r.next(ranksInterval, now, func() func() ([]model.Ranks, error) {
		list := workloads()
		return func() ([]model.Ranks, error) { return r.find(list) }
	})
}

// Stop waits for the reads in the background.
func (r *Ranks) Stop() { r.stop() }

// find reads the workloads: paths of their cgroups by id.
func (r *Ranks) find(workloads map[model.CgroupID]string) ([]model.Ranks, error) {
	var errs []error
	out, known := []model.Ranks{}, make(map[string]map[process]reading, len(workloads))
	byPath := func(a, b model.CgroupID) int { return strings.Compare(workloads[a], workloads[b]) }
	for _, id := range slices.SortedFunc(maps.Keys(workloads), byPath) {
		path := workloads[id]
		if len(known) == maxRankWorkloads {
			errs = append(errs, fmt.Errorf("ranks of %d of %d workloads only", maxRankWorkloads, len(workloads)))
			break
		}
		before := r.known[path]
		found, err := r.calls.Do(r.ctx, path, ranksDeadline, func() (map[process]reading, error) {
			return r.ofWorkload(filepath.Join(r.mount, path), before)
		})
		switch {
		case errors.Is(err, hang.ErrStuck):
			err, found = fmt.Errorf("the environments of the processes in %s could not be read in time", path), before
		case err != nil:
			err = fmt.Errorf("environments of the processes in %s: %w", path, err)
		}
		errs = append(errs, err)
		known[path] = found
		if text := ranksOf(found, len(r.variables)); text != "" {
			out = append(out, model.Ranks{Cgroup: id, Ranks: text})
		}
	}
	r.known = known
	return out, errors.Join(errs...)
}

// ofWorkload reads the processes of a workload. known has the earlier processes. With an error, processes are missing.
func (r *Ranks) ofWorkload(dir string, known map[process]reading) (map[process]reading, error) {
	var first error
	found := map[process]reading{}
	for _, pid := range processesBelow(dir) {
		stat, err := procfile.ReadStat(filepath.Join(r.procfs, pid))
		if err != nil {
			continue // it has ended
		}
		p := process{pid, stat.Start}
		values, seen := known[p]
		if seen && values == nil {
			text, err := boundedfile.ReadFile(filepath.Join(r.procfs, pid, "environ"), nil, maxEnviron)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue
			}
			if err == nil {
				values = parseRanks(text, r.variables)
			} else if first == nil {
				first = err
			}
		}
		found[p] = values
	}
	return found, first
}

func processesBelow(dir string) (pids []string) {
	dirs := []string{dir}
	for i := 0; i < len(dirs) && len(pids) < maxRankProcesses; i++ {
		pids = append(pids, firstProcesses(dirs[i], maxRankProcesses-len(pids))...)
		f, err := os.Open(dirs[i])
		if err != nil {
			continue
		}
		entries, _ := f.ReadDir(maxRankEntries)
		_ = f.Close()
		for _, e := range entries {
			if e.IsDir() && len(dirs) < maxRankCgroups {
				dirs = append(dirs, filepath.Join(dirs[i], e.Name()))
			}
		}
	}
	return pids
}
