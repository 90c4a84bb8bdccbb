// SPDX-License-Identifier: Apache-2.0

package library

import (
	"cmp"
	"io"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
)

// retryInterval is the time until the next attempt to probe a file.
const retryInterval = 30 * time.Second

// change attaches the probes that a file lacks, or detaches unwanted probes, unless an operation is in progress. The loop does
// not wait for the operation.
func (p *Prober) change(f *File, now time.Time) {
	if f.Changing() {
		return
	}
	c := changeOf(f)
	if c.Halves = f.Unwanted(f.wants); len(c.Halves) == 0 {
		c.Halves = p.missing(f, now)
		c.Attach = func(h Half) func(string) (io.Closer, error) { return p.spec.Attach(f, h) }
	}
	if len(c.Halves) == 0 {
		return
	}
	c.RetryInterval = retryInterval
	c.EntryDetached = p.spec.Detached // from now on no call begins whose return the next step could miss
	c.Ended = func(o *uprobe.Operation) {
		if c.Attach != nil {
			f.setFailures(c.Halves, o)
		} else if p.spec.Detached != nil {
			p.spec.Detached() // also what an entry that was running then has written
		}
		p.change(f, time.Now())
	}
	p.manager.Begin(&c, now)
}

// changeOf returns a change of the probes of a file that does not change any yet.
func changeOf(f *File) uprobe.Change[int] {
	return uprobe.Change[int]{
		File: &f.File, Paths: f.openPaths(), Owners: f.allOwners(), Offset: func(i int) uint64 { return f.Places[i].Offset },
	}
}

// setFailures sets why places are not probed.
func (f *File) setFailures(halves []Half, o *uprobe.Operation) {
	for _, h := range halves {
		f.Places[h.Place].failed = nil
	}
	for i, h := range halves {
		at := &f.Places[h.Place]
		at.failed = cmp.Or(at.failed, o.Probes[i].Err)
	}
}

// wants reports whether a place is to be probed.
func (f *File) wants(i int) bool { return f.wanted() && f.Places[i].pause.reason == nil }

// missing returns the probes that a file lacks.
func (p *Prober) missing(f *File, now time.Time) (halves []Half) {
	if !f.wanted() {
		return nil
	}
	p.load()
	for i := range f.Places {
		at := &f.Places[i]
		if p.refused[at.Function] != nil || at.Err != nil || now.Before(at.pause.until) {
			continue
		}
		for _, pid := range f.PIDs() {
			halves = append(halves, f.Missing(uprobe.Target[int]{Place: i, PID: pid}, f.returns)...)
		}
	}
	return halves
}

func (p *Prober) shutdown() {
	var files []uprobe.Change[int]
	for _, f := range p.Files {
		files = append(files, changeOf(f))
	}
	p.manager.Shutdown(files)
}
