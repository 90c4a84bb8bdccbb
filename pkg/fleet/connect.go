// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/config"
)

// maxAnswer bounds the answer to one query. That of 10,000 ports has two megabytes.
const maxAnswer = 16 << 20

// Connect returns the API of the Prometheus at a URL. The file has the configuration of the HTTP client. Credentials are read from the
// files that it names for each request.
func Connect(address, file string) (prometheus.API, error) {
	u, err := url.Parse(address)
	if parse, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("--prometheus: %w", parse.Err) // err itself contains the password
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--prometheus: want http://… or https://…, not %q", u.Redacted())
	}
	client, err := Client(file)
	if err != nil {
		return nil, fmt.Errorf("--prometheus.config.file=%s: %w", file, err)
	}
	client.Transport = bounded{client.Transport}
	connection, err := api.NewClient(api.Config{Address: address, Client: client})
	if err != nil {
		return nil, fmt.Errorf("--prometheus: %w", err)
	}
	return prometheus.NewAPI(connection), nil
}

// Client returns an HTTP client with the configuration of a file, as for promtool and amtool: credentials, TLS, proxy, headers. The file
// may be empty. Redirects are not followed: credentials would go to another host.
func Client(file string) (*http.Client, error) {
	c := &config.HTTPClientConfig{EnableHTTP2: true}
	if file != "" {
		var err error
		if c, _, err = config.LoadHTTPConfigFile(file); err != nil {
			return nil, err
		}
	}
	c.FollowRedirects = false
	return config.NewClientFromConfig(*c, "accelscope")
}

// bounded bounds the bodies of answers.
type bounded struct{ http.RoundTripper }

var errTooLarge = fmt.Errorf("the answer has more than %d bytes", maxAnswer)

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
