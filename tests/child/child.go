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
	longest   = 2 * time.Hour   // of a child whose context has no earlier end
	waitDelay = 5 * time.Second // for a pipe that a grandchild holds
)

// Command returns a command that is killed when ctx ends, after two hours, and when its
// parent ends: more exactly, when the thread ends that started the child. A test whose
// threads end (runtime.LockOSThread without its opposite) has to clear SysProcAttr. A
// caller that needs other attributes adds Pdeathsig to them.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(ctx, longest)
	time.AfterFunc(longest, cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	return cmd
}
