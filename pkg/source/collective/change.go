// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
)

// change attaches the probes that a file lacks, or detaches unwanted probes, unless an operation is in progress. The loop does
// not wait for the operation.
func (l *loop) change(f *file, now time.Time) {
	if f.Changing() {
		return
	}
	c := changeOf(f)
	if c.Halves = f.Unwanted(f.wants); len(c.Halves) == 0 {
		c.Halves = l.missing(f, now)
		c.Attach = func(h half) func(string) (io.Closer, error) { return l.kernel.probe(&f.places[h.Place], f.library) }
	}
	if len(c.Halves) == 0 {
		return
	}
	c.RetryInterval = retryInterval
	c.Ended = func(o *uprobe.Operation) {
		if c.Attach != nil {
			f.setFailures(c.Halves, o)
		}
		l.change(f, time.Now())
	}
	l.manager.Begin(&c, now)
}

// changeOf returns a change of the probes of a file that does not change any yet.
func changeOf(f *file) uprobe.Change[int] {
	return uprobe.Change[int]{
		File: &f.File, Paths: f.openPaths(), Owners: f.allOwners(), Offset: func(i int) uint64 { return f.places[i].Offset },
	}
}

// setFailures sets why places are not probed.
func (f *file) setFailures(halves []half, o *uprobe.Operation) {
	for i, h := range halves {
		f.places[h.Place].failed = o.Probes[i].Err
	}
}

// wants reports whether a place is to be probed.
func (f *file) wants(i int) bool { return f.wanted() && f.places[i].pause.reason == nil }

// missing returns the probes that a file lacks: first of the functions that make communicators, because a communicator that is made
// before has no id.
func (l *loop) missing(f *file, now time.Time) (halves []half) {
	if !f.wanted() {
		return nil
	}
	for i := range f.places {
		p := &f.places[i]
		if hook.Refused(l.kernel.refused[p.function]) || p.Err != nil || now.Before(p.pause.until) {
			continue
		}
		halves = append(halves, f.Missing(uprobe.Target[int]{Place: i}, false)...)
	}
	slices.SortStableFunc(halves, func(a, b half) int {
		return cmp.Compare(f.places[a.Place].launches(), f.places[b.Place].launches())
	})
	return halves
}

// launches returns 1 for a function that launches an operation.
func (p *place) launches() int {
	if functions[p.function].operation != "" {
		return 1
	}
	return 0
}

// allOwners returns the owners of the processes that map a file.
func (f *file) allOwners() []uint64 {
	owners := map[model.CgroupID]bool{}
	for _, id := range f.owners {
		owners[id] = true
	}
	var all []uint64
	for id := range owners {
		all = append(all, uint64(id))
	}
	return all
}

func (l *loop) shutdown() {
	var files []uprobe.Change[int]
	for _, f := range l.files {
		files = append(files, changeOf(f))
	}
	l.manager.Shutdown(files)
}
