// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// want sets whether a group of a file is to be probed. What it counts is incomplete from the moment on at which it is not.
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

// switchOn sets that a group is probed, as far as it can be.
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

// gap has the programs forget what they know of calls in progress: calls of the contexts of a file were not seen.
func (p *prober) gap(f *file) {
	for _, key := range p.meter.contextsOf(f.id) {
		p.kernel.gap(key)
	}
}

// change attaches the probes that a file lacks, or detaches those that it must not have, unless an operation is in progress or put
// off. The loop does not wait for it: finish takes the result. Posts come before polls, as a process may be about to post.
func (p *prober) change(f *file, now time.Time) {
	if f.turn.Taken() {
		return
	}
	if halves := f.unwanted(); len(halves) > 0 {
		p.begin(f, changed{of: f, halves: halves, detach: true}, now)
		return
	}
	for group := range groups {
		if !f.wanted[group] {
			continue
		}
		if halves := f.missing(group); len(halves) > 0 {
			p.begin(f, changed{of: f, halves: halves}, now)
			return
		}
		p.switchOn(f, group)
	}
	f.added = false
}

// changed is an operation of the Gate, and what it changes of a file.
type changed struct {
	*uprobe.Operation
	of     *file
	halves []half // of each probe
	detach bool
}

// begin begins an operation, if it is due.
func (p *prober) begin(f *file, c changed, now time.Time) {
	if !f.turn.Take(now) {
		return
	}
	p.changing++
	o := &uprobe.Operation{Source: model.DataPathSource, Paths: f.openPaths(), Owners: p.processes.ownersOf(f)}
	c.Operation = o
	for i, h := range c.halves {
		one := uprobe.Probe{Offset: h.Offset, Link: f.links[h]}
		if !c.detach {
			one.Attach = p.kernel.probe(h)
			if i > 0 && c.halves[i-1] == (half{h.target, true}) {
				one.Attach = afterReturn(&o.Probes, i-1, one.Attach)
			}
		}
		o.Probes = append(o.Probes, one)
	}
	o.Done = func(*uprobe.Operation) {
		go safely.Do(model.DataPathSource, func() {
			select {
			case p.changes <- c:
			case <-p.done:
			}
		})
	}
	if c.detach {
		p.opts.Gate.Detach(o)
	} else {
		p.opts.Gate.Attach(o)
	}
}

var errNoReturn = errors.New("the return of the function is not probed")

// afterReturn attaches the entry of a function only if its return is probed.
func afterReturn(probes *[]uprobe.Probe, ret int, attach func(string) (io.Closer, error)) func(string) (io.Closer, error) {
	return func(path string) (io.Closer, error) {
		if (*probes)[ret].Link == nil {
			return nil, errNoReturn
		}
		return attach(path)
	}
}

// finish takes the probes that an operation has attached or detached.
func (p *prober) finish(c *changed, now time.Time) {
	f := c.of
	p.changing--
	p.closeFormer()
	retry := time.Duration(0) // of what failed to attach, each target has a time
	if c.detach {
		retry = retryInterval
	}
	f.turn.Ended(c.Err(), now, retry)
	f.take(c, now)
	if err := c.Err(); err != nil {
		p.opts.Logger.Warn("probes of a provider are not changed", zap.Bool("detach", c.detach), zap.Error(err))
	}
	p.change(f, now)
}

// take takes the result of an operation.
func (f *file) take(c *changed, now time.Time) {
	if f.delayed = nil; errors.Is(c.Err(), uprobe.ErrDeferred) {
		f.delayed = c.Err()
	}
	for _, h := range c.halves {
		delete(f.failed, h.target)
	}
	for i, h := range c.halves {
		p := &c.Probes[i]
		if p.Link == nil {
			delete(f.links, h)
		} else {
			f.links[h] = p.Link
		}
		if c.detach {
			continue
		}
		_, left := f.paths[h.pid]
		left = f.perProcess && !left
		switch {
		case p.Link != nil && f.attached[h.target] == 0 && !h.ret && !left:
			f.attached[h.target] = monotonic()
		case p.Link == nil && f.failed[h.target].err == nil && !errors.Is(p.Err, uprobe.ErrDeferred) && !left:
			f.failed[h.target] = failure{p.Err, now}
		}
	}
}

// unwanted returns the probes that a file has and must not have: of groups that are not wanted, and of processes that have ended. The
// entry of a function comes before its return.
func (f *file) unwanted() (halves []half) {
	for h := range f.links {
		if _, exists := f.paths[h.pid]; f.wanted[groupOf(h.Function)] && (h.pid == 0 || exists) {
			continue
		}
		if h.ret && f.links[half{h.target, false}] != nil {
			continue // it comes with the entry
		}
		if halves = append(halves, h); !h.ret && f.links[half{h.target, true}] != nil {
			halves = append(halves, half{h.target, true})
		}
	}
	return halves
}

// missing returns the probes of a group that a file lacks and that are due.
func (f *file) missing(group int) (halves []half) {
	for _, pid := range f.targetPIDs() {
		for _, h := range f.unprobed(group, pid) {
			if f.failed[h.target].due() {
				halves = append(halves, h)
			}
		}
	}
	return halves
}

// closeFormer closes the programs of kernels from before the last release, which operations in progress may use.
func (p *prober) closeFormer() {
	if p.changing > 0 {
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
		if p.change(f, now); f.hasProbes() {
			left = append(left, f)
		} else {
			f.close()
		}
	}
	clear(p.former[len(left):])
	p.former = left
}

// shutdown detaches all probes at the end of the sensor, before the hooks, as that may take longer than the sensor waits.
func (p *prober) shutdown() {
	if len(p.files)+len(p.former)+p.changing == 0 {
		return
	}
	p.opts.Gate.End()
	deadline := time.After(uprobe.EndLimit / 3)
	for hangs := false; p.changing > 0 && !hangs; { // no other operation begins
		select {
		case c := <-p.changes:
			c.of.take(&c, time.Now())
			c.of.turn.Ended(nil, time.Now(), 0)
			p.changing--
		case <-deadline:
			hangs = true
		}
	}
	p.closeFormer()
	var operations []*uprobe.Operation
	for _, f := range slices.AppendSeq(p.former, maps.Values(p.files)) {
		f.wanted = [groups]bool{}
		o := &uprobe.Operation{Source: model.DataPathSource, Paths: f.openPaths(), Owners: p.processes.ownersOf(f)}
		for _, h := range f.unwanted() {
			o.Probes = append(o.Probes, uprobe.Probe{Offset: h.Offset, Link: f.links[h]})
		}
		operations = append(operations, o)
	}
	if len(operations) > 0 {
		p.opts.Gate.Shutdown(operations)
	}
	for _, f := range slices.AppendSeq(p.former, maps.Values(p.files)) {
		clear(f.links) // closed, or left
		f.close()
	}
	p.former = nil
}
