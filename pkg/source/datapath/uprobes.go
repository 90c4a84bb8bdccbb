// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// probe attaches the programs of one function at its site in a file, for one process, or
// (pid 0) for all that map the file. entry and ret are the cost of a trap in ns.
func (k *kernel) probe(path string, s locate.Site, pid int, entry, ret uint32) (io.Closer, error) {
	p := functionPrograms[s.Function]
	cookie := uint64(p.opcode)<<32 | uint64(s.Skip)<<40 | uint64(s.Function.TableOffset())<<48 // datapath.h
	begin, err := k.attach(locate.Place{Path: path, Offset: s.Offset, PID: pid}, p.entry, cookie|uint64(entry))
	if err != nil || p.ret == "" {
		return begin, err
	}
	end, err := k.attach(locate.Place{Path: path, Offset: s.Offset, Return: true, PID: pid}, p.ret, cookie|uint64(ret))
	if err != nil {
		_ = begin.Close()
		return nil, err
	}
	return closers{begin, end}, nil
}

// calibration attaches a program to the entry or the return of a function of this
// process. It takes as long as the programs of a poll without completions.
func (k *kernel) calibration(path string, offset uint64, ret bool) (io.Closer, error) {
	program := gen.DatapathProgCalibrate
	if ret {
		program = gen.DatapathProgCalibrateReturn
	}
	return k.attach(locate.Place{Path: path, Offset: offset, Return: ret}, program, 0)
}

// touch attaches a program to a function of this process that nothing calls then.
func (k *kernel) touch() (io.Closer, error) {
	emulated, _ := leaves()
	offset, err := locate.FileOffset(uint64(emulated))
	if err != nil {
		return nil, err
	}
	return k.calibration("/proc/self/exe", offset, false)
}

func (k *kernel) attach(at locate.Place, program string, cookie uint64) (io.Closer, error) {
	if err := k.refused[program]; err != nil {
		return nil, err
	}
	return locate.Attach(k.object.Program(program), at, k.multi, cookie)
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
