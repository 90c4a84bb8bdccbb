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
	// maxFiles bounds the files with probes, maxFilesOfOwner those that processes of one owner brought: a process may map any
	// number of files with the name of a library.
	maxFiles        = 64
	maxFilesOfOwner = 8
	// maxProbedAlone is the number of processes that have probes of their own, as on the data path.
	maxProbedAlone = 256
	// barInterval is the time in which a file gets no probes after a process has mapped it that must not have any: such processes, which
	// come and go, must not make probes do so.
	barInterval = 10 * time.Minute
	// retryInterval is the time until the next attempt after a file could not be probed.
	retryInterval = 30 * time.Second
)

// errTooMany is why further processes are not probed.
var errTooMany = fmt.Errorf("%w: more than %d processes, and each needs probes of its own on this kernel",
	model.ErrUnsupported, maxProbedAlone)

// file is a library that processes map. Its probes hit all of them, and stay attached while the file is kept, so that the
// next process is counted from its first call.
type file struct {
	owner  model.CgroupID         // of the first process that mapped it: the one that has a share of the BPF maps
	paths  map[int]string         // path to open it, by process that maps it
	owners map[int]model.CgroupID // likewise
	// places are the exported functions, and at the same index the function and why it is not probed.
	places []place
	// excluded: a process maps it that must not have probes, or has until barred.
	excluded bool
	// waits: it has no probes, and a process that maps it may refuse them.
	waits  bool
	wait   uprobe.Wait
	barred time.Time
	// kept opens the file when no process maps it any more; nil if that failed.
	kept  *locate.Kept
	home  *locate.Process // the file is probed while this process exists; nil: while a process maps it
	links map[target]*link
	turn  uprobe.Turn // when they may be changed
}

// fileSet is all files that have, or may get, probes.
type fileSet map[locate.FileID]*file

// place is where a function of a file is probed.
type place struct {
	locate.LibraryFunction
	function int // index in functions
	failed   error
	pause    pause
}

// target is a place in one process, or (pid 0) in all that map the file.
type target struct{ place, pid int }

// add adds a library of a process. The first process that brings a file has it kept.
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
		p.wait = l.opts.Interval // it is starting, and may map another library
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

// probedAlone returns the number of processes that have probes of their own.
func (all fileSet) probedAlone() int {
	alone := map[int]bool{}
	for _, f := range all {
		for pid := range f.paths {
			alone[pid] = true
		}
	}
	return len(alone)
}

// leave removes a process from its files.
func (all fileSet) leave(pid int) {
	for _, f := range all {
		f.leave(pid)
	}
}

// keep opens a file, and keeps it probed while the home of a process exists, which it takes over.
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

// leaveHome ends that a file is probed for the sake of processes that may come.
func (f *file) leaveHome() {
	if f.home != nil {
		f.home.Close()
		f.home = nil
	}
}

// close closes a file whose probes are detached, or left to the end of the sensor.
func (f *file) close() {
	f.leaveHome()
	if f.kept != nil {
		f.kept.Close()
		f.kept = nil
	}
}

// exclude sets whether a process maps a file that must not have probes.
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

// needed reports whether a process uses the file, or may.
func (f *file) needed() bool { return len(f.paths) > 0 || f.home != nil }

// wanted reports whether the file is to be probed.
func (f *file) wanted() bool { return f.needed() && !f.excluded && !f.waits }

// openPaths returns the path through which the file is probed, if it could be opened. Paths of processes are valid only while these are
// open.
func (f *file) openPaths() []string {
	if f.kept == nil {
		return nil
	}
	return []string{f.kept.Path()}
}

// stateOf reports whether a function is probed, and why it is not if the file exports it.
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

// leave removes a process. The probes that it has alone are detached by change.
func (f *file) leave(pid int) {
	delete(f.paths, pid)
	delete(f.owners, pid)
}
