// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// gpuCmd has the commands for the GPUs of a running sensor.
type gpuCmd struct {
	Release releaseCmd `cmd:"" help:"Close NVIDIA's library to unload the driver, reset a GPU or change MIG."`
	Resume  resumeCmd  `cmd:"" help:"Open NVIDIA's library again."`
}

type releaseCmd struct {
	controlFlags
	For    time.Duration `name:"for" default:"10m" help:"Maximum time; reloading the driver ends the release earlier."`
	Reason string        `name:"reason" placeholder:"TEXT" help:"Reason shown in the source's state."`
}

type resumeCmd struct{ controlFlags }

// controlTimeout limits a command, releases included.
const controlTimeout = 15 * time.Second

// errStillOpen is the result of a release that could not close everything.
var errStillOpen = errors.New("device nodes are still open in a process that does not end: look for processes in state D")

func (c *releaseCmd) run(ctx context.Context, stdout io.Writer) error {
	query := url.Values{"for": {c.For.String()}}
	if c.Reason != "" {
		query.Set("reason", c.Reason)
	}
	s, err := control[gpuStatus](ctx, http.MethodPost, c.Socket, releasePath, query)
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

func (c *resumeCmd) run(ctx context.Context, stdout io.Writer) error {
	s, err := control[gpuStatus](ctx, http.MethodPost, c.Socket, resumePath, nil)
	if err != nil {
		return err
	}
	switch {
	case len(s.Open) > 0:
		fmt.Fprintf(stdout, "%s: open %s\n", s.State, strings.Join(s.Open, ", "))
	case s.Reason != "":
		fmt.Fprintf(stdout, "%s: %s\n", s.State, withoutState(s.Reason, model.State(s.State)))
	default:
		fmt.Fprintln(stdout, s.State)
	}
	return nil
}

// statusTimeout limits a request for the state.
const statusTimeout = 2 * time.Second

// released returns why a running sensor has released NVIDIA's driver; nil if none has, or if none answers.
func released(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := control[gpuStatus](ctx, http.MethodGet, socket, statusPath, nil)
	if err != nil || s.State != string(model.StateReleased) {
		return nil
	}
	return model.WithReason(errors.New(s.Reason), model.ErrReleased)
}

// control sends a request to the sensor that listens on a socket.
func control[T any](ctx context.Context, method, socket, path string, query url.Values) (s T, err error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	to := url.URL{Scheme: "http", Host: "localhost", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), nil)
	if err != nil {
		return s, err
	}
	resp, err := client.Do(req)
	switch wrapped := (*url.Error)(nil); {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return s, fmt.Errorf("%s: no sensor listens there; --gpu.control-socket names another socket", socket)
	case errors.As(err, &wrapped):
		return s, wrapped.Err // without the URL, which is not the user's
	case err != nil:
		return s, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return s, err
	}
	if resp.StatusCode != http.StatusOK {
		return s, errors.New(printable(strings.TrimSpace(string(body))))
	}
	return s, json.Unmarshal(body, &s)
}
