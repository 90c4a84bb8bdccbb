// SPDX-License-Identifier: Apache-2.0

// Package container reads the resource usage of containers and jobs: the files of their cgroups, version 1, version 2
// or both, and the interfaces of their network namespaces.
//
// Read reads the cgroup of each workload and keeps no file open. If a file is missing, its value is unknown. An
// unreadable file drops only its own value and is reported as the state of the cgroup. A cgroup that is removed
// meanwhile is left out.
//
// containerd/cgroups/v3, with which the tests compare, is not used. Its statistics report a missing file as zero and
// lack the limits, the swap of version 1 and the kernel memory of version 2. Its reader for version 1 fails for all
// controllers if a file is missing (no swap accounting, no kmem) and reads /proc/partitions for each cgroup. It is
// slower and needs more memory (BenchmarkLibrary, BenchmarkRead).
package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options of a Source.
type Options struct {
	Procfs string // /proc
	// Mount is the mount point of the tree with the paths below, and V2 whether it is cgroup v2. The controllers of
	// version 1, and a version 2 tree, are searched in the directories beside it.
	Mount string
	V2    bool
	// Groups returns the workloads to read: the id of each cgroup, which is its inode, and the path below the mount.
	// More returns further paths with unknown ids; it may be nil.
	Groups func() map[model.CgroupID]string
	More   func() []string
	// Wanted reports whether the usage of a cgroup is wanted; nil: always. Otherwise only the namespace is returned,
	// without the interfaces, at most 10 s old.
	Wanted func(model.CgroupID) bool
	// NamespacesOnly disables the usage: Read returns only the namespaces, without the interfaces, at most 10 s old.
	NamespacesOnly bool
	Logger         *zap.Logger
	Now            func() time.Time // default time.Now
}

const (
	// workers is the number of cgroups that are read at a time. On a node with many cores the kernel needs some time to
	// sum up memory.stat.
	workers = 4
	// maxFailed limits the states of unreadable cgroups.
	maxFailed = 16
	// maxNamespacesAge is the maximum age of namespaces without usage. maxProcessesAge is the maximum age of the
	// process in a namespace, while it lives.
	maxNamespacesAge = 10 * time.Second
	maxProcessesAge  = time.Minute
	// maxTick is how much the kernel's times of files may be behind its clock, by the longest tick.
	maxTick = 10 * time.Millisecond
)

// A Source reads the cgroups of workloads. Its methods may be called concurrently.
type Source struct {
	opt   Options
	trees trees

	mu             sync.Mutex // guards the following fields
	known          map[model.CgroupID]known
	listed         time.Time         // when the cgroups of known were listed
	namespaces     []model.Namespace // of the last Read
	namespacesErr  error             // of the last Read
	namespacesRead time.Time
	tooMany        uint64 // highest number of interfaces beyond the limit in one Read
	disks          disks
	skipped        boundedfile.SkippedCount
}

// known is the state of a cgroup that is kept between reads.
type known struct {
	pid     int       // a process in it
	inode   uint64    // of its network namespace; 0 until it is read
	read    time.Time // when the process was read
	created time.Time
	absent  time.Time // when it was missing among the cgroups; zero if unknown
}

type group struct {
	id     model.CgroupID
	path   string
	wanted bool
	known  known
	usage  model.Usage
	there  bool // known.inode is current
	gone   bool
	err    error
	quote  string // a skipped line of its files
}

// New finds the controllers. It returns ErrAbsent if no cgroup hierarchy is mounted.
func New(o Options) (*Source, error) {
	if o.Mount == "" {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted: %w", model.ErrAbsent)
	}
	o.Procfs, o.Mount, o.Logger = cmp.Or(o.Procfs, "/proc"), filepath.Clean(o.Mount), cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
	}
	trees, err := findTrees(o.Mount, o.V2)
	if err != nil {
		return nil, err
	}
	o.Logger.Debug("cgroup controllers", zap.String("v2", trees.v2), zap.Any("v1", trees.v1))
	return &Source{opt: o, trees: trees}, nil
}

// Name is "container".
func (s *Source) Name() string { return "container" }

// Close does nothing.
func (s *Source) Close() error { return nil }

// Read reads the cgroups of all workloads and the network namespaces of their processes.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	if out, ok, err := s.recent(); ok {
		return out, err
	}
	listed := s.opt.Now()
	groups := s.list()
	var next atomic.Int64
	var skipping sync.Mutex
	var skipped boundedfile.SkippedFiles
	var wg safely.Group
	for range min(workers, len(groups)) {
		wg.Go(func() {
			r := readers.Get().(*reader)
			defer readers.Put(r)
			for i := next.Add(1) - 1; i < int64(len(groups)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				s.read(r, &groups[i])
			}
			skipping.Lock()
			defer skipping.Unlock()
			skipped.Merge(r.skipped)
			r.skipped = nil
		})
	}
	wg.Wait()
	out := model.Snapshot{Usages: make([]model.Usage, 0, len(groups)), DeviceStates: []model.DeviceState{}}
	for i := range groups {
		g := &groups[i]
		if g.gone || !g.wanted || g.usage.Cgroup == 0 { // not read in time
			continue
		}
		out.Usages = append(out.Usages, g.usage)
		state := model.DeviceState{Source: s.Name(), Device: g.path, State: model.StateOK, Reason: g.quote}
		if g.err != nil {
			state.State, state.Reason = model.StateFailed, g.err.Error()
		}
		if state.Reason != "" && len(out.DeviceStates) < maxFailed {
			out.DeviceStates = append(out.DeviceStates, state)
		}
	}
	if ctx.Err() != nil { // not all were read
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fillLosses(&out)
		return out, ctx.Err()
	}
	spaces, tooMany, err := s.readNamespaces(groups, &skipped)
	if s.opt.NamespacesOnly {
		out.Usages = nil
	}
	out.Namespaces = slices.Clone(spaces)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.namespaces, s.namespacesErr, s.namespacesRead = spaces, err, s.opt.Now()
	s.tooMany = max(s.tooMany, tooMany)
	s.listed = listed
	s.known = make(map[model.CgroupID]known, len(groups))
	for i := range groups {
		if !groups[i].gone {
			s.known[groups[i].id] = groups[i].known
		}
	}
	err = errors.Join(err, s.disks.name(s.opt.Procfs, out.Usages, s.opt.Now(), &skipped))
	s.skipped.Count(skipped)
	s.fillLosses(&out)
	return out, err
}

// recent returns the namespaces of the last Read, or why they are unknown, if this is recent enough.
func (s *Source) recent() (out model.Snapshot, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opt.NamespacesOnly || s.namespacesRead.IsZero() || s.opt.Now().Sub(s.namespacesRead) >= maxNamespacesAge {
		return out, false, nil
	}
	out = model.Snapshot{Namespaces: slices.Clone(s.namespaces), DeviceStates: []model.DeviceState{}}
	s.fillLosses(&out)
	return out, true, s.namespacesErr
}

// fillLosses adds what was not read since the start. The caller holds mu.
func (s *Source) fillLosses(out *model.Snapshot) {
	out.Losses = []model.Loss{{Reason: "container_interfaces", Count: s.tooMany}}
	for file, lines := range s.skipped.All() {
		out.SkippedLines = append(out.SkippedLines, model.SkippedLines{File: file, Count: lines})
	}
}

// list returns the cgroups to read, the oldest first: ids grow, and the sandbox of a pod is made before the containers
// that share its network.
func (s *Source) list() []group {
	paths, more := map[model.CgroupID]string{}, map[model.CgroupID]bool{}
	if s.opt.Groups != nil {
		maps.Copy(paths, s.opt.Groups())
	}
	if s.opt.More != nil {
		for _, path := range s.opt.More() {
			if path = filepath.Clean("/" + path); path == "/" {
				continue
			}
			var st unix.Stat_t
			if unix.Stat(s.opt.Mount+path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && paths[model.CgroupID(st.Ino)] == "" {
				paths[model.CgroupID(st.Ino)], more[model.CgroupID(st.Ino)] = path, true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := make([]group, 0, len(paths))
	for id, path := range paths {
		wanted := !s.opt.NamespacesOnly && (s.opt.Wanted == nil || s.opt.Wanted(id))
		k, before := s.known[id]
		if !before && !more[id] { // a runtime may report a cgroup late
			k.absent = s.listed
		}
		groups = append(groups, group{id: id, path: path, wanted: wanted, known: k})
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(a.id, b.id) })
	return groups
}

func (s *Source) read(r *reader, g *group) {
	now := s.opt.Now()
	if !g.wanted && s.unchanged(g, now) {
		return
	}
	r.gone, r.err, r.quote = false, nil, ""
	g.usage.Cgroup = g.id
	s.readProcesses(r, g)
	if r.gone {
		g.gone = true
		return
	}
	g.known.read = now
	if !g.wanted {
		return
	}
	s.trees.read(r, g.path, &g.usage)
	// The files of a removed cgroup are missing, too.
	var st unix.Stat_t
	r.gone = r.gone || unix.Stat(s.opt.Mount+g.path, &st) != nil || model.CgroupID(st.Ino) != g.id
	g.gone, g.err, g.quote = r.gone, r.err, r.quote
}

// unchanged reports whether the known process of a cgroup need not be searched again. A process in the same namespace
// gives the same result.
func (s *Source) unchanged(g *group, now time.Time) bool {
	age := now.Sub(g.known.read)
	if g.known.pid == 0 {
		return age < maxNamespacesAge
	}
	if age >= maxProcessesAge {
		return false
	}
	inode, ended := s.namespaceOf(g.known.pid)
	g.there = ended == nil && inode == g.known.inode
	return g.there
}

// readProcesses reads the directory of the cgroup, its processes and the processes of the cgroups below.
func (s *Source) readProcesses(r *reader, g *group) {
	dir, ok := r.open(s.opt.Mount + g.path)
	if !ok {
		r.gone = r.err == nil
		return
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil || model.CgroupID(st.Ino) != g.id {
		r.gone = true // another cgroup has its path
		return
	}
	// The modification time changes when an entry is made in the directory.
	if made := time.Unix(st.Mtim.Unix()); g.known.created.IsZero() || made.Before(g.known.created) {
		g.known.created = made
	}
	g.usage.Created = g.known.created
	if !g.known.created.Add(maxTick).Before(g.known.absent) { // otherwise it existed, and was missed
		g.usage.Since = g.known.absent
	}
	p := processes{before: g.known.pid}
	if !r.processes(dir, &p) {
		return
	}
	if st.Nlink != 2 { // a directory has two links, and one more for each subdirectory
		r.processesBelow(s.opt.Mount+g.path, &p)
	}
	g.known.pid = p.pid()
	if !p.more {
		g.usage.Processes = model.Some(float64(p.count))
	}
}
