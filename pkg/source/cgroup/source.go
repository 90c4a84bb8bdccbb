// SPDX-License-Identifier: Apache-2.0

// Package cgroup names what runs in a cgroup.
//
// The id of a cgroup is the key under which the kernel counts. This source
// keeps a table of ids and paths of the cgroup tree and says from the path
// alone which pod, container, job or unit it is (Parse). It watches the tree,
// for a container may be gone when its figures are read: a watch tells of a
// cgroup when it is made, not when it is first read. The names of the
// dead are kept for a grace time and until nobody holds figures of them.
//
// It reads no file between scrapes; all it does then is to follow mkdir and
// rmdir. On cgroup v1 one hierarchy stands for all, see Hierarchy.
//
// The watch tells the name of a new cgroup and not its id, and ids are listed
// only between the mkdir and rmdir of the siblings: a cgroup that lives for less
// than some 100 ms on a busy node can be gone by then. Whoever saw it being made
// names it (Options.PathOf); else it stays without a name and is counted.
package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options of a Source. The zero value is for the node itself.
type Options struct {
	Root   string        // where cgroups are mounted; /sys/fs/cgroup
	Procfs string        // /proc
	Passwd string        // names of the users; /etc/passwd
	Grace  time.Duration // how long the names of the dead are kept; 5 min
	// MaxCgroups is how many cgroups are known at most; 65536.
	MaxCgroups int
	// PathOf returns the path below the root of its hierarchy that a cgroup had when it was
	// created (model.PathLog), for cgroups that end before the watch lists them. It may be nil.
	PathOf func(id model.CgroupID) (model.CgroupPath, bool)
	Logger *zap.Logger
	Now    func() time.Time // time.Now
}

// A Source follows one cgroup hierarchy. Its methods may be called at any time
// from anywhere.
type Source struct {
	hierarchy Hierarchy
	root      string
	procfs    string
	grace     time.Duration
	pathOf    func(id model.CgroupID) (model.CgroupPath, bool)
	now       func() time.Time
	log       *zap.Logger
	mount     *os.File // for pathByID; nil on a copy of a tree
	inotify   *os.File
	events    syscall.RawConn
	done      chan struct{} // closed when run has returned
	close     func() error

	mu         sync.Mutex // for all that follows
	table      *table
	watched    map[int32]*group // by watch descriptor
	entering   []*group         // to be watched and listed
	removed    []string         // paths of which the watch says so
	noWatch    error            // why not everything is watched
	unreadable map[string]error // by path
	walks      uint64
	walked     time.Time
	// unresolved are the ids that nobody could name, and since when. They stay
	// so until they are forgotten: what was once counted as no one's must not
	// become someone's later.
	unresolved  map[uint64]time.Time
	strangers   uint64 // how many there ever were
	jobs        jobs
	toldNoWatch bool
	buf         [16 << 10]byte // of events
}

// How often the tree is walked at most: for an id that is not known, and when
// not everything can be watched.
const (
	walkOnMiss  = time.Second
	walkUnseen  = 30 * time.Second
	staleSuffix = " (deleted)"
)

// New reads the tree and starts to follow it. The error is ErrAbsent when no
// cgroup hierarchy is mounted.
func New(o Options) (*Source, error) {
	root, err := filepath.Abs(cmp.Or(o.Root, "/sys/fs/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("cgroup root: %w", err)
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
		root:       root,
		procfs:     cmp.Or(o.Procfs, "/proc"),
		grace:      cmp.Or(o.Grace, 5*time.Minute),
		pathOf:     o.PathOf,
		now:        o.Now,
		log:        o.Logger,
		done:       make(chan struct{}),
		watched:    map[int32]*group{},
		unresolved: map[uint64]time.Time{},
		jobs:       jobs{names: passwd{path: cmp.Or(o.Passwd, "/etc/passwd")}},
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	s.table = newTable(newMountView(s.procfs, h), cmp.Or(o.MaxCgroups, 65536), s.unwatch)
	if isFS(h.Mount, unix.CGROUP2_SUPER_MAGIC) || isFS(h.Mount, unix.CGROUP_SUPER_MAGIC) {
		if s.mount, err = os.Open(h.Mount); err != nil {
			return nil, fmt.Errorf("cgroup mount: %w", err)
		}
	}
	s.openWatch()
	s.walk()
	s.close = sync.OnceValue(s.stop)
	if s.events == nil {
		close(s.done)
	} else {
		go s.run()
	}
	return s, nil
}

// Name is "cgroup".
func (s *Source) Name() string { return "cgroup" }

// Hierarchy is the tree that is followed.
func (s *Source) Hierarchy() Hierarchy { return s.hierarchy }

// Namespace is the cgroup below the mount that is the root of our own cgroup
// namespace, empty when we share the host's.
func (s *Source) Namespace() string { return s.table.view.ours }

// Subsystem is the v1 controller whose cgroup ids the kernel programs are to
// use, empty for cgroup v2.
func (s *Source) Subsystem() string { return s.hierarchy.Controller }

// Close ends the watch.
func (s *Source) Close() error { return s.close() }

func (s *Source) stop() error {
	var err error
	if s.inotify != nil {
		err = s.inotify.Close()
	}
	<-s.done
	if s.mount != nil {
		err = errors.Join(err, s.mount.Close())
	}
	return err
}

// Read returns the state of the source: which cgroups cannot be read, how many
// had no place in the table. The error says that the tree is gone, that it is
// not the node's, or that it can only be walked; names are still told then.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	if _, err := cgroupID(s.hierarchy.Mount); err != nil {
		return model.Snapshot{}, fmt.Errorf("cgroup mount: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.noWatch != nil || s.unreadable != nil) && s.now().Sub(s.walked) >= walkUnseen {
		s.walk()
	}
	out := model.Snapshot{
		DeviceStates: []model.DeviceState{},
		Losses:       []model.Loss{{Reason: "cgroup_table_full", Count: s.table.refused}},
	}
	for path, err := range s.unreadable {
		out.DeviceStates = append(out.DeviceStates, model.DeviceState{
			Source: s.Name(), Device: path, State: model.StateFailed, Reason: err.Error(),
		})
	}
	slices.SortFunc(out.DeviceStates, func(a, b model.DeviceState) int { return cmp.Compare(a.Device, b.Device) })
	return out, errors.Join(s.table.view.blind, s.noWatch)
}

// Resolve returns the given cgroups, as far as their paths are known, and which of the
// cgroups that it ever returned ended longer ago than the grace period. An id whose path was
// never known expires after the same time: as a rule it has ended, and its counters would
// stay for ever. Where the rdma controller is enabled, Resolve also reads what it charges
// (rdma.current) to each of these workloads.
func (s *Source) Resolve(ctx context.Context, ids []model.CgroupID) (model.Snapshot, error) {
	out := model.Snapshot{Cgroups: make([]model.Cgroup, 0, len(ids))}
	rdma := s.rdmaMount()
	var charged map[uint64]string

	s.mu.Lock()
	out.JobSteps = s.jobSteps()
	listed := make(map[model.CgroupID]bool, len(ids))
	for _, id := range ids {
		g := s.find(id)
		if g == nil || listed[id] {
			continue
		}
		g.named, listed[id] = true, true
		fact := g.fact
		fact.ID = id
		if fact.Runtime == "slurm" {
			fact.User = s.userOf(g)
		}
		out.Cgroups = append(out.Cgroups, fact)
		if top := s.table.byPath[g.top]; rdma != "" && top != nil && charged[top.id] == "" {
			if charged == nil {
				charged = map[uint64]string{}
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
	before := s.now().Add(-s.grace)
	out.Expired = s.table.expire(before)
	for id, since := range s.unresolved {
		if since.Before(before) {
			out.Expired = append(out.Expired, id)
		}
	}
	slices.Sort(out.Expired)
	strangers := s.strangers
	out.UnresolvedCgroups = &strangers
	s.mu.Unlock()

	if rdma != "" {
		out.RDMACgroups = readRDMA(ctx, charged)
	}
	return out, ctx.Err()
}

// find returns the cgroup, at first from the table. One that is not there is
// too new for it, or was never seen: then it is dead, or cannot be watched.
func (s *Source) find(id uint64) *group {
	if g := s.table.byID[id]; g != nil {
		return g
	}
	if _, ok := s.unresolved[id]; ok || id == 0 || len(s.unresolved) >= s.table.limit {
		return nil
	}
	s.drain()
	if g := s.table.byID[id]; g != nil {
		return g
	}
	err := error(unix.EOPNOTSUPP)
	if s.mount != nil {
		var path string
		if path, err = pathByID(s.mount, s.procfs, id); err == nil {
			if g, _ := s.table.add(path, id, true, s.now()); g != nil {
				return g
			}
		}
	}
	if err != nil && !errors.Is(err, unix.ESTALE) && s.now().Sub(s.walked) >= walkOnMiss {
		s.walk()
		if g := s.table.byID[id]; g != nil {
			return g
		}
	}
	if s.pathOf != nil {
		if path, ok := s.pathOf(id); ok {
			if g := s.table.learn(string(path), id, s.now()); g != nil {
				return g
			}
		}
	}
	s.unresolved[id] = s.now()
	s.strangers++
	return nil
}

// Forget drops the names of dead cgroups, and those that never got one.
func (s *Source) Forget(cgroups []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.table.drop(id)
		delete(s.unresolved, id)
	}
}

// CgroupOf returns the id of the cgroup of a process or thread, from
// /proc/PID/cgroup; fs.ErrNotExist when it is gone, or is outside of the
// mounted tree.
func (s *Source) CgroupOf(pid int) (uint64, error) {
	b, err := boundedfile.ReadFile(filepath.Join(s.procfs, strconv.Itoa(pid), "cgroup"), make([]byte, 512), maxProcCgroup)
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	line, ok := procCgroup(b, s.hierarchy.Controller)
	if !ok {
		return 0, fmt.Errorf("cgroup of process %d: not in its /proc file: %w", pid, fs.ErrNotExist)
	}
	path, err := s.table.view.below(line)
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	id, err := cgroupID(s.hierarchy.Mount + path)
	if path, deleted := strings.CutSuffix(path, staleSuffix); err != nil && deleted {
		s.mu.Lock()
		defer s.mu.Unlock()
		if id, ok := s.table.lastAt(path); ok {
			return id, nil
		}
	}
	return id, err
}
