// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// daemon is a program that runs until it is stopped. Its output is appended to a file.
type daemon struct {
	log  string
	args []string
	env  []string
	cmd  *exec.Cmd
	done chan struct{}
}

func (d *daemon) start() error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = child.Command(context.Background(), d.args[0], d.args[1:]...)
	d.cmd.Stdout, d.cmd.Stderr, d.cmd.Env = log, log, append(os.Environ(), d.env...)
	if err := d.cmd.Start(); err != nil {
		return err
	}
	d.done = make(chan struct{})
	go func() { defer close(d.done); _ = d.cmd.Wait() }() // the reason is in the log
	return nil
}

// stop ends the program by a signal. One that is still there after half a minute is killed.
func (d *daemon) stop(signal syscall.Signal) {
	_ = d.cmd.Process.Signal(signal) // it may have ended
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// until calls ready until it returns nil. It returns the last error at the end of ctx, or when the program ends.
func (d *daemon) until(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-d.done:
			return fmt.Errorf("%s has ended: %w\n%s", filepath.Base(d.args[0]), err, d.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s: %w\n%s", filepath.Base(d.args[0]), err, d.tail())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tail returns the end of the output.
func (d *daemon) tail() string {
	const most = 6000
	text, _ := os.ReadFile(d.log) // without a log there is nothing to show
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}
