// SPDX-License-Identifier: Apache-2.0

// Package child makes the commands of tests and their helpers. A child process has a
// deadline, ends with its parent, and nothing waits for a pipe that outlives the child.
package child

import (
	"context"
	"os/exec"
	"syscall"
	"time"
)

const (
	longest   = time.Hour       // of a child whose context has no deadline
	waitDelay = 5 * time.Second // for a pipe that a grandchild holds
)

// Command returns a command that is killed when ctx ends, after an hour where ctx has no
// deadline, and when its parent ends: more exactly, when the thread ends that started the
// child. A test whose threads end (runtime.LockOSThread without its opposite) has to
// clear SysProcAttr. A caller that needs other attributes sets them in SysProcAttr.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if _, ok := ctx.Deadline(); !ok {
		bounded, cancel := context.WithTimeout(ctx, longest)
		time.AfterFunc(longest, cancel)
		ctx = bounded
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	return cmd
}
