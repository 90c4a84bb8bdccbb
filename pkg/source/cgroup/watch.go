// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// watchMask asks for directories that come and go. Not for files: kubelet and
// systemd write to those all day.
const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// maxUnreadable is how many cgroups that cannot be read are told by name.
const maxUnreadable = 16

// openWatch makes the inotify instance. Without one the tree is walked when an
// id is not known.
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

// run reads events until Close.
func (s *Source) run() {
	defer close(s.done)
	_ = s.events.Read(func(fd uintptr) bool {
		for s.step(fd) {
		}
		return false // wait for the next event
	})
}

// step does the most urgent thing and says whether there may be more.
func (s *Source) step(fd uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readEvents(fd) || s.follow()
}

// drain handles the events that are waiting: those of a whole queue
// (fs.inotify.max_queued_events) at most.
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

// readEvents notes the new cgroups at once, for they may be gone in a moment,
// and leaves the rest to follow.
func (s *Source) readEvents(fd uintptr) bool {
	n, err := unix.Read(int(fd), s.buf[:])
	if err != nil || n <= 0 {
		return errors.Is(err, unix.EINTR)
	}
	var (
		grown []*group // have new children
		lost  bool
	)
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
		case mask&unix.IN_CREATE != 0 && !slices.Contains(grown, parent):
			grown = append(grown, parent)
		case mask&unix.IN_DELETE != 0:
			s.removed = append(s.removed, join(parent.path, name))
		}
	}
	// One list of a directory has all of its new children, and waits but once
	// for those who change it.
	for _, g := range grown {
		s.scan(g, false)
	}
	if lost {
		s.walk()
	}
	return true
}

// follow enters one new cgroup, or else buries one that was removed. False
// when there is none.
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
	if g := s.table.byPath[path]; g != nil && s.gone(g) {
		s.table.bury(g, s.now())
	}
	return true
}

// gone asks the file system: an event may be older than the name's new owner.
func (s *Source) gone(g *group) bool {
	id, err := cgroupID(s.hierarchy.Mount + g.path)
	return err == nil && id != g.id || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// walk visits the whole tree, for what no event told.
func (s *Source) walk() {
	s.walked = s.now()
	s.walks++
	s.unreadable = nil
	if s.inotify != nil {
		s.noWatch = nil
	}
	id, err := cgroupID(s.hierarchy.Mount)
	if err != nil {
		s.cannotRead("/", err)
		return
	}
	s.entering = nil
	if root, _ := s.table.add("/", id, false, s.walked); root != nil {
		s.entering = append(s.entering, root)
	}
	for n := len(s.entering); n > 0; n = len(s.entering) {
		g := s.entering[n-1]
		s.entering = s.entering[:n-1]
		s.enter(g, true)
	}
	for _, g := range s.table.byPath {
		if g.walk != s.walks && s.gone(g) {
			s.table.bury(g, s.walked)
		}
	}
}

// enter watches a cgroup, and then lists it: a child that comes meanwhile is
// in the list or is an event.
func (s *Source) enter(g *group, all bool) {
	g.walk = s.walks
	s.watch(g)
	s.scan(g, all)
}

// scan notes the children of a cgroup; the new ones, or all, are to be entered.
func (s *Source) scan(g *group, all bool) {
	dirs, err := subdirs(s.hierarchy.Mount + g.path)
	if err != nil {
		s.cannotRead(g.path, err)
		return
	}
	now := s.now()
	for _, d := range dirs {
		child, fresh := s.table.add(join(g.path, d.name), d.id, false, now)
		if child != nil && (fresh || all) {
			s.entering = append(s.entering, child)
		}
	}
}

func (s *Source) watch(g *group) {
	if s.noWatch != nil {
		return
	}
	_ = s.events.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(int(fd), s.hierarchy.Mount+g.path, watchMask)
		switch {
		case err == nil:
			g.wd = int32(wd)
			s.watched[g.wd] = g
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
			s.noWatch = fmt.Errorf("inotify: %w (raise fs.inotify.max_user_watches)", err)
			if !s.toldNoWatch {
				s.toldNoWatch = true
				s.log.Warn("not all cgroups can be watched; short-lived ones may stay without a name",
					zap.Error(s.noWatch))
			}
		default:
			s.cannotRead(g.path, err)
		}
	})
}

// unwatch gives back the watch of a dead cgroup. The kernel does not do so: a
// kernfs directory keeps its link count when it is removed.
func (s *Source) unwatch(g *group) {
	if g.wd == 0 || s.watched[g.wd] != g {
		return
	}
	delete(s.watched, g.wd)
	_ = s.events.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(g.wd)) })
	g.wd = 0
}

// cannotRead notes a cgroup that is there and cannot be read.
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
