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

// A process is one that may use verbs. Its identity is its pidfd: a number that
// was given to another process meanwhile is never taken for it.
type Process struct {
	pid    int
	procfs string
	pidfd  int
	// files are the providers that it maps, held so that what was checked is what
	// is probed.
	files map[FileID]*os.File
}

// openProcess takes hold of a process by the number of its thread group. It gives
// model.ErrAbsent when there is none.
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

// exited says whether all threads of the process have ended.
func (p *Process) Exited() bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || n > 0
		}
	}
}

// alive confirms that what was read by number was this process's. What the reads
// said is moot when it was not.
func (p *Process) alive() error {
	if p.Exited() {
		return fmt.Errorf("process %d: %w", p.pid, model.ErrAbsent)
	}
	return nil
}

// cpu is the time that all threads of the process ran, in user space and in the
// kernel.
func (p *Process) CPU() (time.Duration, error) {
	// A process's CPU clock: clock_getcpuclockid(3).
	clock := int32(^p.pid)<<3 | 2
	var ts unix.Timespec
	err := unix.ClockGettime(clock, &ts)
	if gone := p.alive(); gone != nil {
		return 0, gone
	}
	if err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", p.pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// read fills b from the process's memory. It needs CAP_SYS_PTRACE. The process
// can let it wait as long as it lives, by memory that it serves itself.
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
		err = unix.EFAULT // up to there it is readable
	case err == nil:
		return nil
	}
	return fmt.Errorf("memory of process %d at %#x: %w", p.pid, address, err)
}

// path is that of one of the process's files in procfs.
func (p *Process) path(elem ...string) string {
	return filepath.Join(append([]string{p.procfs, strconv.Itoa(p.pid)}, elem...)...)
}

// close lets go of the process and of the files that it maps.
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
