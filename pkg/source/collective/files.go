// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// maxFiles bounds the files with probes, maxFilesOfOwner the files that processes of one owner brought: a process
	// may map any number of files with the name of a library.
	maxFiles        = 64
	maxFilesOfOwner = 8
	// barInterval is how long a file stays without probes at least, when a process has mapped it that must not be probed: if
	// such processes come and go, probes must not come and go with them.
	barInterval = 10 * time.Minute
	// retryInterval is the time until the next attempt to probe a file.
	retryInterval = 30 * time.Second
)

// file is a library or program that processes map. Its probes hit all processes that map it, and stay attached while the file is
// kept, so that the next process is counted from its first call.
type file struct {
	uprobe.File[int]                        // places are indexes in places; Owner has a share of the BPF maps
	owners           map[int]model.CgroupID // by process that maps it
	library          int
	graphs           bool // it launches graphs; it is probed only for processes that use collectives
	places           []place
	// waits: the file has no probes, and a process that maps it may refuse them.
	waits bool
	// kept opens the file when no process maps it anymore; nil if that failed.
	kept *locate.Kept
	home *locate.Process // the file is probed while this process exists; nil: while any process maps it
}

type fileSet map[locate.FileID]*file

// place is where a function of a file is probed.
type place struct {
	locate.LibraryFunction
	function int   // index in functions
	failed   error // why the function is not probed
	pause    pause
}

type half = uprobe.Half[int]

// add adds a file of a process. The first process that brings a file opens it.
func (l *loop) add(p *process, lib *locate.Library, r *result) {
	name := fileNameOf(lib)
	p.note(name, lib)
	if len(lib.Functions) == 0 {
		return
	}
	f := l.files[lib.File]
	if f == nil {
		if !l.files.hasRoom(p.owner) {
			p.incomplete = true
			l.opts.Logger.Warn("a library is not probed: there are too many files with its name", zap.Int("pid", p.PID()),
				zap.String("library", lib.Name))
			return
		}
		f = newFile(p.owner, name, lib)
		l.files[lib.File] = f
	}
	if f.Paths[p.PID()] == "" {
		p.wait = l.opts.Interval // the process is starting, and may map another library
	}
	f.Paths[p.PID()], f.owners[p.PID()] = lib.Path, p.owner
	l.keep(f, lib.Path, r)
	l.exclude(f, time.Now())
	l.change(f, time.Now())
}

func newFile(owner model.CgroupID, name *fileName, lib *locate.Library) *file {
	f := &file{
		File: uprobe.NewFile[int](owner, false), owners: map[int]model.CgroupID{}, library: name.libraryOf(lib), graphs: name.graphs,
	}
	for _, fn := range lib.Functions {
		f.places = append(f.places, place{LibraryFunction: fn, function: indexOf(fn.Name)})
	}
	return f
}

// hasRoom reports whether processes of an owner may bring another file.
func (all fileSet) hasRoom(owner model.CgroupID) bool {
	return len(all) < maxFiles && uprobe.CountOf(all, owner) < maxFilesOfOwner
}

func (all fileSet) leave(pid int) {
	for _, f := range all {
		delete(f.Paths, pid)
		delete(f.owners, pid)
	}
}

// keep opens a file. It takes over the home of the process: the file stays probed while the home exists.
func (l *loop) keep(f *file, path string, r *result) {
	if f.kept == nil {
		var err error
		if f.kept, err = locate.Keep(l.opts.Procfs, path); err != nil {
			l.opts.Logger.Debug("a library is not kept", zap.Error(err))
			return
		}
	}
	if f.home == nil && !f.graphs {
		f.home, r.home = r.home, nil
	}
}

// leaveHome closes the home: the file is no longer probed for processes that may come.
func (f *file) leaveHome() {
	if f.home != nil {
		f.home.Close()
		f.home = nil
	}
}

// close closes a file whose probes are detached, or are left to the end of the sensor.
func (f *file) close() {
	f.leaveHome()
	if f.kept != nil {
		f.kept.Close()
		f.kept = nil
	}
}

// exclude sets whether a process maps the file that must not be probed.
func (l *loop) exclude(f *file, now time.Time) {
	refused, awaited, uses := false, false, false
	for pid := range f.Paths {
		p := l.processes[pid]
		if p == nil {
			continue
		}
		uses = uses || p.uses
		if l.opts.Consent != nil {
			consent := l.opts.Consent(p.cgroup)
			refused, awaited = refused || consent == uprobe.Refused, awaited || consent == uprobe.Awaited
		}
	}
	f.waits = f.Waits(awaited, now) || f.graphs && !uses
	f.Exclude(refused, barInterval, now)
}

// needed reports whether a process uses the file, or may use it.
func (f *file) needed() bool { return len(f.Paths) > 0 || f.home != nil }

func (f *file) wanted() bool { return f.needed() && !f.Excluded && !f.waits }

// openPaths returns the path through which the file is probed, if it could be opened. Paths of processes are valid only
// while kept and home are open.
func (f *file) openPaths() []string {
	if f.kept == nil {
		return nil
	}
	return []string{f.kept.Path()}
}

// stateOf reports whether a function is probed, and if the file has it and it is not probed, why.
func (f *file) stateOf(function int) (attached bool, err error) {
	for i := range f.places {
		p := &f.places[i]
		if p.function != function {
			continue
		}
		err = cmp.Or(err, p.Err, p.failed, p.pause.reason)
		attached = attached || f.Links[half{Target: uprobe.Target[int]{Place: i}}] != nil
	}
	return attached, err
}
