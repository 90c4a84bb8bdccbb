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
)

// holds are the programs that measure how long the kernel holds dup_mmap_sem for a call: the time that a fork may have waited. The
// call itself takes longer. The kernel also waits for RCU grace periods, which forks do not, and which take longer on a machine
// with much to do.
var holds = hook.Hook{
	Name: "dup_mmap_sem", Required: true,
	Tiers: []hook.Tier{
		hook.With(hook.Fentry, gen.MappingsProgFentryUpWrite, gen.MappingsProgFexitDownWrite),
		hook.With(hook.Kprobe, gen.MappingsProgKprobeUpWrite, gen.MappingsProgKretprobeDownWrite),
	},
}

// graceAllowed is what a call may take longer than the limit where nothing is measured but the call.
const graceAllowed = time.Second

// attachHolds attaches them, and returns why it did not. A kernel without fentry programs and kprobes, as those of some
// virtual machines, only shows how long the whole call takes.
func (e *eyes) attachHolds() error {
	symbols, err := hook.Symbols()
	if err != nil {
		return err
	}
	state := e.object.Attach(holds, "", symbols)
	if e.measures = state.Tier != ""; e.measures {
		return nil
	}
	return hook.Failure(state)
}

// forkWait calls f with the highest priority, and returns how long a fork may have waited for it. If that is not
// measured, it is the duration of f without what grace periods may take.
func (e *eyes) forkWait(f func()) (time.Duration, error) {
	// The thread does not end with the call: children that it started would end with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// If it is preempted while it has the lock, all forks wait.
	if before, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil && unix.Setpriority(unix.PRIO_PROCESS, 0, -20) == nil {
		defer unix.Setpriority(unix.PRIO_PROCESS, 0, 20-before) //nolint:errcheck // to what it was: getpriority(2) of the kernel
	}
	if !e.measures {
		begin := time.Now()
		f()
		return max(time.Since(begin)-graceAllowed, 0), nil
	}
	if err := e.measure(1); err != nil {
		return 0, err
	}
	f()
	var longest uint64
	err := e.object.Coll.Variables[gen.MappingsVarLongestHold].Get(&longest)
	return time.Duration(longest), errors.Join(err, e.measure(0))
}

func (e *eyes) measure(on uint64) error {
	if _, err := e.object.Program(gen.MappingsProgMeasure).Run(&ebpf.RunOptions{Context: [1]uint64{on}}); err != nil {
		return fmt.Errorf("measuring what forks wait: %w", err)
	}
	return nil
}
