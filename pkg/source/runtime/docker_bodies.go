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

// dockerMaxBody is what may be read of an answer, and of /events from one event
// to the next. The list of 5,000 containers is about 10 MB.
const dockerMaxBody = 64 << 20

var errDockerBody = errors.New("the answer is larger than 64 MiB")

// dockerBodies dials the socket and bounds what is read of each answer, which
// the client library does not.
type dockerBodies struct {
	*http.Transport
	dialed atomic.Pointer[error] // why the socket could not be dialed: the library hides it
	events atomic.Pointer[dockerBody]
	// podman says that it is Podman who answers: /_ping has this header. Asked
	// for its version it would ask the package manager for that of its parts.
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

// RoundTrip is that of http.RoundTripper.
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

// refill is to be called after each event.
func (b *dockerBodies) refill() {
	if body := b.events.Load(); body != nil {
		body.read.Store(0)
	}
}

func (b *dockerBodies) close() { b.CloseIdleConnections() }

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
