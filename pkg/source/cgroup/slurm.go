// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"iter"
	"maps"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/source/cgroup/slurm"
)

func (s *Source) jobOptions() slurm.Options {
	h := s.hierarchy
	o := slurm.Options{
		Mount: h.Mount, Procfs: s.opt.Procfs, Programs: h.Mode == V2 && isFS(h.Mount, unix.CGROUP2_SUPER_MAGIC),
		UserName: s.users.of, Label: func(value string) string { return clean(value, maxLabel) },
	}
	if dir := filepath.Join(s.opt.Root, "devices"); h.Mode != V2 && isV1(dir) {
		o.Devices = dir
	}
	return o
}

// others returns the hierarchies of version 1 that can have jobs of Slurm and are not followed.
func (h Hierarchy) others(root string) (all []slurm.Hierarchy) {
	if h.Controller == "" {
		return nil
	}
	for _, c := range controllers {
		if dir := filepath.Join(root, c); c != h.Controller && isV1(dir) {
			all = append(all, slurm.Hierarchy{Controller: c, Mount: dir})
		}
	}
	return all
}

func (t *table) jobs() iter.Seq[slurm.Cgroup] { return slurmCgroups(maps.Values(t.byPath)) }

func slurmCgroups(groups iter.Seq[*group]) iter.Seq[slurm.Cgroup] {
	return func(yield func(slurm.Cgroup) bool) {
		for g := range groups {
			if g.fact.Runtime == runtimeSlurm && !yield(g.job()) {
				return
			}
		}
	}
}

func (g *group) job() slurm.Cgroup {
	return slurm.Cgroup{
		ID: g.id, Path: g.path, Top: g.top, Job: strings.TrimPrefix(g.fact.Workload, "slurm:"), Step: g.fact.Step, User: g.fact.User,
	}
}

// number names a cgroup after the number of its job, if the number is known.
func (t *table) number(g *group) {
	if g.fact.Runtime != runtimeSlurm {
		return
	}
	if number := t.numbers.Of(g.job().Job); number != "" {
		g.fact.Workload = "slurm:" + number
	}
}

// numberJobs looks up the missing numbers of Slurm jobs. A job without a known number is named after its SLUID.
func (s *Source) numberJobs(ctx context.Context) {
	s.mu.Lock()
	s.watcher.drain()
	due := s.table.numbers.Due(s.table.jobs(), slurmCgroups(maps.Values(s.table.byID)), s.opt.Now())
	s.mu.Unlock()
	if len(due) == 0 {
		return
	}
	found := s.table.numbers.Find(ctx, due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.numbers.Add(found, s.opt.Now())
	for _, g := range s.table.byID {
		s.table.number(g)
	}
}
