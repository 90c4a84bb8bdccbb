// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
)

// Cost of a trap for the process, in ns: at an instruction that the kernel emulates, at an instruction that it single-steps, and at a
// return, in addition to the trap at the entry. Hardware took 700 to 900 ns and a virtual machine 9 µs (docs/internals/performance.md),
// so a process is surveyed too early rather than too late.
const (
	emulatedTrap = 2000
	steppedTrap  = 12_000
	returnTrap   = 2000
)

// probe returns how to attach a program to a half of a target in a file, for one process, or (pid 0) for all processes that map the file.
func (k *kernel) probe(h half) func(path string) (io.Closer, error) {
	p := functionPrograms[h.Place.Function]
	cookie := uint64(p.opcode)<<32 | uint64(h.Place.Skip)<<40 | uint64(h.Place.Function.TableOffset())<<48 // datapath.h
	program, cost := p.entry, uint64(emulatedTrap)
	switch {
	case h.Return:
		program, cost = p.ret, returnTrap
	case h.Place.Stepped:
		cost = steppedTrap
	}
	return func(path string) (io.Closer, error) {
		err := k.refused[program]
		if err == nil {
			var link io.Closer
			at := uprobe.Place{Path: path, Offset: h.Place.Offset, Return: h.Return, PID: h.PID}
			if link, err = uprobe.Attach(k.object.Program(program), at, k.multi, cookie|cost); err == nil {
				return link, nil
			}
		}
		return nil, fmt.Errorf("probing offset %#x of a provider: %w", h.Place.Offset, err)
	}
}
