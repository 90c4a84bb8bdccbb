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
func (s *Source) want(f *file, group int, wanted bool) {
	f.wanted[group] = wanted
	if !wanted && f.on[group] {
		f.on[group] = false
		s.gap(f)
	}
	if !f.on[group] && !f.survey.limited[group] { // what is limited is not late between surveys
		f.probed[group] = nil
	}
}

// switchOn sets that a group is probed, as far as it can be.
func (s *Source) switchOn(f *file, group int) {
	if f.failure(group) == nil {
		f.setProbed(group, monotonic())
	}
	if f.on[group] {
		return
	}
	f.on[group], f.switchedOn[group] = true, monotonic()
	s.gap(f)
}

// gap has the programs forget what they know of calls in progress: calls of the contexts of a file were not seen.
func (s *Source) gap(f *file) {
	for _, key := range s.meter.contextsOf(f.id) {
		s.kernel.gap(key)
	}
}

// change attaches the probes that a file lacks, or detaches those that it must not have, unless an operation is in progress or put
// off. The loop does not wait for it: handleChange takes the result. Posts come before polls, as a process may be about to post.
func (s *Source) change(f *file, now time.Time) {
	if f.turn.Taken() {
		return
	}
	if halves := f.unwanted(); len(halves) > 0 {
		s.begin(f, changed{of: f, halves: halves, detach: true}, now)
		return
	}
	for group := range groups {
		if !f.wanted[group] {
			continue
		}
		if halves := f.missing(group); len(halves) > 0 {
			s.begin(f, changed{of: f, halves: halves}, now)
			return
		}
		s.switchOn(f, group)
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
func (s *Source) begin(f *file, c changed, now time.Time) {
	if !f.turn.Take(now) {
		return
	}
	s.changing++
	o := &uprobe.Operation{Source: s.Name(), Paths: f.openPaths(), Owners: s.ownersOf(f)}
	c.Operation = o
	for i, h := range c.halves {
		p := uprobe.Probe{Offset: h.Offset, Link: f.links[h]}
		if !c.detach {
			p.Attach = s.kernel.probe(h)
			if i > 0 && c.halves[i-1] == (half{h.target, true}) {
				p.Attach = afterReturn(&o.Probes, i-1, p.Attach)
			}
		}
		o.Probes = append(o.Probes, p)
	}
	o.Done = func(*uprobe.Operation) {
		go safely.Do(s.Name(), func() {
			select {
			case s.changes <- c:
			case <-s.done:
			}
		})
	}
	if c.detach {
		s.opts.Gate.Detach(o)
	} else {
		s.opts.Gate.Attach(o)
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

// handleChange takes the probes that an operation has attached or detached.
func (s *Source) handleChange(c *changed) {
	f, now := c.of, time.Now()
	s.changing--
	s.closeFormer()
	retry := time.Duration(0) // of what failed to attach, each target has a time
	if c.detach {
		retry = retryInterval
	}
	f.turn.Ended(c.Err(), now, retry)
	f.take(c, now)
	if err := c.Err(); err != nil {
		s.opts.Logger.Warn("probes of a provider are not changed", zap.Bool("detach", c.detach), zap.Error(err))
	}
	s.change(f, now)
	s.beginCounting(f, now)
	s.pace.changed = true
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

// ownersOf returns the owners of the processes that map a file, and 0 for others that may: those of the node, and those with the same
// image.
func (s *Source) ownersOf(f *file) (owners []uint64) {
	if f.kept != nil && (f.home == nil || f.home.PID() == 1) {
		owners = append(owners, 0)
	}
	of := map[model.CgroupID]bool{}
	for pid := range f.paths {
		if w := s.processes[pid]; w != nil {
			of[s.ownerOf(w)] = true
		}
	}
	for id := range of {
		owners = append(owners, uint64(id))
	}
	return owners
}

// closeFormer closes the programs of kernels from before the last release, which operations in progress may use.
func (s *Source) closeFormer() {
	if s.changing > 0 {
		return
	}
	for _, k := range s.closing {
		k.close()
	}
	s.closing = nil
}

// changeFormer detaches the probes of files from before the last release.
func (s *Source) changeFormer(now time.Time) {
	left := s.former[:0]
	for _, f := range s.former {
		if s.change(f, now); f.hasProbes() {
			left = append(left, f)
		} else {
			f.close()
		}
	}
	clear(s.former[len(left):])
	s.former = left
}

// shutdown detaches all probes at the end of the sensor, before the hooks, as that may take longer than the sensor waits.
func (s *Source) shutdown() {
	if len(s.files)+len(s.former)+s.changing == 0 {
		return
	}
	s.opts.Gate.End()
	deadline := time.After(uprobe.EndLimit / 3)
	for hangs := false; s.changing > 0 && !hangs; { // no other operation begins
		select {
		case c := <-s.changes:
			c.of.take(&c, time.Now())
			c.of.turn.Ended(nil, time.Now(), 0)
			s.changing--
		case <-deadline:
			hangs = true
		}
	}
	s.closeFormer()
	var operations []*uprobe.Operation
	for _, f := range slices.AppendSeq(s.former, maps.Values(s.files)) {
		f.wanted = [groups]bool{}
		o := &uprobe.Operation{Source: s.Name(), Paths: f.openPaths(), Owners: s.ownersOf(f)}
		for _, h := range f.unwanted() {
			o.Probes = append(o.Probes, uprobe.Probe{Offset: h.Offset, Link: f.links[h]})
		}
		operations = append(operations, o)
	}
	if len(operations) > 0 {
		s.opts.Gate.Shutdown(operations)
	}
	for _, f := range slices.AppendSeq(s.former, maps.Values(s.files)) {
		clear(f.links) // closed, or left
		f.close()
	}
	s.former = nil
}
