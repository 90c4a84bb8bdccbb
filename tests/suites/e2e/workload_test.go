// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// container is a cgroup like a runtime's, and the process in it. It is for tests that need many, or that control
// the process by its standard input. TestNode/truth uses real containers of containerd.
type container struct {
	id    string
	dir   string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

// digest derives a container id from a name.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// cgroupRoot is the hierarchy that identifies containers: the memory controller's on cgroup v1.
func cgroupRoot() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/memory"
}

// enter starts a program in a new cgroup of a pod. The program is the first process of the cgroup: the shell that
// enters the cgroup executes the program in its own process.
func enter(t *testing.T, name string, argv ...string) *container {
	t.Helper()
	c := &container{id: digest(name), lines: make(chan string, 1000)}
	c.dir = filepath.Join(cgroupRoot(), "kubepods", "pod"+digest("pod of " + name)[:32], c.id)
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.cmd = child.Command(context.Background(), "sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs"; exec "$@"`, c.dir}, argv...)...)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		if c.cmd.ProcessState == nil {
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
		}
		c.remove()
	})
	return c
}

func (c *container) line(t *testing.T, begin string) string {
	t.Helper()
	timeout := time.After(longer(60 * time.Second))
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("%v ended before it printed %q", c.cmd.Args[4:], begin)
			}
			if strings.HasPrefix(line, begin) {
				return line
			}
		case <-timeout:
			t.Fatalf("%v: no line %q", c.cmd.Args[4:], begin)
		}
	}
}

// rest waits for the end of the program and returns the unread lines.
func (c *container) rest(t *testing.T) []string {
	t.Helper()
	c.stdin.Close()
	var out []string
	for line := range c.lines {
		out = append(out, line)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("%v: %v", c.cmd.Args[4:], err)
	}
	return out
}

// signal ends the program with SIGTERM, upon which it finishes and exits with status 0.
func (c *container) signal(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	c.rest(t)
}

// remove removes the cgroup, like the runtime when a container is deleted. EBUSY: the last process is being reaped, which may take seconds
// on a kernel that checks itself.
func (c *container) remove() {
	for _, dir := range []string{c.dir, filepath.Dir(c.dir)} {
		for end := time.Now().Add(time.Minute); syscall.Rmdir(dir) == syscall.EBUSY && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// pinned returns VmPin of a process in bytes: the memory that ib_umem_get has pinned.
func pinned(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmPin: %f kB", &kb); n == 1 {
			return kb * 1024
		}
	}
	return 0
}
