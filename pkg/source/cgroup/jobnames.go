// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Limits of the search for the names of Slurm jobs.
const (
	jobNamesInterval = 15 * time.Second
	jobNamesDeadline = time.Second // of one job
	maxNamedJobs     = 1024
)

// jobNames finds the names of Slurm jobs in the environments of their processes, in the background, as gres does: no file of the
// node has them. The environment of a job is read until one has names, and then no more.
type jobNames struct {
	gres  *gres // for the processes of steps
	calls hang.Group[string, names]

	mu      sync.Mutex
	round   sync.WaitGroup
	running bool
	began   time.Time
	known   map[string]names // by the path of the job
	err     error            // why names may be missing
}

// names of a job. The user can change them.
type names struct{ account, partition, name string }

// read starts a round if the last one is old. It returns why names may be missing.
func (j *jobNames) read(ctx context.Context, steps func() []jobStep, now time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.running && now.Sub(j.began) >= jobNamesInterval {
		list, known := steps(), j.known
		j.running, j.began = true, now
		safely.Go(&j.round, "cgroup", func() {
			found, err := j.find(ctx, list, known)
			j.mu.Lock()
			defer j.mu.Unlock()
			j.running, j.known, j.err = false, found, err
		})
	}
	return j.err
}

// of returns the names of the job at a path.
func (j *jobNames) of(job string) names {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.known[job]
}

// find returns the names of the jobs that have steps.
func (j *jobNames) find(ctx context.Context, steps []jobStep, known map[string]names) (map[string]names, error) {
	jobs := map[string][]jobStep{}
	for _, s := range steps[:min(len(steps), maxSteps)] {
		jobs[s.job] = append(jobs[s.job], s)
	}
	found, errs := map[string]names{}, []error{}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		if len(found) == maxNamedJobs {
			errs = append(errs, fmt.Errorf("names of %d of %d Slurm jobs only", maxNamedJobs, len(jobs)))
			break
		}
		n, ok := known[job]
		if !ok {
			var err error
			n, err = j.calls.Do(ctx, job, jobNamesDeadline, func() (names, error) { return j.ofJob(jobs[job]) })
			if errors.Is(err, hang.ErrStuck) {
				err = fmt.Errorf("the environments of the Slurm job at %s could not be read in time", job)
			}
			errs = append(errs, err)
		}
		if n != (names{}) {
			found[job] = n
		}
	}
	return found, errors.Join(errs...)
}

// ofJob returns the names in the first environment of the steps of a job that has some.
func (j *jobNames) ofJob(steps []jobStep) (names, error) {
	var first error
	for _, s := range steps {
		pids, _ := j.gres.processes(s.path)
		for _, pid := range pids {
			// slurmstepd runs as root, with an environment of its own.
			if uid := realUser(filepath.Join(j.gres.procfs, pid, "status")); uid == "" || uid == "0" {
				continue
			}
			text, err := boundedfile.ReadFile(filepath.Join(j.gres.procfs, pid, "environ"), nil, maxEnviron)
			if ended := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH); err != nil && !ended && first == nil {
				first = fmt.Errorf("step of Slurm %s: %w", s.path, err)
			}
			if n := parseNames(text); n != (names{}) {
				return n, nil
			}
		}
	}
	return names{}, first
}

// parseNames returns the names in an environment as slurmstepd sets it. As getenv does, it takes the first entry of a name.
func parseNames(environ []byte) (n names) {
	fields := map[string]*string{"SLURM_JOB_ACCOUNT": &n.account, "SLURM_JOB_PARTITION": &n.partition, "SLURM_JOB_NAME": &n.name}
	for {
		entry, rest, whole := bytes.Cut(environ, []byte{0})
		if !whole { // the limit has cut it
			return n
		}
		environ = rest
		name, value, _ := bytes.Cut(entry, []byte("="))
		if field := fields[string(name)]; field != nil {
			*field = clean(string(value), maxLabel)
			delete(fields, string(name))
		}
	}
}
