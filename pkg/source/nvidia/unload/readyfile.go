// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// readyFile is the file that the driver container of the GPU Operator creates when the driver is loaded. The preStop
// hook of the container removes it.
type readyFile struct {
	run  string
	log  *zap.Logger
	seen bool
}

func (r *readyFile) path() string {
	return filepath.Join(r.run, "nvidia/validations/.driver-ctr-ready")
}

// directories returns the directories whose changes can change the signals, the outermost first.
func (r *readyFile) directories() []string {
	inner := filepath.Dir(r.path())
	return []string{r.run, filepath.Dir(inner), inner}
}

// signals returns a signal if the file existed and does not exist now. If it never existed, the node has no driver
// container.
func (r *readyFile) signals() []signal {
	switch _, err := os.Lstat(r.path()); {
	case err == nil && !r.seen:
		r.seen = true
		r.log.Debug("watching the ready file of the driver container", zap.String("path", r.path()))
	case r.seen && errors.Is(err, fs.ErrNotExist):
		return []signal{{"ready file", "the driver container removed " + filepath.Base(r.path())}}
	}
	return nil
}

// directories watches directories that may not exist yet, with inotify.
type directories struct {
	paths []string
	file  *os.File // nil without inotify: then the file is checked only at each interval
}

func newDirectories(log *zap.Logger, paths ...string) *directories {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("the ready file of the driver container is checked once per second only", zap.Error(err))
		return &directories{}
	}
	return &directories{paths, os.NewFile(uintptr(fd), "inotify")}
}

// add adds the directories that exist now. It may add a directory again.
func (d *directories) add() {
	if d.file == nil {
		return
	}
	raw, err := d.file.SyscallConn()
	if err != nil {
		return
	}
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	_ = raw.Control(func(fd uintptr) { // fails after the end of watch
		for _, path := range d.paths {
			_, _ = unix.InotifyAddWatch(int(fd), path, changes) // a missing directory is added when it exists
		}
	})
}

// watch calls notify after changes, at most a hundred times per second, until the context ends. It does not use the events:
// notify causes a check of the file itself.
func (d *directories) watch(ctx context.Context, notify func()) {
	if d.file == nil {
		return
	}
	defer d.file.Close()
	defer context.AfterFunc(ctx, func() { _ = d.file.SetReadDeadline(time.Now()) })()
	events := make([]byte, 4096)
	for {
		if _, err := d.file.Read(events); err != nil {
			return
		}
		d.add()
		notify()
		select {
		case <-time.After(interval / 100):
		case <-ctx.Done():
			return
		}
	}
}
