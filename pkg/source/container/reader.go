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

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// maxFile is how much of a file is read; the largest, memory.stat, has 4 KiB.
	maxFile = 64 << 10
	// maxBelow is how many cgroups below a container's are searched for
	// processes: whoever may make cgroups there may make any number.
	maxBelow = 256
)

// A reader reads files of cgroups, one after the other.
type reader struct {
	buf  []byte
	gone bool  // the cgroup went away
	err  error // the first that tells of something wrong
}

// readers are those that nobody uses now.
var readers = sync.Pool{New: func() any { return &reader{buf: make([]byte, maxFile)} }}

// open opens the directory of a cgroup. One that is not there is no error.
func (r *reader) open(dir string) (int, bool) {
	fd, err := retry(func() (int, error) {
		return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		r.fail("open", err)
	}
	return fd, err == nil
}

// file returns what is in a file, good until the next call; nil when it is not
// there. A file of a cgroup that was removed answers ENODEV, and a pressure file
// of a kernel that does not count EOPNOTSUPP.
func (r *reader) file(dir int, name string) []byte {
	fd, err := retry(func() (int, error) { return unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		r.fail(name, err)
		return nil
	}
	defer unix.Close(fd)
	n := 0
	for n < len(r.buf) {
		got, err := retry(func() (int, error) { return unix.Read(fd, r.buf[n:]) })
		if err != nil {
			r.fail(name, err)
			return nil
		}
		if got <= 0 {
			break
		}
		n += got
		// The kernel gives the whole of a short file at once, so that there is
		// no need to read to its end.
		if n < 1024 {
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

func (r *reader) bad(name string, b []byte) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %.40q is not understood", name, b)
	}
}

// figure is the number in a file, divided by how many make one of ours.
func (r *reader) figure(dir int, name string, by float64) model.Optional {
	f := r.parse(dir, name, number)
	f.Value /= by
	return f
}

// limit is the limit in a file.
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

// pairs hands over the lines of a file of names and numbers. A line that is not
// understood is left out, and told. False when there is no such file.
func (r *reader) pairs(dir int, name string, f func(key []byte, v float64)) bool {
	b := r.file(dir, name)
	if b == nil {
		return false
	}
	if !pairs(b, f) {
		r.bad(name, b)
	}
	return true
}

// pressure reads a pressure file: the time, in microseconds, that some or all
// tasks waited.
func (r *reader) pressure(dir int, name string, some, full *model.Optional) {
	if b := r.file(dir, name); b != nil && !parsePressure(b, some, full) {
		r.bad(name, b)
	}
}

// populated says whether there is a process in a cgroup of version 2 or below.
func (r *reader) populated(dir int) bool {
	found := false
	r.pairs(dir, "cgroup.events", func(key []byte, v float64) {
		found = found || string(key) == "populated" && v > 0
	})
	return found
}

// processes are the processes of a cgroup.
type processes struct {
	before int // the one that was told last time
	first  int
	stays  bool // it is still there
	count  int
}

// pid is the one that was told last time, if it is still there, else the first.
// Processes of a foreign process namespace show as 0.
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
	fd, err := retry(func() (int, error) { return unix.Openat(dir, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		r.fail("cgroup.procs", err)
		return false
	}
	defer unix.Close(fd)
	kept := 0
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, r.buf[kept:]) })
		if err != nil {
			r.fail("cgroup.procs", err)
			return false
		}
		if n <= 0 {
			if kept > 0 {
				r.bad("cgroup.procs", r.buf[:kept])
			}
			return kept == 0
		}
		b := r.buf[:kept+n]
		for {
			line, rest, whole := bytes.Cut(b, []byte{'\n'})
			if !whole {
				break
			}
			pid, err := strconv.Atoi(string(line))
			if err != nil || pid < 0 {
				r.bad("cgroup.procs", line)
				return false
			}
			p.add(pid)
			b = rest
		}
		if kept = copy(r.buf, b); kept == len(r.buf) {
			r.bad("cgroup.procs", b)
			return false
		}
	}
}

// processesBelow adds those of the cgroups below.
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

func retry(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
