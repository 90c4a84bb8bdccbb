// SPDX-License-Identifier: Apache-2.0

package control

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

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// requestTimeout limits a request, releases included.
const requestTimeout = 15 * time.Second

// Release releases the driver of NVIDIA for a time, with a reason that may be empty.
func Release(ctx context.Context, socket string, most time.Duration, reason string) (GPUStatus, error) {
	query := url.Values{"for": {most.String()}}
	if reason != "" {
		query.Set("reason", reason)
	}
	return request[GPUStatus](ctx, http.MethodPost, socket, releasePath, query)
}

// Resume ends a release.
func Resume(ctx context.Context, socket string) (GPUStatus, error) {
	return request[GPUStatus](ctx, http.MethodPost, socket, resumePath, nil)
}

// Accept accepts missing devices, and returns which. No devices are all that are missing.
func Accept(ctx context.Context, socket string, devices []string) ([]string, error) {
	answer, err := request[acceptance](ctx, http.MethodPost, socket, acceptPath, url.Values{"id": devices})
	return answer.Accepted, err
}

// statusTimeout limits a request for the state.
const statusTimeout = 2 * time.Second

// Released returns why a running sensor has released NVIDIA's driver; nil if none has, or if none answers.
func Released(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := request[GPUStatus](ctx, http.MethodGet, socket, statusPath, nil)
	if err != nil || s.State != string(model.StateReleased) {
		return nil
	}
	return model.WithReason(errors.New(s.Reason), model.ErrReleased)
}

// request sends a request to the sensor that listens on a socket.
func request[T any](ctx context.Context, method, socket, path string, query url.Values) (s T, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
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
		return s, errors.New(format.Line(strings.TrimSpace(string(body))))
	}
	return s, json.Unmarshal(body, &s)
}
