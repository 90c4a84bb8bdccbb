// SPDX-License-Identifier: Apache-2.0

package child

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a running program that talks to the sensor through a socket, its file descriptor 3. It ends with the
// sensor, like the programs of a Runner.
type Process struct {
	Socket *os.File // the sensor's end

	pid    int
	ended  chan struct{}
	status error // valid once ended is closed
	once   sync.Once
}

// socketFD is the file descriptor of the socket in the program, after stderr.
const socketFD = 3

// Main is for a program that starts itself. An init function calls it. If argument is the only argument of this
// process, Main calls run with the socket that Start has created, and ends the process with the status of run.
// Otherwise it returns.
func Main(argument string, run func(socket *os.File) (status int)) {
	if len(os.Args) != 2 || os.Args[1] != argument {
		return
	}
	if err := syscall.SetNonblock(socketFD, true); err != nil { // lets Close end a Read
		os.Exit(2)
	}
	os.Exit(run(os.NewFile(socketFD, "socket")))
}

// Start starts a program; p.MaxStdout and p.MaxStderr are ignored. The program's prints go to output, which must not
// block.
func Start(p Program, output io.Writer) (*Process, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "socket")
	defer theirs.Close()
	if err := syscall.SetNonblock(ends[0], true); err != nil {
		_ = syscall.Close(ends[0])
		return nil, os.NewSyscallError("fcntl", err)
	}
	r := &Process{Socket: os.NewFile(uintptr(ends[0]), "socket"), ended: make(chan struct{})}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env, cmd.Dir = p.Env, p.Dir
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // for the pipe of the output, which a child of the program may hold
	started := make(chan error)
	go func() {
		// As in Run, the program lives no longer than this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err != nil {
			return
		}
		r.status = cmd.Wait()
		close(r.ended)
	}()
	if err := <-started; err != nil {
		_ = r.Socket.Close()
		return nil, err
	}
	r.pid = cmd.Process.Pid
	return r, nil
}

// PID returns the process ID.
func (r *Process) PID() int { return r.pid }

// Ended is closed when the program has ended. A process with a task in uninterruptible sleep does not end when it is
// killed.
func (r *Process) Ended() <-chan struct{} { return r.ended }

// Err returns how the program ended: nil if it exited with 0. Ended must be closed.
func (r *Process) Err() error { return r.status }

// End closes the socket, on which the program should exit, kills the program after grace, and reports whether it has
// ended a second later. It may be called more than once.
func (r *Process) End(grace time.Duration) bool {
	r.once.Do(func() { _ = r.Socket.Close() })
	if r.within(grace) {
		return true
	}
	_ = syscall.Kill(-r.pid, syscall.SIGKILL)
	return r.within(time.Second)
}

func (r *Process) within(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.ended:
		return true
	default:
	}
	select {
	case <-r.ended:
		return true
	case <-timer.C:
		return false
	}
}
