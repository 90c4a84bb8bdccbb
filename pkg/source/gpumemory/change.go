// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"io"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
)

// link is the probes of a target: at the end of the function and at its beginning.
type link [2]io.Closer

const (
	atEnd   = 0
	atBegin = 1
)

func (l *link) complete() bool { return l[atEnd] != nil && l[atBegin] != nil }

type half struct {
	target
	at int
}

// change attaches the probes that a file lacks, or detaches unwanted probes, unless an operation is in progress. The
// loop does not wait for the operation: handleChange takes the result.
func (l *loop) change(f *file, now time.Time) {
	if f.turn.Taken() {
		return
	}
	c := changed{of: f, detach: true}
	o := &uprobe.Operation{Source: sourceName, Paths: f.openPaths(), Owners: f.allOwners()}
	if c.halves, o.Probes = f.unwanted(); len(o.Probes) == 0 {
		c.detach = false
		if c.halves, o.Probes = l.missing(f, now); len(o.Probes) == 0 {
			return
		}
	}
	if !f.turn.Take(now) {
		return
	}
	l.changing++
	o.Done = func(o *uprobe.Operation) { c.Operation = o; l.changes <- c } // the channel has room for one operation of each file
	if c.detach {
		l.opts.Gate.Detach(o)
	} else {
		l.opts.Gate.Attach(o)
	}
}

type changed struct {
	*uprobe.Operation
	of     *file
	halves []half // for each probe
	detach bool
}

// handleChange takes the probes that an operation has attached or detached.
func (l *loop) handleChange(c *changed) {
	f, now := c.of, time.Now()
	l.changing--
	f.turn.Ended(c.Err(), now, retryInterval)
	for i := range c.halves {
		f.set(c.halves[i], c.Probes[i].Link)
	}
	if c.detach {
		if err := l.kernel.detached(); err != nil {
			l.opts.Logger.Debug("the programs may take calls for nested ones", zap.Error(err))
		}
	} else {
		f.setFailures(c.Operation, c.halves)
	}
	if err := c.Err(); err != nil {
		l.opts.Logger.Warn("probes of a library that allocates GPU memory are not changed", zap.Bool("detach", c.detach), zap.Error(err))
	}
	l.change(f, now)
}

// setFailures sets why places are not probed.
func (f *file) setFailures(o *uprobe.Operation, halves []half) {
	for _, h := range halves {
		f.places[h.place].failed = nil
	}
	for i, h := range halves {
		if err := o.Probes[i].Err; err != nil {
			f.places[h.place].failed = err
		}
	}
}

// set sets a probe of a target, nil if the probe is not attached.
func (f *file) set(h half, probe io.Closer) {
	l := f.links[h.target]
	if l == nil {
		l = &link{}
		f.links[h.target] = l
	}
	if l[h.at] = probe; *l == (link{}) {
		delete(f.links, h.target)
	}
}

// unwanted returns the probes that a file has and must not have: of ended processes, of paused functions, or of a file
// that nothing needs. The beginning of a function comes first.
func (f *file) unwanted() (halves []half, probes []uprobe.Probe) {
	for t, l := range f.links {
		_, exists := f.paths[t.pid]
		if f.wanted() && f.places[t.place].pause.reason == nil && (t.pid == 0 || exists) {
			continue
		}
		halves, probes = f.append(halves, probes, t, l)
	}
	return halves, probes
}

func (f *file) append(halves []half, probes []uprobe.Probe, t target, l *link) ([]half, []uprobe.Probe) {
	for _, at := range []int{atBegin, atEnd} {
		if l[at] != nil {
			halves = append(halves, half{t, at})
			probes = append(probes, uprobe.Probe{Offset: f.places[t.place].Offset, Link: l[at]})
		}
	}
	return halves, probes
}

// missing returns the probes that a file lacks. The end of a function comes first: if only the beginning of a call were
// seen, later calls of its thread would look nested.
func (l *loop) missing(f *file, now time.Time) (halves []half, probes []uprobe.Probe) {
	if !f.wanted() {
		return nil, nil
	}
	for i := range f.places {
		p := &f.places[i]
		if hook.Refused(l.kernel.refused[p.function]) || p.Err != nil || now.Before(p.pause.until) {
			continue
		}
		for _, pid := range l.pidsOf(f) {
			t := target{i, pid}
			attached := f.links[t]
			for _, at := range []int{atEnd, atBegin} {
				if attached == nil || attached[at] == nil {
					halves = append(halves, half{t, at})
					probes = append(probes, l.kernel.probe(p.Offset, p.function, pid, at))
				}
			}
		}
	}
	return halves, probes
}

func (l *loop) pidsOf(f *file) []int {
	if l.searches.perProcess {
		return slices.Collect(maps.Keys(f.paths))
	}
	return []int{0}
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
	l.opts.Gate.End()
	deadline := time.After(uprobe.EndLimit / 3)
	for l.changing > 0 { // so no other operation begins
		select {
		case c := <-l.changes:
			for i := range c.halves {
				c.of.set(c.halves[i], c.Probes[i].Link)
			}
			l.changing--
		case <-deadline:
			l.changing = 0
		}
	}
	var operations []*uprobe.Operation
	for _, f := range l.files {
		o := &uprobe.Operation{Source: sourceName, Paths: f.openPaths(), Owners: f.allOwners()}
		for t, attached := range f.links {
			_, o.Probes = f.append(nil, o.Probes, t, attached)
		}
		operations = append(operations, o)
	}
	l.opts.Gate.Shutdown(operations)
}
