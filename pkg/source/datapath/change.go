// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// want sets whether a group of a file is to be probed. If not, its counts are incomplete from now on.
func (p *prober) want(f *file, group int, wanted bool) {
	f.wanted[group] = wanted
	if !wanted && f.on[group] {
		f.on[group] = false
		p.gap(f)
	}
	if !f.on[group] && !f.survey.limited[group] { // what is limited is not late between surveys
		f.probed[group] = nil
	}
}

// switchOn records that a group is probed, as far as possible.
func (p *prober) switchOn(f *file, group int) {
	if f.failure(group) == nil {
		f.setProbed(group, monotonic())
	}
	if f.on[group] {
		return
	}
	f.on[group], f.switchedOn[group] = true, monotonic()
	p.gap(f)
}

// gap makes the programs forget calls in progress, because calls of the file's contexts were missed.
func (p *prober) gap(f *file) {
	for _, key := range p.meter.contextsOf(f.id) {
		p.kernel.gap(key)
	}
}

// change attaches missing probes of a file, or detaches unwanted probes, unless an operation is in progress or delayed. The loop does not
// wait: take gets the result. Posts come before polls, because a process may be about to post.
func (p *prober) change(f *file, now time.Time) {
	if f.Changing() {
		return
	}
	if halves := f.Unwanted(f.wants); len(halves) > 0 {
		p.begin(f, halves, nil, now)
		return
	}
	for group := range groups {
		if !f.wanted[group] {
			continue
		}
		if halves := f.missing(group); len(halves) > 0 {
			p.begin(f, halves, p.kernel.probe, now)
			return
		}
		p.switchOn(f, group)
	}
	f.added = false
}

func (f *file) wants(at locate.Site) bool { return f.wanted[groupOf(at.Function)] }

// begin begins an operation that is due. Without attach the operation detaches.
func (p *prober) begin(f *file, halves []half, attach func(half) func(string) (io.Closer, error), now time.Time) {
	c := p.changeOf(f)
	c.Halves, c.Attach = halves, attach
	detach := attach == nil
	if detach {
		c.RetryInterval = retryInterval // of what failed to attach, each target has a time
	}
	c.Ended = func(o *uprobe.Operation) {
		now := time.Now()
		p.closeFormer()
		f.take(halves, o, detach, now)
		p.change(f, now)
		p.ended(f, now)
	}
	p.manager.Begin(&c, now)
}

// changeOf returns an empty change of the probes of a file.
func (p *prober) changeOf(f *file) uprobe.Change[locate.Site] {
	return uprobe.Change[locate.Site]{
		File: &f.File, Paths: f.openPaths(), Owners: p.processes.ownersOf(f),
		Offset: func(at locate.Site) uint64 { return at.Offset },
	}
}

// take takes the result of an operation.
func (f *file) take(halves []half, o *uprobe.Operation, detach bool, now time.Time) {
	if f.delayed = nil; errors.Is(o.Err(), uprobe.ErrDeferred) {
		f.delayed = o.Err()
	}
	for _, h := range halves {
		delete(f.failed, h.Target)
	}
	for i, h := range halves {
		if _, mapped := f.Paths[h.PID]; detach || f.PerProcess && !mapped {
			continue
		}
		switch p := &o.Probes[i]; {
		case p.Link != nil && f.attached[h.Target] == 0 && !h.Return:
			f.attached[h.Target] = monotonic()
		case p.Link == nil && f.failed[h.Target].err == nil && !errors.Is(p.Err, uprobe.ErrDeferred):
			f.failed[h.Target] = failure{p.Err, now}
		}
	}
}

// missing returns the due probes of a group that a file lacks.
func (f *file) missing(group int) (halves []half) {
	for _, pid := range f.PIDs() {
		for _, h := range f.unprobed(group, pid) {
			if f.failed[h.Target].due() {
				halves = append(halves, h)
			}
		}
	}
	return halves
}

// closeFormer closes the programs of kernels from before the last release, which operations in progress may use.
func (p *prober) closeFormer() {
	if p.manager.Running() > 0 {
		return
	}
	for _, k := range p.closing {
		k.close()
	}
	p.closing = nil
}

// changeFormer detaches the probes of files from before the last release.
func (p *prober) changeFormer(now time.Time) {
	left := p.former[:0]
	for _, f := range p.former {
		if p.change(f, now); f.HasProbes() {
			left = append(left, f)
		} else {
			f.close()
		}
	}
	clear(p.former[len(left):])
	p.former = left
}

// shutdown detaches all probes at the end of the sensor, before the hooks.
func (p *prober) shutdown() {
	files := slices.AppendSeq(p.former, maps.Values(p.files))
	changes := make([]uprobe.Change[locate.Site], len(files))
	for i, f := range files {
		changes[i] = p.changeOf(f)
	}
	p.manager.Shutdown(changes)
	p.closeFormer()
	for _, f := range files {
		f.close()
	}
	p.former = nil
}
