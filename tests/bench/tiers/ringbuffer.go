// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/tests/bench/ringbuffer"
)

// ringBuffer traces the same function by fentry, the cheapest hook.
func ringBuffer() (stop func() error, err error) {
	return ringbuffer.Start(func(enter, exit asm.Instructions) (out []io.Closer, err error) {
		for attach, insns := range map[ebpf.AttachType]asm.Instructions{
			ebpf.AttachTraceFEntry: enter, ebpf.AttachTraceFExit: exit,
		} {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: ebpf.Tracing, AttachType: attach, AttachTo: "ib_uverbs_ioctl", License: "GPL", Instructions: insns,
			})
			if err != nil {
				return out, err
			}
			out = append(out, p)
			l, err := link.AttachTracing(link.TracingOptions{Program: p})
			if err != nil {
				return out, err
			}
			out = append(out, l)
		}
		return out, nil
	})
}
