// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// BenchmarkCall is a verbs call that takes no time: the write() of a REG_MR
// command to /dev/null, which stands in for a uverbs device. It is made without
// programs, with those of the tracepoint tier, the only one that a kernel
// without InfiniBand can have and the dearest, and with an event for each call
// in a ring buffer, as sensors do that do not aggregate in the kernel. getpid
// is an unrelated system call.
func BenchmarkCall(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(null) //nolint:errcheck // the benchmark is over
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
	s, err := New(Options{Sysfs: fakeSysfs(b, "1:3", "null0"), Tier: tracepoint})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("tracepoint", calls)
	_ = s.Close()
	stop := ringBufferSensor(b)
	b.Run("ringbuffer", calls)
	stop()
	b.Run("again_without", calls)
}

// ringBufferSensor is the other way to do it, for comparison: the start of each
// write in a hash by thread, and at its end an event of 64 bytes.
func ringBufferSensor(b *testing.B) (stop func()) {
	b.Helper()
	starts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 8192})
	if err != nil {
		b.Fatal(err)
	}
	events, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 1 << 22})
	if err != nil {
		b.Fatal(err)
	}
	enter := asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, -16, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, starts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
	exit := asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, starts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.Sub.Reg(asm.R0, asm.R6),
	}
	for offset := int16(-72); offset < -8; offset += 8 {
		exit = append(exit, asm.StoreMem(asm.RFP, offset, asm.R0, asm.DWord))
	}
	exit = append(exit,
		asm.LoadMapPtr(asm.R1, events.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -72),
		asm.Mov.Imm(asm.R3, 64),
		asm.Mov.Imm(asm.R4, 2), // BPF_RB_FORCE_WAKEUP
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
	closers := []interface{ Close() error }{starts, events}
	for name, insns := range map[string]asm.Instructions{"sys_enter_write": enter, "sys_exit_write": exit} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.TracePoint, License: "GPL", Instructions: insns})
		if err != nil {
			b.Fatal(err)
		}
		l, err := link.Tracepoint("syscalls", name, p, nil)
		if err != nil {
			b.Fatal(err)
		}
		closers = append(closers, p, l)
	}
	r, err := ringbuf.NewReader(events)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var record ringbuf.Record
		for r.ReadInto(&record) == nil {
		}
	}()
	return func() {
		_ = r.Close()
		<-done
		for _, c := range closers {
			_ = c.Close()
		}
	}
}

// BenchmarkDrain reads 1,024 histograms: as Read does, in batches, and one by one.
func BenchmarkDrain(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	const entries = 1024
	types, err := loadTypes()
	if err != nil {
		b.Fatal(err)
	}
	verbs, _, _, err := loadSpecs(Options{MaxEntries: DefaultMaxEntries, MaxObjects: 1}, types)
	if err != nil {
		b.Fatal(err)
	}
	s := &sensor{}
	s.fill = map[string]uint64{}
	if s.verbs, err = newObject(verbs, types); err != nil {
		b.Fatal(err)
	}
	defer s.close()
	m := s.verbs.coll.Maps[gen.VerbsMapVerbs]
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
			n, err := batches(m, &s.verbKeys, &s.verbStats, func(gen.VerbsVerbKey, *gen.VerbsVerbStat) {})
			if err != nil || n != entries {
				b.Fatal(err, n)
			}
		}
	})
	// What Read adds: the conversion, and the map of errors.
	all := func(uint64, uint32) bool { return true }
	none := func(uint64, uint32) bool { return false }
	names := deviceNames{7: "mlx5_0"}
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			snap := model.Snapshot{Verbs: make([]model.Verb, 0, entries)}
			if err := s.readVerbs(&snap, names, all, none); err != nil || len(snap.Verbs) != entries {
				b.Fatal(err, len(snap.Verbs))
			}
		}
	})
}
