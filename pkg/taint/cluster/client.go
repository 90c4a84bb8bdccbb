// SPDX-License-Identifier: Apache-2.0

// Package cluster reads and writes the marks of a Kubernetes cluster: node conditions (nodes.go) and DeviceTaintRules (devices.go). It
// changes only what has its own condition types, field manager and label.
//
// It sends its few requests itself: the smallest program with client-go's clients for them has 26 MB, accelscope-tool has 17 MB.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/prometheus/common/config"
)

// manager is the field manager of conditions, and the value of the label managed-by of DeviceTaintRules.
const manager = "accelscope-taint"

const (
	maxAnswer = 32 << 20 // bytes, of a page of 100 nodes
	maxError  = 4 << 10
)

// ErrNotFound reports that an object is not there.
var ErrNotFound = errors.New("not found")

// Options say where the API server is.
type Options struct {
	URL       string
	TokenFile string // read for each request
	CAFile    string
}

// Cluster is a connection to an API server.
type Cluster struct {
	base   *url.URL
	client *http.Client
}

// New returns a connection. It sends no request.
func New(o Options) (*Cluster, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil {
		return nil, errors.New("API server: want https://HOST:PORT") // the URL may contain a password
	}
	client, err := config.NewClientFromConfig(config.HTTPClientConfig{
		Authorization: &config.Authorization{Type: "Bearer", CredentialsFile: o.TokenFile},
		TLSConfig:     config.TLSConfig{CAFile: o.CAFile},
		EnableHTTP2:   true,
	}, "kubernetes")
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", o.URL, err)
	}
	return &Cluster{base: base, client: client}, nil
}

// get decodes the object at a path.
func (c *Cluster) get(ctx context.Context, path string, query url.Values, into any) error {
	return c.do(ctx, http.MethodGet, path, query, nil, "", into)
}

// do sends a request with a body, and decodes the answer unless into is nil.
func (c *Cluster) do(ctx context.Context, method, path string, query url.Values, body any, kind string, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if body == nil {
		request.Body, request.GetBody, request.ContentLength = nil, nil, 0
	} else {
		request.Header.Set("Content-Type", kind)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return failure(method, path, response)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// failure returns the error of an answer, with the reason that a Status of the API server has.
func failure(method, path string, response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxError))
	var status struct{ Message string }
	_ = json.Unmarshal(text, &status) // another answer has no reason
	why := strings.TrimSuffix(response.Status+": "+status.Message, ": ")
	if response.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s %s: %w: %s", method, path, ErrNotFound, why)
	}
	return fmt.Errorf("%s %s: %s", method, path, why)
}

// pages reads a list page by page.
func pages[T any](ctx context.Context, c *Cluster, path string, query url.Values, each func(*T)) error {
	query.Set("limit", "100")
	for {
		var page struct {
			Metadata struct{ Continue string }
			Items    []T
		}
		if err := c.get(ctx, path, query, &page); err != nil {
			return err
		}
		for i := range page.Items {
			each(&page.Items[i])
		}
		if page.Metadata.Continue == "" {
			return nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}
