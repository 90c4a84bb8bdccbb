// SPDX-License-Identifier: Apache-2.0

package library

import (
	"cmp"
	"slices"
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
)

// File is a library or program that processes map. Its probes hit all processes that map it, and stay attached while the file is
// kept, so that the next process is counted from its first call.
type File struct {
	uprobe.File[int]        // places are indexes in Places; Owner has a share of the BPF maps
	Name             string // of its locate.LibraryName
	Places           []Place
	Optional         bool // its functions are

	returns bool                   // Spec.Returns
	owners  map[int]model.CgroupID // by process that maps it
	// waits: the file has no probes, and a process that maps it may refuse them, or no process wants them.
	waits bool
	// kept opens the file when no process maps it anymore; nil if that failed.
	kept *locate.Kept
	home *locate.Process // the file is probed while this process exists; nil: while any process maps it
}

// Place is where a function of a file is probed.
type Place struct {
	locate.LibraryFunction
	Function int   // index in Spec.Functions
	failed   error // why the function is not probed
	pause    pause
}

// Half is a probe at the entry or at the return of a function.
type Half = uprobe.Half[int]

// add adds a library of a process. The first process that brings a file opens it.
func (p *Prober) add(of *Process, lib *locate.Library, r *result) {
	if len(lib.Functions) == 0 {
		return
	}
	f := p.Files[lib.File]
	if f == nil {
		if !p.hasRoom(of.owner) {
			of.Incomplete = true
			p.opts.Logger.Warn("a library is not probed: there are too many files with its name", zap.Int("pid", of.PID()),
				zap.String("library", lib.Name))
			return
		}
		f = p.newFile(of.owner, lib)
		p.Files[lib.File] = f
	}
	if p.spec.PerProcess {
		if of.refused = uprobe.CheckAlone(p.Files, of.PID()); of.refused != nil {
			return
		}
	}
	if f.Paths[of.PID()] == "" {
		of.wait = p.opts.Interval // the process is starting, and may map another library
	}
	f.Paths[of.PID()], f.owners[of.PID()] = lib.Path, of.owner
	p.keep(f, lib.Path, r)
	p.exclude(f, time.Now())
	p.change(f, time.Now())
}

func (p *Prober) newFile(owner model.CgroupID, lib *locate.Library) *File {
	f := &File{
		File: uprobe.NewFile[int](owner, p.spec.PerProcess), Name: lib.Name, Optional: true,
		returns: p.spec.Returns, owners: map[int]model.CgroupID{},
	}
	for _, fn := range lib.Functions {
		i := p.indexOf(lib.Name, fn.Name)
		f.Optional = f.Optional && p.spec.Functions[i].Optional
		f.Places = append(f.Places, Place{LibraryFunction: fn, Function: i})
	}
	slices.SortStableFunc(f.Places, func(a, b Place) int { return cmp.Compare(a.Function, b.Function) })
	return f
}

func (p *Prober) indexOf(library, name string) int {
	return slices.IndexFunc(p.spec.Functions, func(f Function) bool {
		return f.Name == name && (f.Library == "" || f.Library == library)
	})
}

// hasRoom reports whether processes of an owner may bring another file.
func (p *Prober) hasRoom(owner model.CgroupID) bool {
	return len(p.Files) < maxFiles && uprobe.CountOf(p.Files, owner) < maxFilesOfOwner
}

// keep opens a file. It takes over the home of the process: the file stays probed while the home exists.
func (p *Prober) keep(f *File, path string, r *result) {
	if f.kept == nil {
		var err error
		if f.kept, err = locate.Keep(p.opts.Procfs, path); err != nil {
			p.opts.Logger.Debug("a library is not kept", zap.Error(err))
			return
		}
	}
	if f.home == nil && !f.Optional {
		f.home, r.home = r.home, nil
	}
}

// leaveHome closes the home: the file is no longer probed for processes that may come.
func (f *File) leaveHome() {
	if f.home != nil {
		f.home.Close()
		f.home = nil
	}
}

// close closes a file whose probes are detached, or are left to the end of the sensor.
func (f *File) close() {
	f.leaveHome()
	if f.kept != nil {
		f.kept.Close()
		f.kept = nil
	}
}

// exclude sets whether a process maps the file that must not be probed.
func (p *Prober) exclude(f *File, now time.Time) {
	refused, awaited, wanted := false, false, !f.Optional
	for pid := range f.Paths {
		of := p.Processes[pid]
		if of == nil {
			continue
		}
		wanted = wanted || p.spec.Wants(of)
		if p.opts.Consent == nil {
			continue
		}
		consent := p.opts.Consent(of.cgroup)
		refused, awaited = refused || consent == uprobe.Refused, awaited || consent == uprobe.Awaited
	}
	f.waits = f.Waits(awaited, now) || !wanted
	f.Exclude(refused, barInterval, now)
}

// needed reports whether a process uses the file, or may use it.
func (f *File) needed() bool { return len(f.Paths) > 0 || f.home != nil }

func (f *File) wanted() bool { return f.needed() && !f.Excluded && !f.waits }

// openPaths returns the path through which the file is probed, if it could be opened. Paths of processes are valid only
// while kept and home are open.
func (f *File) openPaths() []string {
	if f.kept == nil {
		return nil
	}
	return []string{f.kept.Path()}
}

// allOwners returns the owners of the processes that map a file.
func (f *File) allOwners() []uint64 {
	var all []uint64
	for _, id := range f.owners {
		if !slices.Contains(all, uint64(id)) {
			all = append(all, uint64(id))
		}
	}
	return all
}

// attached reports whether a place is probed, in one process at least.
func (f *File) attached(place int) bool {
	for h := range f.Links {
		if h.Place == place && len(f.Missing(h.Target, f.returns)) == 0 {
			return true
		}
	}
	return false
}

// Unprobed reports whether functions of the file are not probed: paused, because their probes cost too much, or lacking for another reason.
func (f *File) Unprobed() (lacking, paused bool) {
	for i := range f.Places {
		if f.Places[i].pause.reason != nil {
			paused = true
		} else if !f.attached(i) {
			lacking = true
		}
	}
	return lacking, paused
}

// stateOf reports whether a function is probed, and if the file has it and it is not probed, why.
func (f *File) stateOf(function int) (attached bool, err error) {
	for i := range f.Places {
		if at := &f.Places[i]; at.Function == function {
			err = cmp.Or(err, at.Err, at.failed, at.pause.reason)
			attached = attached || f.attached(i)
		}
	}
	return attached, err
}
