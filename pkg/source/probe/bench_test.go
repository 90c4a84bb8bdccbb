// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// BenchmarkCall is one ioctl of a verbs call on /dev/null, which refuses it at
// once: without programs, and with those of the tracepoint tier, which is the
// one that this kernel can have without InfiniBand. The difference is what a
// measured call costs. getpid is an unrelated system call.
func BenchmarkCall(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(null) //nolint:errcheck // the benchmark is over
	// ib_uverbs_ioctl_hdr: DEVICE, INVOKE_WRITE; one attribute: WRITE_CMD, CREATE_QP.
	buf := make([]byte, 40)
	binary.LittleEndian.PutUint16(buf, 40)
	binary.LittleEndian.PutUint16(buf[6:], 1)
	binary.LittleEndian.PutUint16(buf[24:], 2)
	binary.LittleEndian.PutUint64(buf[32:], 24)
	pin := uintptr(unsafe.Pointer(&buf[0]))
	calls := func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		b.Run("ioctl", func(b *testing.B) {
			for b.Loop() {
				unix.RawSyscall(unix.SYS_IOCTL, uintptr(null), 0xc0181b01, pin)
			}
		})
		b.Run("getpid", func(b *testing.B) {
			for b.Loop() {
				unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
			}
		})
	}
	b.Run("without", calls)
	for _, tier := range []string{tracepoint} {
		s, err := New(Options{Sysfs: fakeSysfs(b, "1:3", "null0"), Tier: tier})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(tier, calls)
		_ = s.Close()
	}
	b.Run("without again", calls)
	runtime.KeepAlive(buf)
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
		if err := m.Put(gen.VerbsVerbKey{Cgroup: uint64(i)}, gen.VerbsVerbStat{Count: 1}); err != nil {
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
	all := func(uint64, uint32) bool { return true }
	none := func(uint64, uint32) bool { return false }
	b.Run("batches", func(b *testing.B) {
		for b.Loop() {
			var snap model.Snapshot
			if err := s.readVerbs(&snap, nil, all, none); err != nil || len(snap.Verbs) != entries {
				b.Fatal(err, len(snap.Verbs))
			}
		}
	})
}
