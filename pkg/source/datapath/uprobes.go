// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/safely"
)

// What a trap costs the process that is hit, in ns: at an instruction that the kernel emulates, at an instruction that it single-steps,
// and at a return, in addition to the trap at the entry. 700 to 900 ns were measured on hardware and 9 µs in a virtual machine
// (docs/performance.md): a process is rather surveyed too early than too late.
const (
	emulatedTrap = 2000
	steppedTrap  = 12_000
	returnTrap   = 2000
)

// probe attaches the programs of one function at its site in a file, for one process, or
// (pid 0) for all that map the file.
func (k *kernel) probe(path string, t target) (io.Closer, error) {
	p := functionPrograms[t.Function]
	cookie := uint64(p.opcode)<<32 | uint64(t.Skip)<<40 | uint64(t.Function.TableOffset())<<48 // datapath.h
	entry := uint64(emulatedTrap)
	if t.Stepped {
		entry = steppedTrap
	}
	begin, err := k.attach(uprobe.Place{Path: path, Offset: t.Offset, PID: t.pid}, p.entry, cookie|entry)
	if err != nil || p.ret == "" {
		return begin, err
	}
	end, err := k.attach(uprobe.Place{Path: path, Offset: t.Offset, Return: true, PID: t.pid}, p.ret, cookie|returnTrap)
	if err != nil {
		_ = begin.Close()
		return nil, err
	}
	return closers{begin, end}, nil
}

func (k *kernel) attach(at uprobe.Place, program string, cookie uint64) (io.Closer, error) {
	if err := k.refused[program]; err != nil {
		return nil, err
	}
	return uprobe.Attach(k.object.Program(program), at, k.multi, cookie)
}

// closers are closed concurrently: each waits for a grace period.
type closers [2]io.Closer

func (c closers) Close() error {
	var first error
	var wg safely.Group
	wg.Go(func() { first = c[0].Close() })
	second := c[1].Close()
	wg.Wait()
	return errors.Join(first, second)
}
