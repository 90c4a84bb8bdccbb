// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// watchMask selects the creation and removal of directories. It excludes files, which kubelet
// and systemd write all the time.
const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// maxUnreadable is the maximum number of unreadable cgroups reported by name.
const maxUnreadable = 16

// Bounds of what users who may create cgroups cost.
const (
	// maxWatches is the maximum number of watches, and watchShare their largest part of fs.inotify.max_user_watches: the kubelet runs as
	// the same user.
	maxWatches = 8192
	watchShare = 4
	// maxCreated is the number of children of one cgroup per second above which it is not watched until the next Read.
	maxCreated = 1000
)

// ErrWatches is reported while not all cgroups can be watched, because there are too many.
var ErrWatches = errors.New("too many cgroups to watch")

// openWatch opens the inotify instance. Without one the tree is walked for unknown ids.
func (s *Source) openWatch() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		s.noWatch = fmt.Errorf("inotify: %w (raise fs.inotify.max_user_instances)", err)
		return
	}
	s.inotify = os.NewFile(uintptr(fd), "inotify")
	if s.events, err = s.inotify.SyscallConn(); err != nil {
		s.noWatch = fmt.Errorf("inotify: %w", err)
	}
}

// watchLimit returns the maximum number of watches. The default of the file is 8192 before Linux 5.11.
func watchLimit(procfs string) int {
	text, _ := boundedfile.ReadFile(filepath.Join(procfs, "sys/fs/inotify/max_user_watches"), nil, 32)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return maxWatches
	}
	return min(maxWatches, n/watchShare)
}

// run reads events until Close.
func (s *Source) run() {
	defer close(s.done)
	_ = s.events.Read(func(fd uintptr) bool {
		for s.step(fd) {
		}
		return false // wait for the next event
	})
}

// step does the most urgent work and reports whether more may be left.
func (s *Source) step(fd uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readEvents(fd) || s.follow()
}

// drain handles the pending events, at most those of a full queue
// (fs.inotify.max_queued_events).
func (s *Source) drain() {
	if s.events == nil {
		return
	}
	_ = s.events.Control(func(fd uintptr) {
		for i := 0; i < 64 && s.readEvents(fd); i++ {
		}
	})
	for s.follow() {
	}
}

// readEvents lists new cgroups at once, as they may end soon, and leaves the rest to follow.
func (s *Source) readEvents(fd uintptr) bool {
	n, err := unix.Read(int(fd), s.buf[:])
	if err != nil || n <= 0 {
		return errors.Is(err, unix.EINTR)
	}
	created := map[*group][]string{} // names of new children
	lost := false
	for b := s.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		b = b[end:]
		parent := s.watched[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			lost = true
		case mask&unix.IN_IGNORED != 0:
			delete(s.watched, wd)
		case parent == nil || mask&unix.IN_ISDIR == 0:
		case mask&unix.IN_CREATE != 0:
			created[parent] = append(created[parent], name)
		case mask&unix.IN_DELETE != 0:
			s.removed = append(s.removed, join(parent.path, name))
		}
	}
	for parent, names := range created {
		s.grow(parent, names)
	}
	if lost {
		s.walk()
	}
	return true
}

// grow adds new children of a cgroup, each by its name: a listing takes long where there are many others.
func (s *Source) grow(parent *group, names []string) {
	now := s.opt.Now()
	if now.Sub(parent.countedAt) >= time.Second {
		parent.created, parent.countedAt = 0, now
	}
	if parent.created += len(names); parent.created > maxCreated {
		s.unwatch(parent)
		s.paused = append(s.paused, parent)
		s.pauses++
		return
	}
	for _, name := range names {
		path := join(parent.path, name)
		id, err := cgroupID(s.hierarchy.Mount + path)
		if err != nil {
			s.cannotRead(path, err)
			continue
		}
		s.admit(parent, path, id, false, now)
	}
}

// resume watches and lists the cgroups again that had too many new children.
func (s *Source) resume() {
	paused := s.paused
	s.paused = nil
	for _, g := range paused {
		if !g.died.IsZero() {
			continue
		}
		s.enter(g, false)
		for path, child := range s.table.byPath { // their removal was not seen
			if path != g.path && filepath.Dir(path) == g.path && s.isEnded(child) {
				s.removed = append(s.removed, path)
			}
		}
	}
	for s.follow() {
	}
}

// follow enters one new cgroup, or records the end of a removed one. It returns false if there
// is none.
func (s *Source) follow() bool {
	if n := len(s.entering); n > 0 {
		g := s.entering[n-1]
		s.entering = s.entering[:n-1]
		s.enter(g, false)
		return true
	}
	n := len(s.removed)
	if n == 0 {
		return false
	}
	path := s.removed[n-1]
	s.removed = s.removed[:n-1]
	if g := s.table.byPath[path]; g != nil && s.isEnded(g) {
		if g.closed && s.table.owned[g.owner()] > 1 {
			s.table.endTree(g, s.opt.Now()) // there are no events of those below it
		} else {
			s.table.end(g, s.opt.Now())
		}
	}
	return true
}

// checkFound records the end of cgroups that were looked up, as those below a closed one are not watched.
func (s *Source) checkFound() {
	s.checked = s.opt.Now()
	for _, g := range s.table.byPath {
		if g.found && s.isEnded(g) {
			s.table.end(g, s.checked)
		}
	}
}

// isEnded checks the file system: another cgroup may have taken the path since the event.
func (s *Source) isEnded(g *group) bool {
	id, err := cgroupID(s.hierarchy.Mount + g.path)
	return err == nil && id != g.id || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// walk visits the tree, to find changes without an event.
func (s *Source) walk() { s.visit(false) }

// visit visits the tree, with or without what is below closed cgroups.
func (s *Source) visit(closed bool) {
	s.walked = s.opt.Now()
	if s.visiting = closed; closed {
		s.visited = s.walked
	}
	defer func() { s.visiting = false }()
	s.walks++
	s.unreadable = nil
	if s.inotify != nil {
		s.noWatch, s.watchLimit = nil, watchLimit(s.opt.Procfs)
	}
	id, err := cgroupID(s.hierarchy.Mount)
	if err != nil {
		s.cannotRead("/", err)
		return
	}
	s.entering = nil
	if root, _ := s.table.add(nil, "/", id, s.walked); root != nil {
		s.entering = append(s.entering, root)
	}
	for n := len(s.entering); n > 0; n = len(s.entering) {
		g := s.entering[n-1]
		s.entering = s.entering[:n-1]
		s.enter(g, true)
	}
	for _, g := range s.table.byPath {
		if g.walk != s.walks && s.isEnded(g) {
			s.table.end(g, s.walked)
		}
	}
}

// enter first watches a cgroup and then lists it, so that no child is missed.
func (s *Source) enter(g *group, all bool) {
	g.walk = s.walks
	if !g.closed {
		s.watch(g)
	}
	if !g.closed || s.visiting {
		s.scan(g, all)
	}
}

// scan lists the children of a cgroup and queues the new ones, or all, to be entered.
func (s *Source) scan(g *group, all bool) {
	dirs, err := subdirs(s.hierarchy.Mount + g.path)
	if err != nil {
		s.cannotRead(g.path, err)
		return
	}
	now := s.opt.Now()
	for _, d := range dirs {
		s.admit(g, join(g.path, d.name), d.id, all, now)
	}
}

// admit adds a child of a cgroup, and queues it to be entered if it is new, or in any case.
func (s *Source) admit(parent *group, path string, id model.CgroupID, always bool, now time.Time) {
	child, fresh := s.table.add(parent, path, id, now)
	if child != nil && (fresh || always) {
		child.found = child.found || parent.closed // no event reports its end
		s.entering = append(s.entering, child)
	}
}

func (s *Source) watch(g *group) {
	if s.noWatch != nil {
		return
	}
	if len(s.watched) >= s.watchLimit {
		s.cannotWatch(fmt.Errorf("%w: the limit is %d", ErrWatches, s.watchLimit))
		return
	}
	_ = s.events.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(int(fd), s.hierarchy.Mount+g.path, watchMask)
		switch {
		case err == nil:
			g.wd = int32(wd)
			s.watched[g.wd] = g
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
			s.cannotWatch(fmt.Errorf("%w: inotify: %w", ErrWatches, err))
		default:
			s.cannotRead(g.path, err)
		}
	})
}

func (s *Source) cannotWatch(err error) {
	s.noWatch = err
	if !s.warnedNoWatch {
		s.warnedNoWatch = true
		s.opt.Logger.Warn("not all cgroups can be watched; short-lived ones may stay without a name", zap.Error(err))
	}
}

// unwatch removes the watch of an ended cgroup. The kernel does not remove it: a kernfs
// directory keeps its link count when it is removed.
func (s *Source) unwatch(g *group) {
	if g.wd == 0 || s.watched[g.wd] != g {
		return
	}
	delete(s.watched, g.wd)
	_ = s.events.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(g.wd)) })
	g.wd = 0
}

// cannotRead records an existing cgroup that cannot be read.
func (s *Source) cannotRead(path string, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || len(s.unreadable) >= maxUnreadable {
		return
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		err = errno // without the path, which may be very long
	}
	if s.unreadable == nil {
		s.unreadable = map[string]error{}
	}
	s.unreadable[clean(path, maxLabel)] = err
}

func join(path, name string) string {
	return strings.TrimSuffix(path, "/") + "/" + name
}
