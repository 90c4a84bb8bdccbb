// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/model"
)

// errStillOpen is the result of a release that could not close everything.
var errStillOpen = errors.New("device nodes are still open in a process that does not end: look for processes in state D")

func gpuRelease(ctx context.Context, c *config.ReleaseCommand, stdout io.Writer) error {
	s, err := control.Release(ctx, c.Socket, c.For, c.Reason)
	if err != nil {
		return err
	}
	closed := "nothing was open"
	if len(s.Closed) > 0 {
		closed = "closed " + strings.Join(s.Closed, ", ")
	}
	fmt.Fprintf(stdout, "%s: %s\n", s.State, closed)
	if s.Until != nil {
		fmt.Fprintf(stdout, "until the driver is loaded again, accelscope gpu resume, or %s\n", s.Until.Format(time.DateTime))
	}
	if len(s.Open) > 0 {
		return fmt.Errorf("%w: %s", errStillOpen, strings.Join(s.Open, ", "))
	}
	return nil
}

func gpuResume(ctx context.Context, c *config.ResumeCommand, stdout io.Writer) error {
	s, err := control.Resume(ctx, c.Socket)
	if err != nil {
		return err
	}
	switch {
	case len(s.Open) > 0:
		fmt.Fprintf(stdout, "%s: open %s\n", s.State, strings.Join(s.Open, ", "))
	case s.Reason != "":
		fmt.Fprintf(stdout, "%s: %s\n", s.State, model.WithoutState(s.Reason, model.State(s.State)))
	default:
		fmt.Fprintln(stdout, s.State)
	}
	return nil
}
