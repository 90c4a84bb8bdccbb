// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// daemon is the server of a runtime, which tests kill and start again.
type daemon struct {
	name   string
	args   []string
	answer func(ctx context.Context) error // returns nil when the server answers
	cmd    *exec.Cmd
}

func (d *daemon) start(ctx context.Context) error {
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = child.Command(context.Background(), d.name, d.args...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := d.answer(wait)
		if err == nil {
			return nil
		}
		if wait.Err() != nil {
			text, _ := os.ReadFile(d.logFile())
			return errors.Join(fmt.Errorf("%s does not answer: %w: %s", d.name, err, text), d.end(syscall.SIGKILL))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (d *daemon) logFile() string { return filepath.Join(logs, filepath.Base(d.name)) }

// end sends a signal to the server and waits for its end. The processes that it started continue.
func (d *daemon) end(signal syscall.Signal) error {
	if err := d.cmd.Process.Signal(signal); err != nil {
		return err
	}
	_ = d.cmd.Wait() // the exit status after a signal does not matter
	return nil
}

// mountState mounts a file system for the state of a runtime that supports overlays: the guest's root is itself an
// overlay.
func mountState(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}
