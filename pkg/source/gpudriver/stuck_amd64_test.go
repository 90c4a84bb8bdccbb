// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestStuck has a thread in a real ioctl that does not return: one that waits for a notification of seccomp. First it is in
// the call, then it has left the kernel, without the program of the return.
func TestStuck(t *testing.T) {
	p := newPrograms(t, Options{Procfs: "/proc", StuckAfter: 50 * time.Millisecond})
	const receive = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	filtered, caller, waiter := newThread(t), newThread(t), newThread(t)
	var listener int
	filtered.do(func() { listener = seccompListener(t) })
	file := p.file("nvidia")
	var tid int
	entered, left := make(chan bool), make(chan unix.Errno, 1)
	caller <- func() {
		tid = unix.Gettid()
		p.enter(file, receive)
		close(entered)
		var notification [80]byte
		for {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), receive, uintptr(unsafe.Pointer(&notification)))
			if errno != unix.EINTR {
				left <- errno
				return
			}
		}
	}
	<-entered
	// A thread that waits on purpose, and has left the kernel long ago.
	waiter.do(func() { p.enter(p.file("amdgpu"), amdWaitCS) })
	begin := time.Now()

	var task model.DriverTask
	eventually(t, func() error {
		_, snap, _ := p.read()
		if len(snap.DriverTasks) != 1 || snap.DriverTasks[0].Function == "" && nodePIDs("/proc") {
			return errors.New("not stuck")
		}
		task = snap.DriverTasks[0]
		for _, u := range snap.DriverUses {
			want := model.DriverUse{Cgroup: u.Cgroup, Driver: u.Driver}
			if u.Driver == "nvidia" {
				want.Oldest, want.Stuck = max(u.Oldest, p.o.StuckAfter), 1
			}
			if d := cmp.Diff(want, u); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		}
		return nil
	})
	t.Logf("%+v", task)
	want := model.DriverTask{
		Cgroup: task.Cgroup, Driver: "nvidia", Request: receive, PID: os.Getpid(), TID: tid, Process: task.Process, Function: task.Function, Since: task.Since,
	}
	if d := cmp.Diff(want, task); d != "" && nodePIDs("/proc") {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := begin.Sub(task.Since); d < -time.Second || d > 10*time.Second {
		t.Errorf("since %v, entered before %v", task.Since, begin)
	}

	eventually(t, func() error { // the return of the waiter was missed
		if _, _, losses := p.read(); losses["driver_return_missed"] != 1 {
			return fmt.Errorf("losses %v", losses)
		}
		return nil
	})
	if err := unix.Close(listener); err != nil {
		t.Fatal(err)
	}
	// A signal restarts the call, which then fails, as the file is closed.
	if err := unix.Tgkill(os.Getpid(), tid, unix.SIGURG); err != nil {
		t.Fatal(err)
	}
	if errno := <-left; errno != unix.EBADF {
		t.Error(errno)
	}
	eventually(t, func() error {
		_, snap, losses := p.read()
		if len(snap.DriverTasks) > 0 || losses["driver_return_missed"] != 2 {
			return errors.New("a thread outside the kernel is stuck")
		}
		return nil
	})
	caller.do(p.leave) // the entry is gone
	if calls, _, _ := p.read(); len(calls) > 0 {
		t.Errorf("%v", calls)
	}
}

// TestManyStuck: all stuck tasks are counted, and maxTasks are listed.
func TestManyStuck(t *testing.T) {
	const receive, n = 0xc0502100, maxTasks + 10 // SECCOMP_IOCTL_NOTIF_RECV
	p := newPrograms(t, Options{Procfs: "/proc", MaxCalls: 16 * n, StuckAfter: 50 * time.Millisecond})
	filtered := newThread(t)
	var listener int
	filtered.do(func() { listener = seccompListener(t) })
	file := p.file("nvidia")
	entered, left := make(chan int), make(chan bool, n)
	var tids []int
	for range n {
		newThread(t) <- func() {
			p.enter(file, receive)
			entered <- unix.Gettid()
			var notification [80]byte
			for errno := unix.EINTR; errno == unix.EINTR; {
				_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), receive, uintptr(unsafe.Pointer(&notification)))
			}
			left <- true
		}
		tids = append(tids, <-entered)
	}
	eventually(t, func() error {
		_, snap, _ := p.read()
		if len(snap.DriverUses) != 1 || snap.DriverUses[0].Stuck != n {
			return fmt.Errorf("%+v, want %d stuck", snap.DriverUses, n)
		}
		if len(snap.DriverTasks) != maxTasks {
			t.Errorf("%d tasks are listed, want %d", len(snap.DriverTasks), maxTasks)
		}
		return nil
	})
	if err := unix.Close(listener); err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		if err := unix.Tgkill(os.Getpid(), tid, unix.SIGURG); err != nil {
			t.Fatal(err)
		}
		<-left
	}
}

// seccompListener adds a filter that allows everything to this thread, and returns its listener.
func seccompListener(t *testing.T) int {
	const allow, load = 0x7fff0000, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{{Code: load, K: allow}}
	program := unix.SockFprog{Len: 1, Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Error(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		t.Error(errno)
	}
	return int(fd)
}

// TestHolder has a thread in a real ioctl that waits for a mutex, which another thread has: it copies to a pipe from a page that
// this test does not provide.
func TestHolder(t *testing.T) {
	if !nodePIDs("/proc") {
		t.Skip("not in the initial PID namespace")
	}
	p := newPrograms(t, Options{Procfs: "/proc", StuckAfter: 20 * time.Millisecond})
	const page, count = 4096, 0x541b // FIONREAD
	missing, provide := missingPage(t, page)
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	writer, reader := newThread(t), newThread(t)
	var writing, waiting int
	begun, ended := make(chan bool, 2), make(chan bool, 2)
	writer <- func() {
		writing = unix.Gettid()
		begun <- true
		_, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(pipe[1]), missing, page)
		if errno != 0 {
			t.Error(errno)
		}
		ended <- true
	}
	<-begun
	eventually(t, func() error {
		if f := readTask("/proc", uint32(writing), "wchan"); f == "" || f == "0" {
			return errors.New("the writer runs")
		}
		return nil
	})
	file := p.file("nvidia")
	reader <- func() {
		waiting = unix.Gettid()
		p.enter(file, count)
		begun <- true
		var n int32
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pipe[0]), count, uintptr(unsafe.Pointer(&n)))
		if errno != 0 || n != page {
			t.Errorf("%d bytes: %v", n, errno)
		}
		ended <- true
	}
	<-begun
	var task model.DriverTask
	eventually(t, func() error {
		_, snap, _ := p.read()
		if len(snap.DriverTasks) != 1 || snap.DriverTasks[0].Function == "" {
			return errors.New("not stuck")
		}
		task = snap.DriverTasks[0]
		return nil
	})
	t.Logf("%+v", task)
	want := model.DriverTask{}
	var s *btf.Struct
	if err := p.types.TypeByName("task_struct", &s); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(s.Members, func(m btf.Member) bool { return m.Name == "blocker" }) {
		want.HolderPID, want.HolderTID, want.HolderProcess = os.Getpid(), writing, task.Process
	}
	got := model.DriverTask{HolderPID: task.HolderPID, HolderTID: task.HolderTID, HolderProcess: task.HolderProcess}
	if d := cmp.Diff(want, got); d != "" || task.TID != waiting {
		t.Errorf("-want +got:\n%s", d)
	}
	provide()
	<-ended
	<-ended
}

// missingPage returns a page without memory and a function that provides it. Who reads the page waits until then.
func missingPage(t *testing.T, size int) (page uintptr, provide func()) {
	t.Helper()
	const (
		api, register, zeropage = 0xc018aa3f, 0xc020aa00, 0xc020aa04 // UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE
		version, missing        = 0xaa, 1                            // UFFD_API, UFFDIO_REGISTER_MODE_MISSING
	)
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skip("a kernel or sandbox without userfaultfd: ", errno) // the guests have stuck ioctls, too
	}
	t.Cleanup(func() { _ = unix.Close(int(fd)) })
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	page = uintptr(unsafe.Pointer(&memory[0]))
	call := func(request uintptr, argument ...uint64) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&argument[0]))); errno != 0 {
			t.Errorf("%#x: %v", request, errno)
		}
	}
	call(api, version, 0, 0)
	call(register, uint64(page), uint64(size), missing, 0)
	return page, func() { call(zeropage, uint64(page), uint64(size), 0, 0) }
}
