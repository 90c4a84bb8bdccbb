// SPDX-License-Identifier: Apache-2.0

// Package child makes the commands of tests and their helpers. A child process ends with
// its parent, in a test it has a deadline, and nothing waits for a pipe that outlives it.
package child

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Longest is the time limit of a child of a test whose context has no deadline. A test that takes longer sets it.
var Longest = time.Hour

const waitDelay = 5 * time.Second // for a pipe that a grandchild holds

// Command returns a command that is killed when ctx ends and when its parent ends: more
// exactly, when the thread ends that started the child. In a test, where ctx has no
// deadline, the child has the time Longest; the demo runs as long as its user wants. A test whose threads end (runtime.LockOSThread without its opposite) has to
// clear SysProcAttr. A caller that needs other attributes sets them in SysProcAttr.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if _, ok := ctx.Deadline(); !ok && testing.Testing() {
		bounded, cancel := context.WithTimeout(ctx, Longest)
		time.AfterFunc(Longest, cancel)
		ctx = bounded
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	return cmd
}
