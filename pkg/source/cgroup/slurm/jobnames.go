// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/hang"
)

// Limits of the search for the names of Slurm jobs.
const (
	jobNamesInterval = 15 * time.Second
	jobNamesDeadline = time.Second // per job
)

// jobNames finds the names of Slurm jobs in the environments of their processes, in the background like gres: no file
// of the node has the names. Once an environment has given names, the job is not read again.
type jobNames struct {
	background[map[string]names] // by the path of the job

	gres  *gres // for the processes of steps
	label func(value string) string
	calls hang.Group[string, names]
}

// names of a job. The user can change them.
type names struct{ account, partition, name string }

func newJobNames(g *gres, label func(value string) string) *jobNames {
	j := &jobNames{gres: g, label: label}
	j.start()
	return j
}

// read starts a round if the last round is old. It returns why names may be missing.
func (j *jobNames) read(cgroups iter.Seq[Cgroup], now time.Time) error {
	_, err := j.next(jobNamesInterval, now, func() func() (map[string]names, error) {
		list, known := stepsOf(cgroups), j.found
		return func() (map[string]names, error) { return j.find(list, known) }
	})
	return err
}

func (j *jobNames) of(job string) names {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.found[job]
}

func (j *jobNames) find(steps []Cgroup, known map[string]names) (map[string]names, error) {
	jobs := byJob(steps)
	found, errs := map[string]names{}, []error{}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		n, ok := known[job]
		if !ok {
			var err error
			n, err = j.calls.Do(j.ctx, job, jobNamesDeadline, func() (names, error) { return j.ofJob(jobs[job]) })
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

// ofJob returns the names from the first environment of a job's steps that has names.
func (j *jobNames) ofJob(steps []Cgroup) (names, error) {
	var first error
	for _, s := range steps {
		pids, _ := j.gres.processes(s.Path)
		for _, pid := range pids {
			text, err := j.gres.environ(pid)
			if err != nil && first == nil {
				first = fmt.Errorf("step of Slurm %s: %w", s.Path, err)
			}
			if n := parseNames(text, j.label); n != (names{}) {
				return n, nil
			}
		}
	}
	return names{}, first
}

// parseNames returns the names in an environment as slurmstepd sets it. Like getenv, it takes the first entry of a
// name.
func parseNames(environ []byte, label func(value string) string) (n names) {
	fields := map[string]*string{"SLURM_JOB_ACCOUNT": &n.account, "SLURM_JOB_PARTITION": &n.partition, "SLURM_JOB_NAME": &n.name}
	for {
		entry, rest, whole := bytes.Cut(environ, []byte{0})
		if !whole { // cut at the limit
			return n
		}
		environ = rest
		name, value, _ := bytes.Cut(entry, []byte("="))
		if field := fields[string(name)]; field != nil {
			*field = label(string(value))
			delete(fields, string(name))
		}
	}
}
