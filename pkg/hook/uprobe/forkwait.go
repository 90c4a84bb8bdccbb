// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// holds are the programs that measure how long the kernel holds dup_mmap_sem for a call: the time that a fork may have
// waited. The whole call takes longer, because the kernel also waits for RCU grace periods, and forks do not.
var holds = hook.Hook{
	Name: "dup_mmap_sem", Required: true,
	Tiers: []hook.Tier{
		hook.With(hook.Fentry, gen.MappingsProgFentryUpWrite, gen.MappingsProgFexitDownWrite),
		hook.With(hook.Kprobe, gen.MappingsProgKprobeUpWrite, gen.MappingsProgKretprobeDownWrite),
	},
}

// graceAllowed is how much longer than the limit a call may take if only the whole call is measured: on an overloaded
// machine, grace periods take more than a second.
const graceAllowed = 5 * time.Second

// attachHolds attaches the programs. A kernel without fentry programs and kprobes, as in some virtual machines, only
// shows the duration of the whole call.
func (e *eyes) attachHolds() error {
	if state := e.object.Attach(holds, ""); state.State != model.StateOK {
		return hook.Failure(state)
	}
	return nil
}

// change is a call that attaches or detaches a probe, in its own thread.
type change struct {
	ready chan struct{} // closed when the thread measures
	ended chan struct{} // closed when the call has returned
	took  time.Duration
	err   error // of measuring
}

// start calls f with the highest priority.
func (e *eyes) start(source string, f func()) *change {
	c := &change{ready: make(chan struct{}), ended: make(chan struct{})}
	go safely.Do(source, func() {
		defer close(c.ended)
		begun := time.Now()
		defer func() { c.took = time.Since(begun) }()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// If the thread is preempted while it has the lock, all forks wait.
		if before, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil && unix.Setpriority(unix.PRIO_PROCESS, 0, -20) == nil {
			defer unix.Setpriority(unix.PRIO_PROCESS, 0, 20-before) //nolint:errcheck // to what it was: getpriority(2) of the kernel
		}
		if e.unmeasured == nil {
			c.err = e.measure(1)
		}
		if close(c.ready); c.err == nil {
			f()
		}
	})
	return c
}

// lookAgain is the time between looks at whether a call still has the lock. lockOf is the assumed time with the lock
// per mapping, if it is not measured (docs/internals/performance.md).
const (
	lookAgain = time.Millisecond
	lockOf    = 500 * time.Microsecond
)

// released waits until a call has returned, or, if early, until it has released the lock: the rest are grace periods.
// It returns how long forks may have waited. If this is not measured, it returns the duration of the call minus
// possible grace periods.
func (e *eyes) released(c *change, mappings int, early bool) (time.Duration, error) {
	<-c.ready
	if !early {
		<-c.ended
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for begun := time.Now(); ; {
		select {
		case <-c.ended:
			if e.unmeasured != nil || c.err != nil {
				return max(c.took-graceAllowed, 0), c.err
			}
			_, longest, err := e.holds()
			return longest, err
		case <-tick.C:
		}
		if e.unmeasured != nil && time.Since(begun) > time.Duration(mappings+1)*lockOf {
			return 0, nil
		}
		if holds, longest, err := e.holds(); e.unmeasured == nil && (err != nil || !holds && longest > 0) {
			return longest, err
		}
	}
}

// holds returns whether the call has the lock, and the longest time that it had the lock.
func (e *eyes) holds() (now bool, longest time.Duration, err error) {
	var since, most uint64
	vars := e.object.Coll.Variables
	err = errors.Join(vars[gen.MappingsVarHeldSince].Get(&since), vars[gen.MappingsVarLongestHold].Get(&most))
	return since != 0, time.Duration(most), err
}

func (e *eyes) measure(on uint64) error {
	if _, err := e.object.Program(gen.MappingsProgMeasure).Run(&ebpf.RunOptions{Context: [1]uint64{on}}); err != nil {
		return fmt.Errorf("measuring what forks wait: %w", err)
	}
	return nil
}
