// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/config"
)

// Prometheus is a connection to a Prometheus.
type Prometheus struct {
	query  url.URL // of /api/v1/query
	client *http.Client
}

// Connect returns a connection to the Prometheus at a URL. The file has the HTTP client's configuration. Each request
// reads the credential files that it names.
func Connect(address, file string) (*Prometheus, error) {
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
	return &Prometheus{query: *u.JoinPath("api/v1/query"), client: client}, nil
}

// Client returns an HTTP client with the configuration of a file, as for promtool and amtool: credentials, TLS, proxy,
// headers. The file may be empty. Redirects are not followed: credentials would go to another host.
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

// maxError bounds the answer of a failed query.
const maxError = 4 << 10

// ask sends a query for a time and calls each with the series of the answer as they arrive.
//
// client_golang's client would hold three copies of an answer in memory before it returns the first series.
func (p *Prometheus) ask(ctx context.Context, query string, at time.Time, each func(*series) error) (warnings []string, err error) {
	form := url.Values{"query": {query}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', -1, 64)}}
	response, err := p.do(ctx, http.MethodPost, p.query, form.Encode())
	if err == nil && noPost(response.StatusCode) {
		_ = response.Body.Close()
		u := p.query
		u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+form.Encode(), "&")
		response, err = p.do(ctx, http.MethodGet, u, "")
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, failure(response)
	}
	warnings, err = readAnswer(response.Body, each)
	_, _ = io.CopyN(io.Discard, response.Body, maxError) // read to the end, so that the connection is reused
	return warnings, err
}

// noPost reports whether Prometheus, or a proxy before it, may have refused only the method POST.
func noPost(status int) bool {
	return status == http.StatusForbidden || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented
}

func (p *Prometheus) do(ctx context.Context, method string, u url.URL, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, u.String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header["Idempotency-Key"] = nil // not sent: it lets net/http repeat the request after a closed connection
	}
	return p.client.Do(request)
}

func failure(response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxError))
	var why struct{ Error string }
	_ = json.Unmarshal(text, &why) // another answer has no reason
	return errors.New(strings.TrimSuffix(response.Status+": "+why.Error, ": "))
}
