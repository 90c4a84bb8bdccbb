// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	askTimeout   = 10 * time.Second
	maxAskedBody = 64 << 20
)

// askSensor requests a path with a query from the sensor at the URL of --url, and returns the body of the answer. No error contains the
// password.
func askSensor(ctx context.Context, sensor, path string, query url.Values) ([]byte, error) {
	u, err := sensorURL(sensor)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: askTimeout}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: no sensor runs there; --url names another", err)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAskedBody))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	if resp.StatusCode != http.StatusOK {
		var answer struct{ Error, Message string }
		if json.Unmarshal(body, &answer) == nil && answer.Error+answer.Message != "" {
			return nil, fmt.Errorf("%s answers %s: %s", u.Redacted(), resp.Status, printable(cmp.Or(answer.Error, answer.Message)))
		}
		return nil, fmt.Errorf("%s answers %s", u.Redacted(), resp.Status)
	}
	return body, nil
}

// sensorURL parses the value of --url, which may be that of the metrics.
func sensorURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if parse, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("--url: %w", parse.Err) // err itself contains the password
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--url: want http://… or https://…, not %q", u.Redacted())
	}
	u.Path = strings.TrimSuffix(u.Path, "/metrics") // top has that URL
	return u, nil
}
