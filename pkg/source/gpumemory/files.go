// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"cmp"
	"fmt"
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
	// maxProbedAlone is the number of processes that have their own probes, as on the data path.
	maxProbedAlone = 256
	// barInterval is how long a file stays without probes after a process has mapped it that must not be probed: if
	// such processes come and go, probes must not come and go with them.
	barInterval = 10 * time.Minute
	// retryInterval is the time until the next attempt to probe a file.
	retryInterval = 30 * time.Second
)

// errTooMany is why further processes are not probed.
var errTooMany = fmt.Errorf("%w: more than %d processes, and each needs probes of its own on this kernel",
	model.ErrUnsupported, maxProbedAlone)

// file is a library that processes map. Its probes hit all processes that map it, and stay attached while the file is
// kept, so that the next process is counted from its first call.
type file struct {
	owner  model.CgroupID         // of the first process that mapped it; this owner has a share of the BPF maps
	paths  map[int]string         // path to open it, by process that maps it
	owners map[int]model.CgroupID // by process that maps it
	// places are the exported functions.
	places []place
	// excluded: a process maps the file that must not be probed, or did so until barred.
	excluded bool
	// waits: the file has no probes, and a process that maps it may refuse them.
	waits  bool
	wait   uprobe.Wait
	barred time.Time
	// kept opens the file when no process maps it anymore; nil if that failed.
	kept  *locate.Kept
	home  *locate.Process // the file is probed while this process exists; nil: while any process maps it
	links map[target]*link
	turn  uprobe.Turn // when the probes may be changed
}

type fileSet map[locate.FileID]*file

// place is where a function of a file is probed.
type place struct {
	locate.LibraryFunction
	function int   // index in functions
	failed   error // why the function is not probed
	pause    pause
}

// target is a place in one process, or (pid 0) in all processes that map the file.
type target struct{ place, pid int }

// add adds a library of a process. The first process that brings a file opens it.
func (l *loop) add(p *process, lib *locate.Library, r *result) {
	f := l.files[lib.File]
	if f == nil {
		if !l.files.hasRoom(p.owner) {
			l.opts.Logger.Warn("a library is not probed: there are too many files with its name", zap.Int("pid", p.PID()),
				zap.String("library", lib.Name))
			return
		}
		f = &file{owner: p.owner, paths: map[int]string{}, owners: map[int]model.CgroupID{}, links: map[target]*link{}}
		for _, fn := range lib.Functions {
			f.places = append(f.places, place{LibraryFunction: fn, function: indexOf(lib.Name, fn.Name)})
		}
		l.files[lib.File] = f
	}
	if l.searches.perProcess && f.paths[p.PID()] == "" && l.files.probedAlone() >= maxProbedAlone {
		p.refused = errTooMany
		return
	}
	if f.paths[p.PID()] == "" {
		p.wait = l.opts.Interval // the process is starting, and may map another library
	}
	f.paths[p.PID()], f.owners[p.PID()] = lib.Path, p.owner
	l.keep(f, lib.Path, r)
	l.exclude(f, time.Now())
	l.change(f, time.Now())
}

// hasRoom reports whether processes of an owner may bring another file.
func (all fileSet) hasRoom(owner model.CgroupID) bool {
	same := 0
	for _, f := range all {
		if f.owner == owner {
			same++
		}
	}
	return len(all) < maxFiles && same < maxFilesOfOwner
}

// probedAlone returns the number of processes that have their own probes.
func (all fileSet) probedAlone() int {
	alone := map[int]bool{}
	for _, f := range all {
		for pid := range f.paths {
			alone[pid] = true
		}
	}
	return len(alone)
}

func (all fileSet) leave(pid int) {
	for _, f := range all {
		f.leave(pid)
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
	if f.home == nil {
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
	if l.opts.Consent == nil {
		return
	}
	awaited := false
	for pid := range f.paths {
		p := l.processes[pid]
		if p == nil {
			continue
		}
		consent := l.opts.Consent(p.cgroup)
		awaited = awaited || consent == uprobe.Awaited && len(f.links) == 0
		if consent == uprobe.Refused {
			f.barred = now.Add(barInterval)
		}
	}
	f.waits = f.wait.For(awaited, now)
	f.excluded = now.Before(f.barred)
}

// needed reports whether a process uses the file, or may use it.
func (f *file) needed() bool { return len(f.paths) > 0 || f.home != nil }

func (f *file) wanted() bool { return f.needed() && !f.excluded && !f.waits }

// openPaths returns the path through which the file is probed, if it could be opened. Paths of processes are valid only
// while kept and home are open.
func (f *file) openPaths() []string {
	if f.kept == nil {
		return nil
	}
	return []string{f.kept.Path()}
}

// stateOf reports whether a function is probed, and if the file exports it and it is not probed, why.
func (f *file) stateOf(function int) (attached bool, err error) {
	for i := range f.places {
		p := &f.places[i]
		if p.function != function {
			continue
		}
		err = cmp.Or(err, p.Err, p.failed, p.pause.reason)
		for t, l := range f.links {
			attached = attached || t.place == i && l.complete()
		}
	}
	return attached, err
}

// leave removes a process. change detaches the probes that only this process has.
func (f *file) leave(pid int) {
	delete(f.paths, pid)
	delete(f.owners, pid)
}
