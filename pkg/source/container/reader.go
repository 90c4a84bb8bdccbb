// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// maxFile is the size limit of a file. The largest file, memory.stat, has 4 KiB.
	maxFile = 64 << 10
	// maxBelow limits the search for processes in the cgroups below the cgroup of a container, which may make any
	// number of them.
	maxBelow = 256
)

type reader struct {
	buf  []byte
	gone bool  // the cgroup was removed
	err  error // the first failure
	// quote is the first skipped line of the cgroup; skipped counts the lines of all cgroups.
	quote   string
	skipped boundedfile.SkippedFiles
}

var readers = sync.Pool{New: func() any { return &reader{buf: make([]byte, maxFile)} }}

// open opens the directory of a cgroup. A missing directory is not an error.
func (r *reader) open(dir string) (int, bool) {
	fd, err := boundedfile.Open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		r.fail("open", err)
	}
	return fd, err == nil
}

// file returns the content of a file, valid until the next call, or nil if the file is missing. A file of a removed
// cgroup returns ENODEV, a pressure file of a kernel without accounting EOPNOTSUPP.
//
// boundedfile.ReadFile reads until the end of a file. Here a first read of less than 1024 bytes is complete: the kernel
// returns a short file of a cgroup at once, and the read that finds its end is half of the cost.
func (r *reader) file(dir int, name string) []byte {
	fd, err := boundedfile.Open(dir, name, 0)
	if err != nil {
		r.fail(name, err)
		return nil
	}
	defer unix.Close(fd)
	n := 0
	for n < len(r.buf) {
		got, err := boundedfile.Read(fd, r.buf[n:])
		if err != nil {
			r.fail(name, err)
			return nil
		}
		if n += got; got == 0 || n < 1024 {
			break
		}
	}
	return r.buf[:n]
}

func (r *reader) fail(what string, err error) {
	switch {
	case errors.Is(err, unix.ENODEV):
		r.gone = true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EOPNOTSUPP), r.err != nil:
	default:
		r.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (r *reader) leaveOut(name string, s boundedfile.Skipped) {
	r.skipped.Add(name, s)
	if s.Lines > 0 && r.quote == "" {
		r.quote = name + ": " + s.String()
	}
}

func (r *reader) bad(name string, b []byte) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %.40q cannot be parsed", name, b)
	}
}

func (r *reader) value(dir int, name string, by float64) model.Optional {
	v := r.parse(dir, name, number)
	v.Value /= by
	return v
}

func (r *reader) limit(dir int, name string) model.Optional { return r.parse(dir, name, limit) }

func (r *reader) parse(dir int, name string, parse func([]byte) (float64, bool)) model.Optional {
	b := r.file(dir, name)
	if b == nil {
		return model.Optional{}
	}
	v, ok := parse(b)
	if !ok {
		r.bad(name, b)
		return model.Optional{}
	}
	return model.Some(v)
}

type field struct {
	name string
	to   *model.Optional
	by   float64 // the number is divided by this unit
}

// fields reads a file of names and numbers. Other lines are ignored.
func (r *reader) fields(dir int, name string, fields ...field) {
	b := r.file(dir, name)
	if b == nil {
		return
	}
	var skipped boundedfile.Skipped
	pairs(b, &skipped, func(key []byte, v float64) {
		for i := range fields {
			if f := &fields[i]; string(key) == f.name {
				*f.to = model.Some(v / f.by)
			}
		}
	})
	r.leaveOut(name, skipped)
}

// pressure reads a pressure file: the time, in microseconds, that some or all tasks waited.
func (r *reader) pressure(dir int, name string, some, full *model.Optional) {
	if b := r.file(dir, name); b != nil {
		var skipped boundedfile.Skipped
		parsePressure(b, &skipped, some, full)
		r.leaveOut(name, skipped)
	}
}

// populated reports whether there is a process in a cgroup of version 2 or below it.
func (r *reader) populated(dir int) bool {
	var populated model.Optional
	r.fields(dir, "cgroup.events", field{"populated", &populated, 1})
	return populated.Value > 0
}

type processes struct {
	before int // pid of the last read
	first  int
	stays  bool // before is still in the cgroup
	count  int
	more   bool // than count: lines were skipped
}

// pid returns the process of the last read if it is still in the cgroup, else the first. The pid of a process outside
// of the pid namespace is 0.
func (p *processes) pid() int {
	if p.stays {
		return p.before
	}
	return p.first
}

func (p *processes) add(pid int) {
	p.count++
	p.stays = p.stays || pid == p.before && pid != 0
	if p.first == 0 {
		p.first = pid
	}
}

// processes reads cgroup.procs, which may be long.
func (r *reader) processes(dir int, p *processes) bool {
	fd, err := boundedfile.Open(dir, "cgroup.procs", 0)
	if err != nil {
		r.fail("cgroup.procs", err)
		return false
	}
	defer unix.Close(fd)
	var skipped boundedfile.Skipped
	defer func() {
		p.more = p.more || skipped.Lines > 0
		r.leaveOut("cgroup.procs", skipped)
	}()
	kept := 0
	for {
		n, err := boundedfile.Read(fd, r.buf[kept:])
		if err != nil {
			r.fail("cgroup.procs", err)
			return false
		}
		if n == 0 {
			if kept > 0 {
				skipped.Add(r.buf[:kept])
			}
			return true
		}
		b := r.buf[:kept+n]
		for {
			line, rest, whole := bytes.Cut(b, []byte{'\n'})
			if !whole {
				break
			}
			pid, err := strconv.Atoi(string(line))
			b = rest
			if err != nil || pid < 0 {
				skipped.Add(line)
				continue
			}
			p.add(pid)
		}
		if kept = copy(r.buf, b); kept == len(r.buf) {
			r.bad("cgroup.procs", b)
			return false
		}
	}
}

func (r *reader) processesBelow(top string, p *processes) {
	todo, seen := []string{top}, 0
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			if seen++; seen > maxBelow {
				return
			}
			below := filepath.Join(dir, e.Name())
			if fd, ok := r.open(below); ok {
				r.processes(fd, p)
				unix.Close(fd)
				todo = append(todo, below)
			}
		}
	}
}
