// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestProcess(t *testing.T) {
	child := child.Command(context.Background(), "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read x")
	stdin, _ := child.StdinPipe()
	stdout, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := OpenProcess("/proc", child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, _ = stdout.Read(make([]byte, 1)) // the loop has ended
	if p.Exited() {
		t.Error("a running process is reported as exited")
	}
	used, err := p.CPU()
	if err != nil || used <= 0 || used > time.Minute {
		t.Errorf("CPU time %v, %v", used, err)
	}
	stdin.Close()
	var after unix.Siginfo
	if err := unix.Waitid(unix.P_PIDFD, p.pidfd, &after, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	// A zombie: its PID is still in use, but the process has exited.
	if !p.Exited() {
		t.Error("a zombie is reported as running")
	}
	for i := range 2 {
		exited := 0
		EachExited(slices.Repeat([]*Process{self(t), p}, pollBatch), func(i int) { exited += i % 2 })
		if exited != pollBatch {
			t.Errorf("%d of %d times exited", exited, pollBatch)
		}
		if _, err := p.code(); !errors.Is(err, model.ErrAbsent) {
			t.Errorf("mappings of one that ended: %v", err)
		}
		if i == 0 {
			_ = child.Wait()
		}
	}
	if err := p.Read(0x1000, make([]byte, 8)); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("memory of one that ended: %v", err)
	}
	if _, err := OpenProcess("/proc", child.Process.Pid); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("opening one that ended: %v", err)
	}
}

// TestCPU compares with the CPU time that getrusage returns.
func TestCPU(t *testing.T) {
	p := self(t)
	rusage := func() time.Duration {
		var usage unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	for rusage() < 50*time.Millisecond { // on a busy machine this takes longer than the CPU time
	}
	got, err := p.CPU()
	want := rusage()
	if err != nil || got < 40*time.Millisecond || (want-got).Abs() > 100*time.Millisecond {
		t.Errorf("%v, %v; rusage says %v", got, err, want)
	}
}

func TestThreadIsNoProcess(t *testing.T) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil || len(tasks) < 2 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	for _, task := range tasks {
		var pid int
		for _, c := range task.Name() {
			pid = pid*10 + int(c-'0')
		}
		if pid == os.Getpid() {
			continue
		}
		if p, err := OpenProcess("/proc", pid); !errors.Is(err, model.ErrAbsent) {
			p.Close()
			t.Errorf("thread %d: %v", pid, err)
		}
	}
}

func TestReadMemory(t *testing.T) {
	p := self(t)
	// Two pages; the second cannot be read.
	pages, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(pages)
	if err := unix.Mprotect(pages[4096:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	copy(pages[4088:], "to here.")
	at := uint64(uintptr(unsafe.Pointer(&pages[0])))
	b := make([]byte, 8)
	if err := p.Read(at+4088, b); err != nil || !bytes.Equal(b, []byte("to here.")) {
		t.Errorf("%q, %v", b, err)
	}
	if err := p.Read(at+4088, make([]byte, 9)); !errors.Is(err, unix.EFAULT) {
		t.Errorf("over the end: %v", err)
	}
	for _, address := range []uint64{0, 8, at + 4096, 1 << 47, 1<<64 - 1, 1<<64 - 4} {
		if err := p.Read(address, b); err == nil {
			t.Errorf("%#x can be read", address)
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	before := count()
	for range 50 {
		p, err := OpenProcess("/proc", os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = New("/proc").fromCache(p)
		p.Close()
		p.Close()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}
