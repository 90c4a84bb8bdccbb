// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// dockerMaxBody is the size limit of an answer, and of /events between two events. 5,000 containers are about 10
	// MB.
	dockerMaxBody = 64 << 20
	// The versions 1.x of the API in which the fields of dockerInspection, dockerSummary and dockerEvent have these
	// names.
	dockerMinVersion, dockerMaxVersion = 40, 56
)

var (
	errDockerBody = errors.New("the answer is larger than 64 MiB")
	errDockerGone = errors.New("no such container")
)

// dockerAPI sends GET requests of the Docker Engine API to a Unix socket.
type dockerAPI struct {
	http    http.Client
	version string // "/v1.41" after a ping
	// podman is true if Podman answers: its /_ping has a header for this. A version request would make Podman query the
	// package manager.
	podman bool
}

func newDockerAPI(path string, deadline time.Duration) *dockerAPI {
	return &dockerAPI{http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: deadline}).DialContext(ctx, "unix", path)
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    dockerWorkers,
		IdleConnTimeout:        deadline,
		ResponseHeaderTimeout:  3 * deadline,
		MaxResponseHeaderBytes: 64 << 10,
	}}}
}

// request returns a successful answer, whose body must be closed.
func (a *dockerAPI) request(ctx context.Context, path string, query url.Values) (http.Header, *dockerBody, error) {
	u := url.URL{Scheme: "http", Host: "docker", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	answer, err := a.http.Do(r)
	if err != nil {
		return nil, nil, err
	}
	body := &dockerBody{ReadCloser: answer.Body}
	if answer.StatusCode == http.StatusOK {
		return answer.Header, body, nil
	}
	defer body.Close() //nolint:errcheck // only read
	err = fmt.Errorf("%s: %s: %s", path, answer.Status, dockerMessage(body))
	if answer.StatusCode == http.StatusNotFound {
		err = fmt.Errorf("%w: %w", errDockerGone, err)
	}
	return nil, nil, err
}

func dockerMessage(body io.Reader) string {
	var refusal struct{ Message string }
	_ = json.NewDecoder(io.LimitReader(body, 4<<10)).Decode(&refusal) // the status says enough
	return strconv.QuoteToGraphic(refusal.Message)
}

func (a *dockerAPI) get(ctx context.Context, path string, query url.Values, value any) error {
	_, body, err := a.request(ctx, a.version+path, query)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	if err := json.NewDecoder(body).Decode(value); err != nil {
		return err
	}
	// The connection is kept only if the body was read up to its end.
	_, err = io.Copy(io.Discard, body)
	return err
}

// ping detects an engine that hangs. The first ping selects the latest version that both sides support.
func (a *dockerAPI) ping(ctx context.Context) error {
	header, body, err := a.request(ctx, "/_ping", nil)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	if a.version != "" {
		return nil
	}
	a.podman = header.Get("Libpod-Api-Version") != ""
	supported := header.Get("Api-Version")
	major, minor, _ := strings.Cut(supported, ".")
	n, err := strconv.Atoi(minor)
	if major != "1" || err != nil || n < dockerMinVersion {
		return fmt.Errorf("version %s of the API is not supported, at least 1.%d is needed",
			strconv.Quote(supported[:min(len(supported), 20)]), dockerMinVersion)
	}
	a.version = fmt.Sprint("/v1.", min(n, dockerMaxVersion))
	return nil
}

// events requests the events that query selects. Their JSON follows each other in the body.
func (a *dockerAPI) events(ctx context.Context, query url.Values) (*dockerBody, error) {
	_, body, err := a.request(ctx, a.version+"/events", query)
	return body, err
}

// each calls f for each event, until it returns false or the engine ends the answer, and closes the body. The limit of
// the body applies to each event.
func (b *dockerBody) each(f func(dockerEvent) bool) error {
	defer b.Close() //nolint:errcheck // only read
	for messages := json.NewDecoder(b); ; {
		var m dockerEvent
		if err := messages.Decode(&m); err != nil {
			return err
		}
		b.read.Store(0)
		if !f(m) {
			return nil
		}
	}
}

type dockerBody struct {
	io.ReadCloser
	read atomic.Int64
}

func (b *dockerBody) Read(p []byte) (int, error) {
	if b.read.Load() > dockerMaxBody {
		return 0, errDockerBody
	}
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}
