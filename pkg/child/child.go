// SPDX-License-Identifier: Apache-2.0

// Package child runs a program for a source: with a deadline, with bounded output, and no longer than the sensor lives.
// A Runner runs it to its end; Start starts a program that continues.
//
// The program is the leader of a process group. At the deadline the whole group is killed. When the sensor ends, even
// by SIGKILL, the kernel kills the program (PR_SET_PDEATHSIG in prctl(2)), but not its child processes. A process in
// uninterruptible sleep does not end at SIGKILL: Run returns without it, and the Runner starts no further program after
// MaxStuck of these.
package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	// ErrOutput is returned when a program prints more than MaxStdout.
	ErrOutput = errors.New("too much output")
	// ErrStuck is returned when a program was killed and does not end.
	ErrStuck = errors.New("killed and not ended")
	// ErrTooManyStuck is returned instead of starting a program while MaxStuck programs are stuck.
	ErrTooManyStuck = errors.New("too many programs were killed and have not ended")
)

// Program is a program and its arguments.
type Program struct {
	Path      string
	Args      []string
	Env       []string // nil: the sensor's
	Dir       string   // empty: the sensor's
	MaxStdout int      // bytes; a program that prints more is ended
	MaxStderr int      // bytes; excess output is dropped
}

// Runner runs programs and counts the programs that do not end.
type Runner struct {
	MaxStuck int           // programs
	Grace    time.Duration // for a killed program to end; 0: a second

	stuck atomic.Int32
}

// Run runs a program until it ends or ctx ends, and returns its output, also with an error. If ctx ended first, the
// error wraps the error of ctx.
func (r *Runner) Run(ctx context.Context, p Program) (stdout, stderr []byte, err error) {
	if int(r.stuck.Load()) >= r.MaxStuck {
		return nil, nil, ErrTooManyStuck
	}
	grace := r.Grace
	if grace <= 0 {
		grace = time.Second
	}
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	cmd.Env, cmd.Dir = p.Env, p.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	out, complaints := &bounded{size: p.MaxStdout}, &bounded{size: p.MaxStderr, cut: true}
	cmd.Stdout, cmd.Stderr = out, complaints
	var status error // valid once ended is closed
	ended := make(chan struct{})
	go func() {
		// The kernel sends the signal when the thread that started the program ends, and Go ends a thread with the
		// goroutine that is locked to it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		status = cmd.Run()
		close(ended)
	}()
	var late <-chan time.Time
	for over := ctx.Done(); ; {
		select {
		case <-over:
			over, late = nil, time.After(2*grace)
		case <-late:
			r.stuck.Add(1)
			go func() {
				<-ended
				r.stuck.Add(-1)
			}()
			return nil, nil, fmt.Errorf("%w: %w", ctx.Err(), ErrStuck)
		case <-ended:
			err = status
			switch {
			case out.full:
				err = ErrOutput
			case err != nil && ctx.Err() != nil:
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
			return out.kept.Bytes(), complaints.kept.Bytes(), err
		}
	}
}

// bounded keeps output up to a size; more output ends the program or is dropped. The buffer is not embedded: io.Copy
// would bypass Write.
type bounded struct {
	kept bytes.Buffer
	size int
	cut  bool
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.size - b.kept.Len()
	if len(p) <= room {
		return b.kept.Write(p)
	}
	if b.full = true; b.cut {
		b.kept.Write(p[:room])
		return len(p), nil
	}
	return 0, ErrOutput
}
