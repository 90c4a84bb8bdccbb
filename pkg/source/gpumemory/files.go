// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// maxFiles bounds the files with probes, maxFilesOfCgroup those that processes of one cgroup brought: a process may map any
	// number of files with the name of a library.
	maxFiles         = 64
	maxFilesOfCgroup = 8
	// maxProbedAlone is the number of processes that have probes of their own, as on the data path.
	maxProbedAlone = 256
	// retryInterval is the time until the next attempt after a function could not be probed.
	retryInterval = 30 * time.Second
)

// errTooMany is why further processes are not probed.
var errTooMany = fmt.Errorf("%w: more than %d processes, and each needs probes of its own on this kernel",
	model.ErrUnsupported, maxProbedAlone)

// file is a library that processes map. Its probes hit all of them, and stay attached while the file is kept, so that the
// next process is counted from its first call.
type file struct {
	cgroup model.CgroupID // of the first process that mapped it
	paths  map[int]string // path to open it, by process that maps it
	// places are the exported functions, and at the same index the function and why it is not probed.
	places []place
	// kept and home are nil if the probes end with the last process that maps the file.
	kept  *locate.Kept
	home  *locate.Process // the file is kept while this process exists
	links map[target]io.Closer
}

// place is where a function of a file is probed.
type place struct {
	locate.LibraryFunction
	function int // index in functions
	failed   error
	failedAt time.Time
	pause    pause
}

// target is a place in one process, or (pid 0) in all that map the file.
type target struct{ place, pid int }

// add adds a library of a process. The first process that brings a file has it kept.
func (s *Source) add(p *process, lib *locate.Library, r *result) {
	f := s.files[lib.File]
	if f == nil {
		var cgroup model.CgroupID
		if s.opts.CgroupOf != nil {
			cgroup, _ = s.opts.CgroupOf(p.PID())
		}
		if !s.hasRoom(cgroup) {
			s.opts.Logger.Warn("a library is not probed: there are too many files with its name", zap.Int("pid", p.PID()),
				zap.String("library", lib.Name))
			return
		}
		f = &file{cgroup: cgroup, paths: map[int]string{}, links: map[target]io.Closer{}}
		for _, fn := range lib.Functions {
			f.places = append(f.places, place{LibraryFunction: fn, function: indexOf(lib.Name, fn.Name)})
		}
		s.files[lib.File] = f
	}
	if s.perProcess && f.paths[p.PID()] == "" && s.probedAlone() >= maxProbedAlone {
		p.refused = errTooMany
		return
	}
	if f.paths[p.PID()] == "" {
		p.wait = s.opts.Interval // it is starting, and may map another library
	}
	f.paths[p.PID()] = lib.Path
	if f.kept == nil && r.home != nil {
		s.keep(f, lib.Path, r)
	}
	s.attach(f, time.Now())
}

// hasRoom reports whether processes of a cgroup may bring another file.
func (s *Source) hasRoom(cgroup model.CgroupID) bool {
	same := 0
	for _, f := range s.files {
		if f.cgroup == cgroup {
			same++
		}
	}
	return len(s.files) < maxFiles && same < maxFilesOfCgroup
}

// probedAlone returns the number of processes that have probes of their own.
func (s *Source) probedAlone() int {
	alone := map[int]bool{}
	for _, f := range s.files {
		for pid := range f.paths {
			alone[pid] = true
		}
	}
	return len(alone)
}

// keep keeps a file while the home of a process exists, which it takes over.
func (s *Source) keep(f *file, path string, r *result) {
	var err error
	if f.kept, err = locate.Keep(s.opts.Procfs, path); err != nil {
		s.opts.Logger.Debug("a library is not kept", zap.Error(err))
		return
	}
	f.home, r.home = r.home, nil
}

// unkeep ends what is kept of a file.
func (f *file) unkeep() {
	if f.kept != nil {
		f.kept.Close()
		f.home.Close()
		f.kept, f.home = nil, nil
	}
}

// attach probes the functions of a file that are not probed, unless they are paused.
func (s *Source) attach(f *file, now time.Time) {
	pids := []int{0}
	if s.perProcess {
		pids = pids[:0]
		for pid := range f.paths {
			pids = append(pids, pid)
		}
	}
	for i := range f.places {
		p := &f.places[i]
		if hook.Refused(s.kernel.refused[p.function]) {
			continue
		}
		if p.Err != nil || now.Before(p.pause.until) || now.Sub(p.failedAt) < retryInterval && p.failed != nil {
			continue
		}
		p.failed = nil
		for _, pid := range pids {
			t := target{i, pid}
			if f.links[t] != nil {
				continue
			}
			link, err := s.probe(f, p, pid)
			if err != nil {
				p.failed, p.failedAt = err, now
				s.opts.Logger.Warn("a function that allocates GPU memory is not probed", zap.String("function", p.Name), zap.Error(err))
				continue
			}
			f.links[t] = link
		}
	}
}

// probe probes a function, through any path of the file: some processes may have ended.
func (s *Source) probe(f *file, p *place, pid int) (io.Closer, error) {
	err := errors.New("no process maps the library")
	for _, path := range f.openPaths() {
		var link io.Closer
		if link, err = s.kernel.attach(path, p.Offset, p.function, pid); err == nil {
			return link, nil
		}
	}
	return nil, fmt.Errorf("probing %s: %w", p.Name, err)
}

func (f *file) openPaths() []string {
	var paths []string
	if f.kept != nil {
		paths = append(paths, f.kept.Path())
	}
	for _, path := range f.paths {
		paths = append(paths, path)
	}
	return paths
}

// stateOf reports whether a function is probed, and why it is not if the file exports it.
func (f *file) stateOf(function int) (attached bool, err error) {
	for i := range f.places {
		p := &f.places[i]
		if p.function != function {
			continue
		}
		err = cmp.Or(err, p.Err, p.failed, p.pause.reason)
		for t := range f.links {
			attached = attached || t.place == i
		}
	}
	return attached, err
}

// leave removes a process, and closes the probes that it has alone.
func (f *file) leave(pid int) {
	delete(f.paths, pid)
	f.detach(func(t target) bool { return t.pid == pid })
}

func (f *file) detachAll() { f.detach(func(target) bool { return true }) }

// detach closes some probes.
func (f *file) detach(of func(target) bool) {
	var probes []io.Closer
	for t, link := range f.links {
		if of(t) {
			probes = append(probes, link)
			delete(f.links, t)
		}
	}
	hook.CloseAll(probes)
}
