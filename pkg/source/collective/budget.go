// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
)

// A process pays for probes with a part of its CPU time. An all-to-all of sends and receives among hundreds of peers calls hundreds of
// functions in each step. When its credit is used up, the function that it calls most loses its probes for a while, in the files that
// the process maps. Launches cannot be sampled: the counts of two ranks are compared. Meanwhile the coverage is budget, and afterwards lost.
const (
	// budgetRatio is the part of a process's CPU time that probes may take.
	budgetRatio = 0.01
	// startCredit is the credit at the start, and the maximum.
	startCredit = 100 * time.Millisecond
	// Bounds of a pause. Each pause of a function in a file is twice as long as its previous pause.
	firstPause = time.Minute
	lastPause  = time.Hour
)

// Upper bounds of the cost of a call, measured by BenchmarkCall in a virtual machine with slow traps. stepped: the kernel single-steps the
// first instruction of the function, because it cannot emulate it.
const (
	callCost        = 6 * time.Microsecond
	callCostStepped = 35 * time.Microsecond
)

type account struct {
	credit time.Duration
	cpu    time.Duration // of the process, at the last step
	calls  []uint64      // by function
}

// pause is a time in which a function is not probed.
type pause struct {
	until  time.Time
	last   time.Duration
	reason error // nil without a pause
}

// spend charges processes for their calls, pauses functions of processes without credit, and ends pauses.
func (l *loop) spend(now time.Time) {
	for _, f := range l.files {
		for i := range f.places {
			if p := &f.places[i].pause; p.reason != nil && !now.Before(p.until) {
				p.reason = nil
			}
		}
	}
	costs := l.files.costs()
	spent := map[int]time.Duration{}
	most := map[int]int{} // the function that cost most in this step
	err := l.kernel.eachProcess(l.lost, func(pid int, calls []uint64) bool {
		if !l.observe(pid) {
			return true
		}
		if p := l.processes[pid]; p != nil {
			spent[pid], most[pid] = p.charge(calls, costs)
		}
		return false
	})
	if err != nil {
		l.opts.Logger.Debug("reading the calls of processes", zap.Error(err))
	}
	for pid, p := range l.processes {
		cpu, err := p.CPU()
		if err != nil {
			continue
		}
		earned := time.Duration(budgetRatio * float64(cpu-p.cpu))
		p.cpu = cpu
		p.credit = min(p.credit+earned, startCredit) - spent[pid]
		if p.credit < 0 && spent[pid] > 0 {
			l.pause(pid, most[pid], now)
			p.credit = startCredit
		}
	}
}

// charge returns the cost of the calls since the last step, and the function that cost most.
func (p *process) charge(calls []uint64, costs []time.Duration) (spent time.Duration, most int) {
	if p.calls == nil {
		p.calls = make([]uint64, len(functions))
	}
	var highest time.Duration
	for i := range functions {
		before := p.calls[i]
		if calls[i] < before { // the kernel dropped the entry
			before = 0
		}
		cost := time.Duration(min(calls[i]-before, 1<<32)) * costs[i]
		p.calls[i] = calls[i]
		if spent += cost; cost > highest {
			highest, most = cost, i
		}
		p.graphs = p.graphs || functions[i].kind == gen.CollectiveFunctionKindKIND_GRAPH && calls[i] > 0
	}
	return spent, most
}

// costs returns the cost of a call of each function, in the file in which it is highest.
func (all fileSet) costs() []time.Duration {
	costs := make([]time.Duration, len(functions))
	for i := range costs {
		costs[i] = callCost
	}
	for _, f := range all {
		for i := range f.places {
			if p := &f.places[i]; p.Stepped {
				costs[p.function] = callCostStepped
			}
		}
	}
	return costs
}

// pause detaches a function for a while from the files that a process maps, or from all files if the process is
// unknown.
func (l *loop) pause(pid, function int, now time.Time) {
	known := false
	for _, f := range l.files {
		known = known || f.Paths[pid] != ""
	}
	for _, f := range l.files {
		if known && f.Paths[pid] == "" {
			continue
		}
		for i := range f.places {
			p := &f.places[i]
			if p.function != function {
				continue
			}
			last := min(max(2*p.pause.last, firstPause), lastPause)
			p.pause = pause{
				until: now.Add(last), last: last,
				reason: fmt.Errorf("process %d called it so often that probes took more than %g of its CPU time: not counted until %s",
					pid, budgetRatio, now.Add(last).UTC().Format(time.RFC3339)),
			}
		}
		l.change(f, now)
	}
	l.opts.Logger.Warn("a function of a collective library is not counted for a while: its probes cost too much",
		zap.String("function", functions[function].name), zap.Int("pid", pid))
}
