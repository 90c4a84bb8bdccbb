// SPDX-License-Identifier: Apache-2.0

// Package machine boots a copy of this machine beside it, natively, in a second: the same kernel, the same root file
// system below an overlay that is thrown away, and systemd as the first process, all in namespaces of their own
// (mount, pid, cgroup, net, ipc, uts). Packages are installed and services are run in it as on any Debian machine, and
// nothing of the machine itself changes. It needs root and a kernel with cgroup v2.
//
// It is no guest: kernel and hardware are this machine's, so it has HCAs only if this machine has. What needs those
// is tested in the guest (tests/vm).
package machine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/child"
)

//go:embed init.sh
var initScript string

// Generous both, for a machine that is busy.
const (
	bootTimeout = 2 * time.Minute
	buryTimeout = 30 * time.Second
)

// A Machine runs until it is closed.
type Machine struct {
	dir string // its name is the cgroup's, too: Name
	cmd *exec.Cmd
	log bytes.Buffer
	pid int // of systemd
}

// Start boots one. The directory shared is this machine's own, under its own path; everything else is a copy, also the
// directory copied (empty for none), which may be on another file system than the root.
func Start(ctx context.Context, shared, copied string) (_ *Machine, err error) {
	dir, err := os.MkdirTemp("", "accelscope-machine-")
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: dir}
	defer func() {
		if err != nil {
			closed := m.Close() // before that, the log is being written
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
		// "degraded" is good enough: units that the machine has and a copy cannot run.
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

// state is what systemd says of the machine; empty while it says nothing.
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
		if err != nil || string(comm) != "systemd\n" { // before, its root is still the machine's
			return ""
		}
		m.pid = pid
	}
	out, _ := m.Command(ctx, "systemctl", "is-system-running").Output() // its exit status adds nothing
	return strings.TrimSpace(string(out))
}

// Name is that of its directory and of its cgroup.
func (m *Machine) Name() string { return filepath.Base(m.dir) }

// Command is a command in the machine, as root, in its root directory.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.pid), "--mount", "--pid", "--cgroup", "--net", "--ipc", "--uts", "--", name}
	cmd := child.Command(ctx, "nsenter", append(enter, args...)...)
	cmd.WaitDelay = time.Second // what it started may hold its output
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive",
	}
	return cmd
}

// Sh runs a line of shell in the machine and returns what it printed.
func (m *Machine) Sh(ctx context.Context, line string) (string, error) {
	out, err := m.Command(ctx, "bash", "-c", line).CombinedOutput()
	return string(out), err
}

// Close ends it; all that ran in it ends with it.
func (m *Machine) Close() error {
	if m.cmd != nil && m.cmd.Process != nil {
		_ = m.cmd.Process.Kill() // and with it its child, systemd, and with that everything
		_ = m.cmd.Wait()
	}
	return errors.Join(m.removeCgroup(), os.RemoveAll(m.dir))
}

// removeCgroup removes the cgroup that init.sh made, from wherever cgroup v2 is mounted here.
func (m *Machine) removeCgroup() error {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		// The processes may take a moment to end, and systemd makes another cgroup until it is dead.
		for end := time.Now().Add(buryTimeout); ; time.Sleep(20 * time.Millisecond) {
			err := removeTree(filepath.Join(mount, m.Name()))
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
				return err
			}
		}
	}
	return nil
}

// removeTree removes a directory of cgroups, if there is one.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) { // what is in a directory first
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
