// SPDX-License-Identifier: Apache-2.0

// Package client reads the REST API of a running sensor.
package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

// ErrNoSensor reports an answer that no sensor gives.
var ErrNoSensor = errors.New("this is not the answer of a sensor")

// Refused is the answer of a sensor that gives a reason instead of data.
type Refused struct {
	Status int
	Reason string
	answer string // URL and status
}

func (r *Refused) Error() string { return r.answer + ": " + r.Reason }

const (
	timeout = 10 * time.Second // a sensor answers within its own deadlines, also if a driver hangs
	maxBody = 64 << 20
)

// Client reads from one sensor.
type Client struct {
	base *url.URL
	http http.Client
}

// New returns a client of the sensor at the URL of --url, which may be the URL of its metrics. A user and a password in it are used as
// basic auth, and no error contains the password.
func New(sensor string) (*Client, error) {
	u, err := url.Parse(sensor)
	if parse, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("--url: %w", parse.Err) // err itself contains the password
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--url: want http://… or https://…, not %q", u.Redacted())
	}
	u.Path = strings.TrimSuffix(u.Path, "/metrics")
	return &Client{u, http.Client{Timeout: timeout}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// String returns the URL without its password.
func (c *Client) String() string { return c.base.Redacted() }

// OnNode reports whether the URL is one of this node.
func (c *Client) OnNode() bool {
	ip := net.ParseIP(c.base.Hostname())
	return c.base.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// Get requests a path with a query, and returns the body of the answer.
func (c *Client) Get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: no sensor runs there; --url names another", err)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	if resp.StatusCode != http.StatusOK {
		text := fmt.Sprintf("%s answers %s", u.Redacted(), resp.Status)
		var answer struct{ Error, Message string }
		if json.Unmarshal(body, &answer) == nil && answer.Error+answer.Message != "" {
			return nil, &Refused{resp.StatusCode, format.Line(cmp.Or(answer.Error, answer.Message)), text}
		}
		return nil, errors.New(text)
	}
	return body, nil
}

// Data requests a path that answers in the envelope of package api, and decodes the data. missing is why data is incomplete,
// empty if it is complete.
func (c *Client) Data(ctx context.Context, path string, data any) (missing string, err error) {
	body, err := c.Get(ctx, path, nil)
	if err != nil {
		return "", err
	}
	answer := struct {
		Data    any
		Message string
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoSensor, err)
	}
	if answer.Data == nil || answer.Message == "" {
		return "", ErrNoSensor
	}
	if reason, ok := strings.CutPrefix(answer.Message, "partial: "); ok {
		missing = format.Line(reason)
	}
	return missing, nil
}
