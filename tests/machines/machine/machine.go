// SPDX-License-Identifier: Apache-2.0

// Package machine boots a copy of this machine without emulation, in a second: the same kernel, the same root file
// system below a temporary overlay, and systemd as the first process, in new namespaces (mount, pid, cgroup, net, ipc,
// uts). Packages and services can be installed as on any Debian machine, without a change of this machine. It needs
// root and a kernel with cgroup v2.
//
// It is not a guest: it has this machine's kernel and hardware. Tests that need HCAs use the guest (tests/machines/vm).
package machine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

//go:embed init.sh
var initScript string

// Long limits, for a busy machine.
const (
	bootTimeout = 2 * time.Minute
	buryTimeout = 30 * time.Second
)

// A Machine runs until it is closed.
type Machine struct {
	dir string // its name is also the cgroup's: Name
	cmd *exec.Cmd
	log bytes.Buffer
	pid int // of systemd
}

// Start boots a machine. The directory shared is this machine's own, under its own path. Everything else is a copy,
// including the directory copied (or ""), which may be on another file system than the root.
func Start(ctx context.Context, shared, copied string) (_ *Machine, err error) {
	dir, err := os.MkdirTemp("", "accelscope-machine-")
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: dir}
	defer func() {
		if err != nil {
			closed := m.Close() // the log is written until Close returns
			err = errors.Join(fmt.Errorf("machine: %w: %s", err, m.log.String()), closed)
		}
	}()
	script := filepath.Join(dir, "init.sh")
	if err := os.WriteFile(script, []byte(initScript), 0o755); err != nil {
		return m, err
	}
	root := filepath.Join(dir, m.Name())
	if err := os.Mkdir(root, 0o755); err != nil {
		return m, err
	}
	m.cmd = child.Command(context.Background(), "unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child",
		script, root, shared, copied)
	m.cmd.Stdout, m.cmd.Stderr = &m.log, &m.log
	if err := m.cmd.Start(); err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		// "degraded" is accepted: some units of the machine cannot run in a copy.
		if state := m.state(ctx); state == "running" || state == "degraded" {
			return m, nil
		}
		select {
		case <-ctx.Done():
			return m, fmt.Errorf("systemd does not come up: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// state returns the state that systemd reports, or "".
func (m *Machine) state(ctx context.Context) string {
	if m.pid == 0 {
		unshare := m.cmd.Process.Pid
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", unshare, unshare))
		if err != nil {
			return ""
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
		if err != nil {
			return ""
		}
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil || string(comm) != "systemd\n" { // before systemd runs, its root is still the real machine's
			return ""
		}
		m.pid = pid
	}
	out, _ := m.Command(ctx, "systemctl", "is-system-running").Output() // the exit status only repeats the state
	return strings.TrimSpace(string(out))
}

// Name returns the name of the machine's directory and of its cgroup.
func (m *Machine) Name() string { return filepath.Base(m.dir) }

// Command returns a command that runs in the machine, as root, in its root directory.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.pid), "--mount", "--pid", "--cgroup", "--net", "--ipc", "--uts", "--", name}
	cmd := child.Command(ctx, "nsenter", append(enter, args...)...)
	cmd.WaitDelay = time.Second // processes that it started may hold its output open
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive",
	}
	return cmd
}

// Sh runs a shell command in the machine and returns its output.
func (m *Machine) Sh(ctx context.Context, line string) (string, error) {
	out, err := m.Command(ctx, "bash", "-c", line).CombinedOutput()
	return string(out), err
}

// Close ends the machine and all its processes.
func (m *Machine) Close() error {
	if m.cmd != nil && m.cmd.Process != nil {
		_ = m.cmd.Process.Kill() // this also kills its child, systemd, and thereby all processes of the machine
		_ = m.cmd.Wait()
	}
	return errors.Join(m.removeCgroup(), os.RemoveAll(m.dir))
}

// removeCgroup removes the cgroup that init.sh made, wherever cgroup v2 is mounted.
func (m *Machine) removeCgroup() error {
	var err error
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		err = errors.Join(err, cgroup.Remove(filepath.Join(mount, m.Name())))
	}
	return err
}
