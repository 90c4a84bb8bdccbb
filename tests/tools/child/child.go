// SPDX-License-Identifier: Apache-2.0

// Package child makes the commands of tests and their helpers. A child process ends with its parent and, in a test, at
// a deadline. A pipe that outlives it delays nothing.
package child

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Longest is the time limit of a test's child without a deadline in its context. Slower tests set it.
var Longest = time.Hour

const waitDelay = 5 * time.Second // for a pipe that a grandchild holds

// Command returns a command that is killed when ctx ends, and when the thread that started the child ends. In a test
// without a deadline in ctx, the child has the time Longest; the demo runs as long as its user wants. A test whose
// threads end (runtime.LockOSThread without its opposite) has to clear SysProcAttr. Callers set other attributes in
// SysProcAttr.
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
