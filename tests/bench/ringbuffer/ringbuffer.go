// SPDX-License-Identifier: Apache-2.0

// Package ringbuffer is the alternative method to trace calls, for comparison: a hash by thread has the start of each
// call, and its end sends an event of 64 bytes that wakes a reader.
package ringbuffer

import (
	"errors"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"
)

// Start creates the maps, lets the caller attach the two programs, and reads events until stop.
func Start(attach func(enter, exit asm.Instructions) ([]io.Closer, error)) (stop func() error, err error) {
	var closers []io.Closer
	stop = func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	starts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 8192})
	if err != nil {
		return nil, err
	}
	closers = append(closers, starts)
	events, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 1 << 22})
	if err != nil {
		return nil, err
	}
	closers = append(closers, events)
	attached, err := attach(entry(starts.FD()), exit(starts.FD(), events.FD()))
	closers = append(closers, attached...)
	if err != nil {
		return nil, err
	}
	r, err := ringbuf.NewReader(events)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var record ringbuf.Record
		for r.ReadInto(&record) == nil {
		}
	}()
	closers = append(closers, closer(func() error {
		err := r.Close()
		<-done
		return err
	}))
	return stop, nil
}

type closer func() error

func (c closer) Close() error { return c() }

func entry(starts int) asm.Instructions {
	return asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, starts),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

func exit(starts, events int) asm.Instructions {
	insns := asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, starts),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.Sub.Reg(asm.R0, asm.R6),
	}
	for offset := int16(-72); offset < -8; offset += 8 {
		insns = append(insns, asm.StoreMem(asm.RFP, offset, asm.R0, asm.DWord))
	}
	return append(insns,
		asm.LoadMapPtr(asm.R1, events),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -72),
		asm.Mov.Imm(asm.R3, 64),
		asm.Mov.Imm(asm.R4, 2), // BPF_RB_FORCE_WAKEUP
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
}
