// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

var errSilent = errors.New("no output")

const (
	longest  = time.Hour        // maximum duration of a stage
	quitTime = 10 * time.Second // time for tests to print their goroutines
)

// watch runs a program until it ends, ctx ends, or its log has not grown for the time silence. In the last two cases it
// kills the program and all its descendants. It returns the CPU time of the program and of its reaped descendants.
func watch(ctx context.Context, log string, silence time.Duration, name string, args ...string) (time.Duration, error) {
	file, err := os.Create(log)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	// The program's context does not end with ctx: end must kill its descendants, too.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	cmd := child.Command(bounded, name, args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	spent := func() time.Duration { return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() }
	var status error // once ended is closed
	ended := make(chan struct{})
	go func() {
		status = cmd.Wait()
		close(ended)
	}()

	// end kills the program's processes, and earlier seen processes that still exist.
	end := func(seen ...process) {
		kill(append(seen, tree(cmd.Process.Pid)...))
		<-ended
	}

	size, grew := int64(0), time.Now()
	for {
		select {
		case <-ended:
			return spent(), status
		case <-ctx.Done():
			end()
			return spent(), ctx.Err()
		case <-time.After(silence / 60):
		}
		info, err := file.Stat()
		if err != nil {
			end()
			return spent(), err
		}
		if info.Size() > size || builds(tree(cmd.Process.Pid)) {
			size, grew = info.Size(), time.Now()
		}
		if time.Since(grew) < silence {
			continue
		}
		hung := tree(cmd.Process.Pid)
		fmt.Fprintf(file, "\nno output for %v; processes:\n%s", silence, draw(hung))
		quit(hung)
		select {
		case <-ended:
		case <-time.After(quitTime):
		}
		end(hung...)
		return spent(), fmt.Errorf("%w for %v", errSilent, silence)
	}
}

// builds reports whether Go's tools, a C compiler or the linter run: they print nothing, but they end.
func builds(processes []process) bool {
	return slices.ContainsFunc(processes, func(p process) bool {
		return slices.Contains([]string{"compile", "link", "asm", "cgo", "vet", "cc1", "ld"}, p.name) || strings.HasPrefix(p.name, "golangci-lint")
	})
}

// quit makes the Go tests among the processes print their goroutines and exit.
func quit(processes []process) {
	for _, p := range processes {
		if strings.HasSuffix(p.name, ".test") {
			_ = syscall.Kill(p.pid, syscall.SIGQUIT)
		}
	}
}

func kill(processes []process) {
	for _, p := range processes {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}
