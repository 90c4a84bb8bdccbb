// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds the workloads of cgroups.
//
// The kernel counts by cgroup id. This source keeps a table of the ids and paths of the cgroup tree, and derives the
// pod, container, job or unit from the path alone (parse). It watches the tree, because a container may have ended when
// its counters are read. Names of ended cgroups are kept for a grace period and while counters of them exist.
//
// Between scrapes it reads no file and only follows mkdir and rmdir. On cgroup v1 it follows one hierarchy, see
// Hierarchy.
//
// The watch reports the name of a new cgroup without its id, so the directory is listed after the event. On a busy
// node, a cgroup that exists for less than some 100 ms may have ended by then. Options.PathOf then returns its path;
// otherwise the id stays unresolved and is counted.
//
// The subpackage slurm reads what the paths of jobs do not name, and ranks.
package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup/slurm"
)

// Options configure a Source. The zero value is for the host.
type Options struct {
	Root   string        // mount point of cgroups; default /sys/fs/cgroup
	Procfs string        // default /proc
	Passwd string        // user names; default /etc/passwd
	Grace  time.Duration // how long the names of ended cgroups are kept; default 5 min
	// MaxCgroups is the maximum number of cgroups in the table; default 65536.
	MaxCgroups int
	// PathOf returns the path below the root of its hierarchy that a cgroup had when it was created (model.PathLog),
	// for cgroups that end before the watch lists them. It may be nil.
	PathOf func(id model.CgroupID) (model.CgroupPath, bool)
	// RankVariables are the variables that hold the rank of a process, in the order of precedence. If it is empty, no
	// environment is read for ranks.
	RankVariables []string
	// Marker receives the cgroups whose descendants belong together. It may be nil.
	Marker model.WorkloadMarker
	Logger *zap.Logger
	Now    func() time.Time // default time.Now
}

// Source follows one cgroup hierarchy. Its methods may be called concurrently.
type Source struct {
	hierarchy Hierarchy
	opt       Options
	mount     *os.File // for pathByID; nil if not on a cgroup file system
	close     func() error

	mu      sync.Mutex // protects the fields below
	table   *table
	watcher *watcher
	// unresolved holds the ids without a known path, with the time of the lookup. They stay unresolved until Forget:
	// unattributed counters must not move to a workload later.
	unresolved      map[model.CgroupID]time.Time
	unresolvedCount uint64 // total number of unresolved ids
	users           passwd
	jobs            *slurm.Jobs
	elsewhere       slurm.Elsewhere
	ranks           *slurm.Ranks

	rdmaMu  sync.Mutex // protects the next two fields
	skipped boundedfile.SkippedCount
	rdma    []byte // buffer for rdma.current; nil until needed
}

// New reads the tree and starts to follow it. It returns ErrAbsent if no cgroup hierarchy is mounted.
func New(o Options) (*Source, error) {
	root, err := filepath.Abs(cmp.Or(o.Root, "/sys/fs/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("cgroup root: %w", err)
	}
	o.Root, o.Procfs, o.Grace = root, cmp.Or(o.Procfs, "/proc"), cmp.Or(o.Grace, 5*time.Minute)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
	}
	h, err := findHierarchy(root)
	if err != nil {
		return nil, err
	}
	if h.Mount, err = filepath.EvalSymlinks(h.Mount); err != nil {
		return nil, fmt.Errorf("cgroup root: %w", err)
	}
	s := &Source{
		hierarchy:  h,
		opt:        o,
		unresolved: map[model.CgroupID]time.Time{},
		users:      passwd{path: cmp.Or(o.Passwd, "/etc/passwd")},
		ranks:      slurm.NewRanks(o.RankVariables, h.Mount, o.Procfs),
	}
	s.jobs = slurm.New(s.jobOptions())
	s.elsewhere = slurm.Elsewhere{
		Followed: slurm.Hierarchy{Controller: h.Controller, Mount: h.Mount},
		Others:   func() []slurm.Hierarchy { return h.others(root) },
	}
	s.watcher = &watcher{
		mount: h.Mount, procfs: o.Procfs, log: o.Logger, now: o.Now, done: make(chan struct{}), mu: &s.mu, watched: map[int32]*group{},
	}
	s.table = newTable(newMountView(o.Procfs, h), cmp.Or(o.MaxCgroups, 65536), s.watcher.unwatch)
	s.watcher.table = s.table
	s.table.marker = o.Marker
	s.table.isFlux = s.isFlux
	s.table.numbers = slurm.NewNumbers(h.Mount, o.Procfs)
	if isFS(h.Mount, unix.CGROUP2_SUPER_MAGIC) || isFS(h.Mount, unix.CGROUP_SUPER_MAGIC) {
		if s.mount, err = os.Open(h.Mount); err != nil {
			return nil, fmt.Errorf("cgroup mount: %w", err)
		}
	}
	s.watcher.start()
	s.close = sync.OnceValue(s.stop)
	return s, nil
}

// Name returns "cgroup".
func (s *Source) Name() string { return "cgroup" }

// Hierarchy returns the hierarchy that the source follows.
func (s *Source) Hierarchy() Hierarchy { return s.hierarchy }

// Namespace returns the root of the own cgroup namespace as a path below the mount, or "" in the namespace of the host.
func (s *Source) Namespace() string { return s.table.view.ours }

// Close ends the watch.
func (s *Source) Close() error { return s.close() }

func (s *Source) stop() error {
	err := s.watcher.stop()
	s.jobs.Stop()
	s.ranks.Stop()
	if s.mount != nil {
		err = errors.Join(err, s.mount.Close())
	}
	return err
}

// Read returns the state of the source: unreadable cgroups, and the number of cgroups that exceeded the table. It also
// returns JobGPUs and Ranks, which are read in the background. The error reports that the tree no longer exists, is not
// the node's, or can only be walked; names are still resolved then.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	if _, err := cgroupID(s.hierarchy.Mount); err != nil {
		return model.Snapshot{}, fmt.Errorf("cgroup mount: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watcher.catchUp()
	hierarchy := s.elsewhere.States(s.Name(), s.opt.Now())
	out := model.Snapshot{
		DeviceStates: []model.DeviceState{},
		Losses: []model.Loss{
			{Reason: "cgroup_table_full", Count: s.table.refused},
			{Reason: "cgroup_watch_paused", Count: s.watcher.pauses},
			{Reason: "marked_cgroups_full", Count: s.table.unmarked},
		},
	}
	for path, err := range s.watcher.unreadable {
		out.DeviceStates = append(out.DeviceStates, model.DeviceState{
			Source: s.Name(), Device: path, State: model.StateFailed, Reason: err.Error(),
		})
	}
	slices.SortFunc(out.DeviceStates, func(a, b model.DeviceState) int { return cmp.Compare(a.Device, b.Device) })
	out.DeviceStates = append(out.DeviceStates, hierarchy...)
	var err error
	if out.JobGPUs, err = s.jobs.GPUs(s.table.jobs(), s.opt.Now()); err != nil {
		out.DeviceStates = append(out.DeviceStates, s.failed("GPUs of Slurm steps", err))
	}
	if err := s.jobs.ReadNames(s.table.jobs(), s.opt.Now()); err != nil {
		out.DeviceStates = append(out.DeviceStates, s.failed("names of Slurm jobs", err))
	}
	if out.Ranks, err = s.ranks.Read(s.workloads, s.opt.Now()); err != nil {
		out.DeviceStates = append(out.DeviceStates, s.failed("ranks of processes", err))
	}
	return out, errors.Join(s.table.view.blind, s.watcher.noWatch)
}

// failed returns the state of a background read. Its reason is the first of the errors.
func (s *Source) failed(what string, err error) model.DeviceState {
	reason, _, _ := strings.Cut(err.Error(), "\n")
	state := model.StateFailed
	if errors.Is(err, model.ErrUnsupported) {
		state = model.StateUnsupported
	}
	return model.DeviceState{Source: s.Name(), Device: what, State: state, Reason: reason}
}

// Resolve returns the given cgroups with a known path, and returned cgroups that ended before the grace period. An
// unresolved id expires after the same time: usually the cgroup has ended, and its counters would stay otherwise. If
// the rdma controller is enabled, Resolve also reads rdma.current of these workloads.
func (s *Source) Resolve(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
	out := model.Snapshot{Cgroups: make([]model.Cgroup, 0, len(ids))}
	rdma := s.rdmaMount()
	var charged map[model.CgroupID]string

	s.numberJobs(ctx)
	s.mu.Lock()
	out.JobSteps = s.jobs.Steps(s.table.jobs())
	listed := make(map[model.CgroupID]bool, len(ids))
	for _, id := range ids {
		g := s.find(id)
		if g == nil || listed[id] {
			continue
		}
		g.named, listed[id] = true, true
		fact := g.fact
		fact.ID = id
		if fact.Runtime == runtimeSlurm {
			fact.User = s.jobs.User(g.job())
		}
		out.Cgroups = append(out.Cgroups, fact)
		if top := s.table.byPath[g.top]; rdma != "" && top != nil && charged[top.id] == "" {
			if charged == nil {
				charged = map[model.CgroupID]string{}
			}
			top.named = true
			if !listed[top.id] {
				listed[top.id] = true
				user := fact.User
				fact = top.fact
				fact.ID, fact.User = top.id, user
				out.Cgroups = append(out.Cgroups, fact)
			}
			charged[top.id] = rdma + top.path
		}
	}
	before := s.opt.Now().Add(-s.opt.Grace)
	out.Expired = s.table.expire(before)
	for id, since := range s.unresolved {
		if since.Before(before) {
			out.Expired = append(out.Expired, id)
		}
	}
	slices.Sort(out.Expired)
	unresolved := s.unresolvedCount
	out.UnresolvedCgroups = &unresolved
	s.mu.Unlock()

	if rdma != "" {
		s.readRDMA(ctx, &out, charged)
	}
	return out, ctx.Err()
}

// find returns a cgroup from the table, or looks it up. An id missing from the table is new, ended before it was
// listed, or cannot be watched.
func (s *Source) find(id model.CgroupID) *group {
	if g := s.table.byID[id]; g != nil {
		return g
	}
	if _, ok := s.unresolved[id]; ok || id == 0 || len(s.unresolved) >= s.table.limit {
		return nil
	}
	s.watcher.drain()
	if g := s.table.byID[id]; g != nil {
		return g
	}
	err := error(unix.EOPNOTSUPP)
	if s.mount != nil {
		var path string
		if path, err = pathByID(s.mount, s.opt.Procfs, id); err == nil {
			if g := s.request(path, id); g != nil {
				if !g.closed { // its parent may be paused
					s.watcher.entering = append(s.watcher.entering, g)
				}
				s.findTop(g)
				return g
			}
		}
	}
	if err != nil && !errors.Is(err, unix.ESTALE) && s.opt.Now().Sub(s.watcher.visited) >= walkOnMiss {
		s.watcher.visit(true)
		if g := s.table.byID[id]; g != nil {
			return g
		}
	}
	if s.opt.PathOf != nil {
		if path, ok := s.opt.PathOf(id); ok {
			if g := s.table.learn(string(path), id, s.opt.Now()); g != nil {
				return g
			}
		}
	}
	s.unresolved[id] = s.opt.Now()
	s.unresolvedCount++
	return nil
}

// findTop adds the cgroup of the workload of g, which is not listed below the slice of a user.
func (s *Source) findTop(g *group) {
	if s.table.byPath[g.top] != nil {
		return
	}
	if id, err := cgroupID(s.hierarchy.Mount + g.top); err == nil {
		s.request(g.top, id)
	}
}

// request adds a cgroup that was looked up. It returns nil if the table is full.
func (s *Source) request(path string, id model.CgroupID) *group {
	g, _ := s.table.add(nil, path, id, s.opt.Now())
	if g != nil {
		g.found = true // its end causes no event
	}
	return g
}

// Forget drops the names of ended cgroups and the unresolved ids.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.table.drop(id)
		delete(s.unresolved, id)
	}
}
