// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/bench/ringbuffer"
)

// BenchmarkCall measures a verbs call that takes no time: the write() of a REG_MR command to /dev/null in place of a
// uverbs device. It runs without programs, with the tracepoint programs (the most expensive tier, and the only tier
// without InfiniBand), and with a ring buffer event per call, as in sensors that do not aggregate in the kernel. getpid
// is an unrelated system call.
func BenchmarkCall(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(null) //nolint:errcheck // the benchmark ended
	command := []byte{9, 0, 0, 0, 0, 0, 0, 0}
	calls := func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		b.Run("write", func(b *testing.B) {
			for b.Loop() {
				_, _ = unix.Write(null, command)
			}
		})
		b.Run("getpid", func(b *testing.B) {
			for b.Loop() {
				unix.Getpid()
			}
		})
	}
	b.Run("without", calls)
	s, err := New(Options{Sysfs: fakeSysfs(b, "1:3", "null0"), Tier: hook.Tracepoint})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("tracepoint", calls)
	_ = s.Close()
	stop, err := ringbuffer.Start(onWrites)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("ringbuffer", calls)
	if err := stop(); err != nil {
		b.Fatal(err)
	}
	b.Run("again_without", calls)
}

func onWrites(enter, exit asm.Instructions) (out []io.Closer, err error) {
	for name, insns := range map[string]asm.Instructions{"sys_enter_write": enter, "sys_exit_write": exit} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL", Instructions: insns})
		if err != nil {
			return out, err
		}
		out = append(out, p)
		l, err := link.Tracepoint("syscalls", name, p, nil)
		if err != nil {
			return out, err
		}
		out = append(out, l)
	}
	return out, nil
}

// BenchmarkDrain reads 1,024 histograms in batches, as Read does, and one at a time.
func BenchmarkDrain(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	const entries = 1024
	s := newUnhooked(b, Options{MaxEntries: minMaxEntries, MaxObjects: 1})
	m := s.verbs.Coll.Maps[gen.VerbsMapVerbs]
	for i := range entries {
		if err := m.Put(gen.VerbsVerbKey{Cgroup: uint64(i), Rdev: 7}, gen.VerbsVerbStat{SumNs: 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("Iterate", func(b *testing.B) {
		for b.Loop() {
			var k gen.VerbsVerbKey
			var v gen.VerbsVerbStat
			n, it := 0, m.Iterate()
			for it.Next(&k, &v) {
				n++
			}
			if n != entries {
				b.Fatal(n)
			}
		}
	})
	b.Run("batches", func(b *testing.B) {
		for b.Loop() {
			n, err := hook.Batches(m, &s.verbKeys, &s.verbStats, func(gen.VerbsVerbKey, *gen.VerbsVerbStat) {})
			if err != nil || n != entries {
				b.Fatal(err, n)
			}
		}
	})
	// The additional work of Read: conversion, and the map of errors.
	all := func(uint64, uint32) bool { return true }
	none := func(uint64, uint32) bool { return false }
	names := deviceNames{7: "mlx5_0"}
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			snap := model.Snapshot{Verbs: make([]model.Series[model.VerbKey, model.Histogram], 0, entries)}
			if err := s.readVerbs(&snap, names, all, none); err != nil || len(snap.Verbs) != entries {
				b.Fatal(err, len(snap.Verbs))
			}
		}
	})
}
