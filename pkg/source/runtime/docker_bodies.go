// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// dockerMaxBody is the size limit of an answer, and of /events between two events. The list of
// 5,000 containers is about 10 MB.
const dockerMaxBody = 64 << 20

var errDockerBody = errors.New("the answer is larger than 64 MiB")

// dockerBodies dials the socket and limits the size of each answer. The client library does not
// limit it.
type dockerBodies struct {
	*http.Transport
	dialed atomic.Pointer[error] // error of dialing the socket, which the library hides
	events atomic.Pointer[dockerBody]
	// podman is true if Podman answers: its /_ping has a header for that. A request for the version
	// would make Podman query the package manager.
	podman atomic.Bool
}

func newDockerBodies(path string, deadline time.Duration) *dockerBodies {
	b := &dockerBodies{}
	b.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: deadline}).DialContext(ctx, "unix", path)
			if err != nil {
				b.dialed.Store(&err)
			}
			return c, err
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    dockerWorkers,
		IdleConnTimeout:        deadline,
		ResponseHeaderTimeout:  3 * deadline,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return b
}

// RoundTrip implements http.RoundTripper.
func (b *dockerBodies) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if answer.Header.Get("Libpod-Api-Version") != "" {
		b.podman.Store(true)
	}
	body := &dockerBody{ReadCloser: answer.Body}
	answer.Body = body
	if strings.HasSuffix(r.URL.Path, "/events") {
		b.events.Store(body)
	}
	return answer, nil
}

// refill resets the size limit after an event.
func (b *dockerBodies) refill() {
	if body := b.events.Load(); body != nil {
		body.read.Store(0)
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
