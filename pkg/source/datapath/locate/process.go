// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// Process is a process that may use verbs. A pidfd identifies it, so that another
// process with the same number is not mistaken for it.
type Process struct {
	// CheckFile returns an error if a file must not be opened: uprobe.Gate.CheckFile. nil: statfs(2) decides, which reports overlayfs
	// for a file that is on FUSE below.
	CheckFile func(fd int) error

	pid    int
	procfs string
	pidfd  int
	// files are the providers that it maps. They are kept open, so that the probed file is
	// the file that was checked.
	files map[FileID]*os.File
}

// OpenProcess opens the process with a thread group id. It returns model.ErrAbsent if the process does not exist.
func OpenProcess(procfs string, pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("process %d: %w", pid, model.ErrAbsent) // the last two: a thread's number
	case err != nil:
		return nil, fmt.Errorf("pidfd_open(%d): %w", pid, err)
	}
	return &Process{pid: pid, procfs: procfs, pidfd: fd, files: map[FileID]*os.File{}}, nil
}

// Exited reports whether all threads of the process have ended.
func (p *Process) Exited() bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || n > 0
		}
	}
}

// pollBatch is the number of processes that one system call checks.
const pollBatch = 1024

// EachExited calls f with the index of each process that has exited.
func EachExited(processes []*Process, f func(i int)) {
	fds := make([]unix.PollFd, 0, min(len(processes), pollBatch))
	for first := 0; first < len(processes); first += pollBatch {
		some := processes[first:min(first+pollBatch, len(processes))]
		fds = fds[:0]
		for _, p := range some {
			fds = append(fds, unix.PollFd{Fd: int32(p.pidfd), Events: unix.POLLIN})
		}
		n, err := unix.Poll(fds, 0)
		for i, p := range some {
			if err != nil && p.Exited() || n > 0 && fds[i].Revents != 0 {
				f(first + i)
			}
		}
	}
}

// checkAlive returns model.ErrAbsent if the process has ended. It is called after
// reads by process id, which may have read another process then.
func (p *Process) checkAlive() error {
	if p.Exited() {
		return fmt.Errorf("process %d: %w", p.pid, model.ErrAbsent)
	}
	return nil
}

// CPU returns the CPU time of all threads of the process, in user space and in the
// kernel. Callers check afterwards that the process has not exited: another process may
// have got its number.
func (p *Process) CPU() (time.Duration, error) {
	// A process's CPU clock: clock_getcpuclockid(3).
	clock := int32(^p.pid)<<3 | 2
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", p.pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// Read fills b from the process's memory. It needs CAP_SYS_PTRACE. The process can
// make it block, with memory that it serves by userfaultfd.
func (p *Process) Read(address uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: unsafe.SliceData(b)}}
	local[0].SetLen(len(b))
	remote := []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}
	n, err := unix.ProcessVMReadv(p.pid, local, remote, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		err = model.ErrAbsent
	case err == nil && n < len(b):
		err = unix.EFAULT // the rest is not readable
	case err == nil:
		return nil
	}
	return fmt.Errorf("memory of process %d at %#x: %w", p.pid, address, err)
}

// path returns the path of one of the process's files in procfs.
func (p *Process) path(elem ...string) string {
	return filepath.Join(append([]string{p.procfs, strconv.Itoa(p.pid)}, elem...)...)
}

// Close closes the pidfd and the files.
func (p *Process) Close() {
	for _, f := range p.files {
		f.Close()
	}
	p.files = nil
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}
