// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
)

// A process pays for probes with a part of its CPU time. Most processes allocate seldom, because the program keeps a
// cache. A process that allocates from a pool of the driver for each kernel may call a probed function a hundred
// thousand times per second. When its credit is used up, the function that it calls most loses its probes for a while,
// in the file that the process maps. Failures cannot be sampled: each may be the only one. Meanwhile the hook of the
// function is failed.
const (
	// budgetRatio is the part of a process's CPU time that probes may take.
	budgetRatio = 0.01
	// startCredit is the credit at the start, and the maximum: 25,000 calls, as in the load of a large model.
	startCredit = 100 * time.Millisecond
	// Bounds of a pause. Each pause of a function in a file is twice as long as its previous pause.
	firstPause = time.Minute
	lastPause  = time.Hour
)

// Upper bounds of the cost of a call, measured in docs/internals/performance.md. stepped: the kernel single-steps the
// first instruction of the function, because it cannot emulate it.
const (
	callCost        = 4 * time.Microsecond
	callCostStepped = 14 * time.Microsecond
)

type account struct {
	credit time.Duration
	cpu    time.Duration // of the process, at the last step
	calls  map[uint32]uint64
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
	most := map[int]gen.GPUMemoryCallKey{} // the function that cost most in this step
	highest := map[int]time.Duration{}
	var ended []int
	err := l.kernel.eachCalls(func(key gen.GPUMemoryCallKey, n uint64) {
		pid := int(key.Tgid)
		if !l.observe(pid) {
			ended = append(ended, pid)
			return
		}
		p := l.processes[pid]
		if p == nil || int(key.Function) >= len(functions) {
			return
		}
		if p.calls == nil {
			p.calls = map[uint32]uint64{}
		}
		before := p.calls[key.Function]
		if n < before { // the kernel dropped the entry
			before = 0
		}
		p.calls[key.Function] = n
		cost := time.Duration(min(n-before, 1<<32)) * costs[key.Function]
		spent[pid] += cost
		if cost > highest[pid] {
			highest[pid], most[pid] = cost, key
		}
	})
	for _, pid := range ended {
		err = errors.Join(err, l.kernel.removeCalls(pid))
	}
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
		if key, called := most[pid]; called && p.credit < 0 {
			l.pause(pid, int(key.Function), now)
			p.credit = startCredit
		}
	}
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
	l.opts.Logger.Warn("a function that allocates GPU memory is not counted for a while: its probes cost too much",
		zap.String("function", functions[function].name), zap.Int("pid", pid))
}
