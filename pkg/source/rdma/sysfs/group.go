// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// group is a directory of counters.
type group struct {
	path  string // below the device's directory
	dir   int    // -1 if the directory does not exist
	files []file
	// Answered reports that a counter had a value once, from a file or by netlink.
	Answered bool
}

// scan lists the counters. It keeps the open files if the list did not change.
func (g *group) scan(r *Reader, device int, valid func(string) bool) {
	if g.dir < 0 {
		fd, err := r.Openat(device, g.path, unix.O_DIRECTORY)
		if err != nil {
			return
		}
		g.dir = fd
	}
	names, err := r.List(g.dir, valid)
	if err != nil {
		g.close(r)
		return
	}
	if slices.EqualFunc(names, g.files, func(n string, f file) bool { return n == f.Name }) {
		return
	}
	for i := range g.files {
		r.forget(&g.files[i])
	}
	g.files = make([]file, len(names))
	for i, n := range names {
		g.files[i] = newFile(n)
	}
}

func (g *group) Size() int { return len(g.files) }

func (g *group) close(r *Reader) {
	for i := range g.files {
		r.forget(&g.files[i])
	}
	g.files = nil
	if g.dir >= 0 {
		r.Close(g.dir)
		g.dir = -1
	}
}

// refused reports whether all files fail like the files of a function for which the firmware has no counters, such as a
// limited physical function.
func (g *group) refused() bool {
	for i := range g.files {
		if err := g.files[i].Err; !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			return false
		}
	}
	return len(g.files) > 0
}

// ReadGroup reads the counters of a directory one by one: each read may be a firmware command. It returns nil if the
// directory does not exist. If all counters are refused and never had a value, the device does not have them, and this
// is not a failure.
func (d *Device) ReadGroup(g *group, now time.Time, t *Tally) []model.Counter {
	if g.dir < 0 {
		return nil
	}
	counters := make([]model.Counter, 0, len(g.files))
	before := *t
	defer func() {
		if g.Answered = g.Answered || t.Good > before.Good; !g.Answered && g.refused() {
			*t = before
			t.Silent += len(g.files)
			t.SilentIn = cmp.Or(t.SilentIn, g.path)
		}
	}()
	for i := range g.files {
		f := &g.files[i]
		if f.Waiting(now) {
			t.Count(g.path, &f.Attempt, now)
			continue
		}
		b, err := d.Reader.read(g.dir, f, maxValue+1)
		var v uint64
		var ok bool
		if err == nil {
			v, ok, err = parseCounter(b)
		}
		f.Done(now, err)
		t.Count(g.path, &f.Attempt, now)
		if ok && err == nil {
			counters = append(counters, model.Counter{Name: f.Name, Value: v})
		}
	}
	return counters
}
