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
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// watchMask selects the creation and removal of directories. It excludes files, which kubelet and systemd write all the
// time.
const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// maxUnreadable is the maximum number of unreadable cgroups reported by name.
const maxUnreadable = 16

// Bounds of the costs of users who may create cgroups.
const (
	// maxWatches is the maximum number of watches, and watchShare limits them to a quarter of
	// fs.inotify.max_user_watches: the kubelet runs as the same user.
	maxWatches = 8192
	watchShare = 4
	// maxCreated is the number of new children per second above which a cgroup is not watched until the next Read.
	maxCreated = 1000
)

// ErrWatches is reported while there are too many cgroups to watch.
var ErrWatches = errors.New("too many cgroups to watch")

// Minimum intervals of walks of the tree: for an unknown id, and while some cgroups are not watched.
const (
	walkOnMiss = time.Second
	walkUnseen = 30 * time.Second
)

// watcher keeps the table up to date, with the events of inotify and with walks of the tree.
type watcher struct {
	mount  string // of the hierarchy
	procfs string
	log    *zap.Logger
	now    func() time.Time

	inotify *os.File
	events  syscall.RawConn
	done    chan struct{} // closed when run has returned

	mu         *sync.Mutex // of the Source; protects the fields below
	table      *table
	watched    map[int32]*group // by watch descriptor
	watchLimit int              // of watched
	entering   []*group         // to be watched and listed
	removed    []string         // removed paths, as reported by the watch
	noWatch    error            // why some cgroups are not watched
	warned     bool             // of noWatch
	unreadable map[string]error // by path
	walks      uint64
	walked     time.Time
	visited    time.Time // the last walk that also listed below closed cgroups
	visiting   bool      // a walk also lists below closed cgroups
	paused     []*group  // not watched because of too many new children
	pauses     uint64    // total number
	checked    time.Time
	buf        [16 << 10]byte // for inotify events
}

func (w *watcher) start() {
	w.openWatch()
	w.walk()
	if w.events == nil {
		close(w.done)
	} else {
		go safely.Do("cgroup", w.run)
	}
}

func (w *watcher) stop() error {
	var err error
	if w.inotify != nil {
		err = w.inotify.Close()
	}
	<-w.done
	return err
}

// catchUp finds the changes for which there are no events.
func (w *watcher) catchUp() {
	if (w.noWatch != nil || w.unreadable != nil) && w.now().Sub(w.walked) >= walkUnseen {
		w.walk()
	}
	w.resume()
	if w.now().Sub(w.checked) >= walkUnseen {
		w.checkFound()
	}
}

// openWatch opens the inotify instance. If this fails, the tree is walked for unknown ids.
func (w *watcher) openWatch() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.noWatch = fmt.Errorf("inotify: %w (raise fs.inotify.max_user_instances)", err)
		return
	}
	w.inotify = os.NewFile(uintptr(fd), "inotify")
	if w.events, err = w.inotify.SyscallConn(); err != nil {
		w.noWatch = fmt.Errorf("inotify: %w", err)
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

func (w *watcher) run() {
	defer close(w.done)
	_ = w.events.Read(func(fd uintptr) bool {
		for w.step(fd) {
		}
		return false // wait for the next event
	})
}

// step does the most urgent work and reports whether more may be left.
func (w *watcher) step(fd uintptr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readEvents(fd) || w.follow()
}

// drain handles the pending events, at most a full queue (fs.inotify.max_queued_events).
func (w *watcher) drain() {
	if w.events == nil {
		return
	}
	_ = w.events.Control(func(fd uintptr) {
		for i := 0; i < 64 && w.readEvents(fd); i++ {
		}
	})
	for w.follow() {
	}
}

// readEvents lists new cgroups at once, because they may end soon, and leaves the rest to follow.
func (w *watcher) readEvents(fd uintptr) bool {
	n, err := unix.Read(int(fd), w.buf[:])
	if err != nil || n <= 0 {
		return errors.Is(err, unix.EINTR)
	}
	created := map[*group][]string{} // names of new children
	lost := false
	for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		b = b[end:]
		parent := w.watched[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			lost = true
		case mask&unix.IN_IGNORED != 0:
			delete(w.watched, wd)
		case parent == nil || mask&unix.IN_ISDIR == 0:
		case mask&unix.IN_CREATE != 0:
			created[parent] = append(created[parent], name)
		case mask&unix.IN_DELETE != 0:
			w.removed = append(w.removed, join(parent.path, name))
		}
	}
	for parent, names := range created {
		w.grow(parent, names)
	}
	if lost {
		w.walk()
	}
	return true
}

// grow adds new children of a cgroup by name: a listing takes long in a large directory.
func (w *watcher) grow(parent *group, names []string) {
	now := w.now()
	if now.Sub(parent.countedAt) >= time.Second {
		parent.created, parent.countedAt = 0, now
	}
	if parent.created += len(names); parent.created > maxCreated {
		w.unwatch(parent)
		w.paused = append(w.paused, parent)
		w.pauses++
		return
	}
	for _, name := range names {
		path := join(parent.path, name)
		id, err := cgroupID(w.mount + path)
		if err != nil {
			w.cannotRead(path, err)
			continue
		}
		w.admit(parent, path, id, false, now)
	}
}

func (w *watcher) resume() {
	paused := w.paused
	w.paused = nil
	for _, g := range paused {
		if !g.died.IsZero() {
			continue
		}
		w.enter(g, false)
		for path, child := range w.table.byPath { // their removal was not seen
			if path != g.path && filepath.Dir(path) == g.path && w.isEnded(child) {
				w.removed = append(w.removed, path)
			}
		}
	}
	for w.follow() {
	}
}

// follow enters a new cgroup, or records the end of a removed cgroup. It returns false if nothing is left.
func (w *watcher) follow() bool {
	if n := len(w.entering); n > 0 {
		g := w.entering[n-1]
		w.entering = w.entering[:n-1]
		w.enter(g, false)
		return true
	}
	n := len(w.removed)
	if n == 0 {
		return false
	}
	path := w.removed[n-1]
	w.removed = w.removed[:n-1]
	if g := w.table.byPath[path]; g != nil && w.isEnded(g) {
		if g.closed && w.table.owned[g.owner()] > 1 {
			w.table.endTree(g, w.now()) // there are no events of cgroups below
		} else {
			w.table.end(g, w.now())
		}
	}
	return true
}

// checkFound records the end of cgroups that were looked up: cgroups below a closed cgroup are not watched.
func (w *watcher) checkFound() {
	w.checked = w.now()
	for _, g := range w.table.byPath {
		if g.found && w.isEnded(g) {
			w.table.end(g, w.checked)
		}
	}
}

// isEnded checks the file system: another cgroup may have taken the path since the event.
func (w *watcher) isEnded(g *group) bool {
	id, err := cgroupID(w.mount + g.path)
	return err == nil && id != g.id || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func (w *watcher) walk() { w.visit(false) }

// visit visits the tree, with or without the cgroups below closed cgroups.
func (w *watcher) visit(closed bool) {
	w.walked = w.now()
	if w.visiting = closed; closed {
		w.visited = w.walked
	}
	defer func() { w.visiting = false }()
	w.walks++
	w.unreadable = nil
	if w.inotify != nil {
		w.noWatch, w.watchLimit = nil, watchLimit(w.procfs)
	}
	id, err := cgroupID(w.mount)
	if err != nil {
		w.cannotRead("/", err)
		return
	}
	w.entering = nil
	if root, _ := w.table.add(nil, "/", id, w.walked); root != nil {
		w.entering = append(w.entering, root)
	}
	for n := len(w.entering); n > 0; n = len(w.entering) {
		g := w.entering[n-1]
		w.entering = w.entering[:n-1]
		w.enter(g, true)
	}
	for _, g := range w.table.byPath {
		if g.walk != w.walks && w.isEnded(g) {
			w.table.end(g, w.walked)
		}
	}
}

// enter first watches a cgroup and then lists it, so that no child is missed.
func (w *watcher) enter(g *group, all bool) {
	g.walk = w.walks
	if !g.closed {
		w.watch(g)
	}
	if !g.closed || w.visiting {
		w.scan(g, all)
	}
}

// scan lists the children of a cgroup and queues the new children, or all of them, to be entered.
func (w *watcher) scan(g *group, all bool) {
	dirs, err := subdirs(w.mount + g.path)
	if err != nil {
		w.cannotRead(g.path, err)
		return
	}
	now := w.now()
	for _, d := range dirs {
		w.admit(g, join(g.path, d.name), d.id, all, now)
	}
}

// admit adds a child of a cgroup. If the child is new, or always is set, it is queued to be entered.
func (w *watcher) admit(parent *group, path string, id model.CgroupID, always bool, now time.Time) {
	child, fresh := w.table.add(parent, path, id, now)
	if child != nil && (fresh || always) {
		child.found = child.found || parent.closed // its end causes no event
		w.entering = append(w.entering, child)
	}
}

func (w *watcher) watch(g *group) {
	if w.noWatch != nil {
		return
	}
	if len(w.watched) >= w.watchLimit {
		w.cannotWatch(fmt.Errorf("%w: the limit is %d", ErrWatches, w.watchLimit))
		return
	}
	_ = w.events.Control(func(fd uintptr) {
		wd, err := unix.InotifyAddWatch(int(fd), w.mount+g.path, watchMask)
		switch {
		case err == nil:
			g.wd = int32(wd)
			w.watched[g.wd] = g
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
			w.cannotWatch(fmt.Errorf("%w: inotify: %w", ErrWatches, err))
		default:
			w.cannotRead(g.path, err)
		}
	})
}

func (w *watcher) cannotWatch(err error) {
	w.noWatch = err
	if !w.warned {
		w.warned = true
		w.log.Warn("not all cgroups can be watched; short-lived ones may stay without a name", zap.Error(err))
	}
}

// unwatch removes the watch of an ended cgroup. The kernel does not: a kernfs directory keeps its link count when it is
// removed.
func (w *watcher) unwatch(g *group) {
	if g.wd == 0 || w.watched[g.wd] != g {
		return
	}
	delete(w.watched, g.wd)
	_ = w.events.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(g.wd)) })
	g.wd = 0
}

func (w *watcher) cannotRead(path string, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || len(w.unreadable) >= maxUnreadable {
		return
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		err = errno // without the path, which may be very long
	}
	if w.unreadable == nil {
		w.unreadable = map[string]error{}
	}
	w.unreadable[clean(path, maxLabel)] = err
}

func join(path, name string) string {
	return strings.TrimSuffix(path, "/") + "/" + name
}
