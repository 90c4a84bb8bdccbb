// SPDX-License-Identifier: Apache-2.0

// Package slurmjob makes device programs like Slurm's for the cgroups of jobs, for tests.
package slurmjob

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Flags of BPF_PROG_ATTACH.
const (
	AllowOverride = unix.BPF_F_ALLOW_OVERRIDE // of Slurm's programs
	AllowMulti    = unix.BPF_F_ALLOW_MULTI    // of systemd's
)

// Any stands for any kind or number of a device.
const Any = -1

// Kinds of devices: BPF_DEVCG_DEV_BLOCK and BPF_DEVCG_DEV_CHAR.
const (
	Block     = 1
	Character = 2
)

// Device is a device of gres.conf, with a job's permission.
type Device struct {
	Kind, Major, Minor int64
	Allow              bool
}

// Program returns the instructions for the devices (SchedMD/slurm, src/plugins/cgroup/v2/ebpf.c). Other devices are
// allowed.
func Program(devices ...Device) asm.Instructions {
	verdict := func(allow bool) asm.Instructions {
		value := int32(0)
		if allow {
			value = 1
		}
		return asm.Instructions{asm.Mov.Imm(asm.R0, value), asm.Return()}
	}
	out := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.And.Imm32(asm.R2, 0xffff), // kind
		asm.LoadMem(asm.R3, asm.R1, 0, asm.Word), asm.RSh.Imm32(asm.R3, 16), // access
		asm.LoadMem(asm.R4, asm.R1, 4, asm.Word),
		asm.LoadMem(asm.R5, asm.R1, 8, asm.Word),
	}
	for _, d := range devices {
		var block asm.Instructions
		for _, field := range []struct {
			register asm.Register
			value    int64
		}{{asm.R2, d.Kind}, {asm.R4, d.Major}, {asm.R5, d.Minor}} {
			if field.value != Any {
				block = append(block, asm.Instruction{OpCode: asm.JNE.Op(asm.ImmSource), Dst: field.register, Constant: field.value})
			}
		}
		for i := range block {
			block[i].Offset = int16(len(block) - i + 1)
		}
		out = append(append(out, block...), verdict(d.Allow)...)
	}
	return append(out, verdict(true)...)
}

// Attach attaches a device program to a cgroup until the returned function is called.
func Attach(t testing.TB, cgroup string, program asm.Instructions, flags uint32) (detach func()) {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11 a large program exceeds it
		t.Fatal(err)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "Slurm_Cgroup_v2", Type: ebpf.CGroupDevice, Instructions: program, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: flags,
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice})
		if err := errors.Join(err, dir.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}
