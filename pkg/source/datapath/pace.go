// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stepInterval is the minimum time between steps for new processes and contexts.
	stepInterval = 50 * time.Millisecond
	// stepRest is the minimum pause after a step, as a multiple of its duration: steps take at most a fifth of a CPU.
	stepRest = 4
)

// pace decides when the loop runs a step. A step reads the counters of all contexts, which takes milliseconds if there are thousands, and
// a large job causes thousands of events at its start. So a step follows after all waiting events, and the rate of steps is limited.
type pace struct {
	due    time.Time // set by the last step
	begun  time.Time // of the last step
	rested time.Time // earliest time of the next one
	// changed: processes or contexts are new since the last step. attach: functions are
	// not probed yet.
	changed, attach bool
}

// next returns when the next step begins.
func (p *pace) next() time.Time {
	at := p.due
	if soon := p.begun.Add(stepInterval); p.changed && soon.Before(at) {
		at = soon
	}
	if p.attach || at.Before(p.rested) {
		at = p.rested
	}
	return at
}

// begin records that a step begins.
func (p *pace) begin(now time.Time) {
	p.begun, p.changed, p.attach = now, false, false
}

// read records that the step has read the counters.
func (p *pace) read(now time.Time) {
	p.rested = now.Add(stepRest * now.Sub(p.begun))
}

// monotonic returns CLOCK_MONOTONIC in ns, which the programs use.
func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return uint64(now.Nano())
}
