// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// step handles what one read returns and says whether there may be more.
func (s *Source) step(fd uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readEvents(fd)
}

// drain handles the events that are waiting: those of a whole queue
// (fs.inotify.max_queued_events) at most.
func (s *Source) drain() {
	if s.events == nil {
		return
	}
	_ = s.events.Control(func(fd uintptr) {
		for range 64 {
			if !s.readEvents(fd) {
				return
			}
		}
	})
}

func (s *Source) readEvents(fd uintptr) bool {
	n, err := unix.Read(int(fd), s.buf[:])
	if err != nil || n <= 0 {
		return errors.Is(err, unix.EINTR)
	}
	lost := false
	for b := s.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		lost = lost || mask&unix.IN_Q_OVERFLOW != 0
		s.event(wd, mask, name)
		b = b[end:]
	}
	if lost {
		s.walk()
	}
	return true
}

func (s *Source) event(wd int32, mask uint32, name string) {
	parent := s.watched[wd]
	switch {
	case mask&unix.IN_IGNORED != 0:
		delete(s.watched, wd)
	case parent == nil || mask&unix.IN_ISDIR == 0:
	case mask&unix.IN_CREATE != 0:
		s.visit(join(parent.path, name))
	case mask&unix.IN_DELETE != 0:
		if g := s.table.byPath[join(parent.path, name)]; g != nil && s.gone(g) {
			s.table.bury(g, s.now())
		}
	}
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
	s.visit("/")
	for _, g := range s.table.byPath {
		if g.walk != s.walks && s.gone(g) {
			s.table.bury(g, s.walked)
		}
	}
}

// visit notes the cgroup at path and all below it. The watch comes before the
// list of children, so that a child is in the list or is an event.
func (s *Source) visit(path string) {
	dir := s.hierarchy.Mount + path
	id, err := cgroupID(dir)
	if err != nil {
		s.cannotRead(path, err)
		return
	}
	g := s.table.add(path, id, false, s.now())
	if g == nil {
		return
	}
	g.walk = s.walks
	s.watch(g, dir)
	children, err := os.ReadDir(dir)
	if err != nil {
		s.cannotRead(path, err)
	}
	for _, c := range children {
		if c.IsDir() {
			s.visit(join(path, c.Name()))
		}
	}
}

func (s *Source) watch(g *group, dir string) {
	if s.noWatch != nil {
		return
	}
	_ = s.events.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(int(fd), dir, watchMask)
		switch {
		case err == nil:
			s.watched[int32(wd)] = g
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

// cannotRead notes a cgroup that is there and cannot be read.
func (s *Source) cannotRead(path string, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || len(s.unreadable) >= maxUnreadable {
		return
	}
	if s.unreadable == nil {
		s.unreadable = map[string]error{}
	}
	s.unreadable[clean(path, maxLabel)] = err
}

func join(path, name string) string {
	return strings.TrimSuffix(path, "/") + "/" + name
}
