// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// trapCosts are what one trap costs the process that is hit, in ns: at an
// instruction that the kernel emulates, at one that it single-steps, and at a
// return, in addition to the one at the entry. switched is the page fault of the first
// call after a probe was detached.
type trapCosts struct{ emulated, stepped, returned, switched uint32 }

// Defaults if nothing could be measured, and bounds of measured values. 0.7 µs,
// 0.8 µs and, in a virtual machine, 9 µs were measured.
var (
	defaultTrapCosts = trapCosts{emulated: 2000, stepped: 12000, returned: 2000, switched: 20_000}
	minTrapCosts     = trapCosts{emulated: 200, stepped: 300, returned: 100, switched: 500}
	maxTrapCosts     = trapCosts{emulated: 20_000, stepped: 100_000, returned: 20_000, switched: 50_000}
)

const (
	calibrateRounds = 25
	calibrateCalls  = 100 // per round
	calibrateEnough = 5   // rounds, if they take too long
	calibrateTime   = 500 * time.Millisecond
)

// calibrate measures what traps cost on this machine: it calls two functions of this
// executable with and without a probe. attach attaches a program at an offset of a
// file, to the return if ret. What cannot be measured has its default, and the error
// is why.
//
// This is safe for the Go runtime, in a process that may have return probes at all
// (safety.go):
//
//   - The functions are leaves in assembly. They are NOSPLIT and call nothing, so
//     their stack is never grown. An emulated push and the kernel's return trampoline
//     (three registers) write below the stack pointer, within what NOSPLIT functions
//     may use. Go keeps nothing below the stack pointer.
//   - While a leaf runs, its return address may be the kernel's, which would be fatal
//     for a walk of the stack. Scanning, copying and shrinking a stack wait until the
//     goroutine is at a safe point. A function without pointer maps, as assembly is,
//     has none (isAsyncSafePoint), nor has the trampoline, as its address belongs to
//     no function. So a preemption signal returns and is tried again later, in the
//     loop, which is Go.
//   - A profiling signal walks the stack where it hits, but stops silently at an
//     unknown address.
//   - While the kernel single-steps an instruction in a page of its own, it holds back
//     signals.
//   - The thread is locked, and a leaf never leaves it, so that the kernel finds the
//     return address where it put it.
func calibrate(attach func(path string, offset uint64, ret bool) (io.Closer, error)) (trapCosts, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := defaultTrapCosts
	emulated, stepped := leaves()
	var errs []error
	var faults [2]uint32
	if err := measure(emulated, emulatedLeaf, attach, &c.emulated, &c.returned, &faults[0]); err != nil {
		errs = append(errs, fmt.Errorf("traps and return traps: %w", err))
	}
	if err := measure(stepped, steppedLeaf, attach, &c.stepped, nil, &faults[1]); err != nil {
		errs = append(errs, fmt.Errorf("traps that are single-stepped: %w", err))
	}
	if len(errs) == 0 {
		c.switched = max(faults[0], faults[1])
	}
	c.emulated = min(max(c.emulated, minTrapCosts.emulated), maxTrapCosts.emulated)
	c.stepped = min(max(c.stepped, minTrapCosts.stepped), maxTrapCosts.stepped)
	c.returned = min(max(c.returned, minTrapCosts.returned), maxTrapCosts.returned)
	c.switched = min(max(c.switched, minTrapCosts.switched), maxTrapCosts.switched)
	if len(errs) > 0 {
		return c, fmt.Errorf("measuring the cost of a probe, a default value is used: %w", errors.Join(errs...))
	}
	return c, nil
}

// measure measures the cost of a trap at the entry of a leaf, and at its return
// unless returned is nil, and that of the first call after the probes were detached.
func measure(
	pc uintptr, leaf func(), attach func(string, uint64, bool) (io.Closer, error), entry, returned, fault *uint32,
) error {
	offset, err := locate.FileOffset(uint64(pc))
	if err != nil {
		return err
	}
	without, err := timed(leaf)
	if err != nil {
		return err
	}
	var probes []io.Closer
	detach := func() {
		for _, p := range probes {
			_ = p.Close()
		}
		probes = nil
	}
	defer detach()
	for _, p := range []struct {
		name string
		cost *uint32
	}{{"probe", entry}, {"return probe", returned}} {
		if p.cost == nil {
			break
		}
		probe, err := attach("/proc/self/exe", offset, p.cost == returned)
		if err != nil {
			return err
		}
		probes = append(probes, probe)
		with, err := hit(leaf, without)
		if err != nil {
			return err
		}
		if with < without+50 {
			return fmt.Errorf("the %s was not hit: %.0f ns per call without it, %.0f ns with it", p.name, without, with)
		}
		*p.cost = uint32(with - without)
		without = with
	}
	detach()
	*fault, err = firstCall(leaf)
	return err
}

// firstCall returns how much longer a call takes than the next one, in ns.
func firstCall(leaf func()) (uint32, error) {
	var took [2]int64
	for i := range took {
		start, err := threadTime()
		if err != nil {
			return 0, err
		}
		leaf()
		end, err := threadTime()
		if err != nil {
			return 0, err
		}
		took[i] = end - start
	}
	return uint32(max(took[0]-took[1], 0)), nil
}

// hit is timed for a call that should take longer than before. A CPU may take a
// moment to see a changed instruction, in virtual machines above all.
func hit(leaf func(), before float64) (ns float64, err error) {
	for range 5 {
		if ns, err = timed(leaf); err != nil || ns >= before+50 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return ns, err
}

// timed returns the CPU time of this thread that a call takes, in ns: the lower
// quartile of several rounds, as disturbances only add time.
func timed(leaf func()) (float64, error) {
	begin := time.Now()
	rounds := make([]float64, 0, calibrateRounds)
	for range calibrateRounds {
		start, err := threadTime()
		if err != nil {
			return 0, err
		}
		for range calibrateCalls {
			leaf()
		}
		end, err := threadTime()
		if err != nil {
			return 0, err
		}
		rounds = append(rounds, float64(end-start)/calibrateCalls)
		if time.Since(begin) > calibrateTime && len(rounds) < calibrateRounds {
			break
		}
	}
	if len(rounds) < calibrateEnough {
		return 0, fmt.Errorf("%d rounds of %d calls took more than %v", len(rounds), calibrateCalls, calibrateTime)
	}
	slices.Sort(rounds)
	return rounds[len(rounds)/4], nil
}

func threadTime() (int64, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano(), err
}

// emulatedLeaf begins with an instruction that the kernel emulates.
//
//go:noescape
func emulatedLeaf()

// steppedLeaf begins with an instruction that the kernel single-steps.
//
//go:noescape
func steppedLeaf()

// leaves returns the addresses of their first instructions: Go functions values
// point to wrappers.
//
//go:noescape
func leaves() (emulated, stepped uintptr)
