// SPDX-License-Identifier: Apache-2.0

package library

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// A process pays for probes with a part of its CPU time. Most call probed functions seldom: a program keeps a cache of memory, and
// launches few operations per step. A process that allocates from a pool of the driver for each kernel may call a function a hundred
// thousand times per second, an all-to-all among hundreds of peers calls hundreds of functions in each step. When the credit of a
// process is used up, the function that it calls most loses its probes for a while, in the files that the process maps. Calls cannot be
// sampled: each failure may be the only one, and the launches of two ranks are compared. Meanwhile the hook of the function is failed.
const (
	// budgetRatio is the part of a process's CPU time that probes may take.
	budgetRatio = 0.01
	// startCredit is the credit at the start, and the maximum: 25,000 calls of 4 µs, as in the load of a large model.
	startCredit = 100 * time.Millisecond
	// Bounds of a pause. Each pause of a function in a file is twice as long as its previous pause.
	firstPause = time.Minute
	lastPause  = time.Hour
)

type account struct {
	credit time.Duration
	cpu    time.Duration  // of the process, at the last step
	calls  map[int]uint64 // by function
	// In this step: the cost of all calls, and the function that cost most.
	spent, highest time.Duration
	most           int
}

// pause is a time in which a function is not probed.
type pause struct {
	until  time.Time
	last   time.Duration
	reason error // nil without a pause
}

// spend charges processes for their calls, pauses functions of processes without credit, and ends pauses.
func (p *Prober) spend(now time.Time) {
	for _, f := range p.Files {
		for i := range f.Places {
			if at := &f.Places[i].pause; at.reason != nil && !now.Before(at.until) {
				at.reason = nil
			}
		}
	}
	costs := p.costs()
	err := p.spec.Calls(func(pid, function int, calls uint64) (drop bool) {
		if !p.observe(pid) {
			return true
		}
		if of := p.Processes[pid]; of != nil && function < len(costs) {
			of.charge(function, calls, costs[function])
		}
		return false
	})
	if err != nil {
		p.opts.Logger.Debug("reading the calls of processes", zap.Error(err))
	}
	for pid, of := range p.Processes {
		cpu, err := of.CPU()
		if err != nil {
			continue
		}
		if of.settle(cpu) {
			p.pause(pid, of.most, now)
		}
	}
}

// charge adds the cost of the calls of a function since the last step.
func (a *account) charge(function int, calls uint64, cost time.Duration) {
	if a.calls == nil {
		a.calls = map[int]uint64{}
	}
	before := a.calls[function]
	if calls < before { // the kernel dropped the entry
		before = 0
	}
	a.calls[function] = calls
	cost *= time.Duration(min(calls-before, 1<<32))
	if a.spent += cost; cost > a.highest {
		a.highest, a.most = cost, function
	}
}

// settle ends a step, and reports whether the credit is used up.
func (a *account) settle(cpu time.Duration) (used bool) {
	earned := time.Duration(budgetRatio * float64(cpu-a.cpu))
	a.credit = min(a.credit+earned, startCredit) - a.spent
	if used = a.credit < 0 && a.spent > 0; used {
		a.credit = startCredit
	}
	a.cpu, a.spent, a.highest = cpu, 0, 0
	return used
}

// costs returns the cost of a call of each function, in the file in which it is highest.
func (p *Prober) costs() []time.Duration {
	costs := make([]time.Duration, len(p.spec.Functions))
	for i := range costs {
		costs[i] = p.spec.CallCost
	}
	for _, f := range p.Files {
		for i := range f.Places {
			if at := &f.Places[i]; at.Stepped {
				costs[at.Function] = p.spec.CallCostStepped
			}
		}
	}
	return costs
}

// pause detaches a function for a while from the files that a process maps, or from all files if the process is
// unknown.
func (p *Prober) pause(pid, function int, now time.Time) {
	known := false
	for _, f := range p.Files {
		known = known || f.Paths[pid] != ""
	}
	for _, f := range p.Files {
		if known && f.Paths[pid] == "" {
			continue
		}
		for i := range f.Places {
			at := &f.Places[i]
			if at.Function != function {
				continue
			}
			last := min(max(2*at.pause.last, firstPause), lastPause)
			at.pause = pause{
				until: now.Add(last), last: last,
				reason: fmt.Errorf("process %d called it so often that probes took more than %g of its CPU time: not counted until %s",
					pid, budgetRatio, now.Add(last).UTC().Format(time.RFC3339)),
			}
		}
		p.change(f, now)
	}
	p.opts.Logger.Warn("a function is not counted for a while: its probes cost too much",
		zap.String("function", p.spec.Functions[function].Name), zap.Int("pid", pid))
}
