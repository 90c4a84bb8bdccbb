// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

var errNoURL = fmt.Errorf(
	"no URL of the kubelet: set --kubelet.url, or NODE_IP in a pod with a service account: %w", model.ErrAbsent)

const maxFile = 1 << 20

// client sends requests to the kubelet over HTTPS. It follows no redirect and uses no proxy, so that only the kubelet
// receives the token.
type client struct {
	base      *url.URL
	tokenFile string
	caFile    string // "" if the certificate is not checked, or pinned
	pinFile   string
	insecure  bool
	refused   error // why nothing is sent

	mu    sync.Mutex
	trust []byte // the CA or certificate that http uses
	http  *http.Client
}

// Check returns why no request would be sent over HTTPS with these options, whatever the kubelet answers.
func (o Options) Check() error {
	c, err := newClient(o, zap.NewNop())
	if err != nil || c == nil {
		return err
	}
	return c.refused
}

// newClient returns nil without a URL or a default for it.
func newClient(o Options, log *zap.Logger) (*client, error) {
	text := o.URL
	if text == "" {
		if _, err := os.Stat(o.TokenFile); o.NodeIP == "" || o.TokenFile == "" || err != nil {
			return nil, nil
		}
		text = "https://" + net.JoinHostPort(o.NodeIP, "10250")
	}
	base, err := url.Parse(text)
	// The error leaves out the text, which may contain a password.
	if err != nil || base.Scheme != "https" || base.Hostname() == "" || base.User != nil || base.RawQuery != "" {
		return nil, errors.New("kubelet: --kubelet.url must be https://HOST:PORT without user and query, " +
			"--node.ip an address")
	}
	c := &client{base: base, tokenFile: o.TokenFile, caFile: o.CAFile, pinFile: o.CertificateFile, insecure: o.Insecure}
	switch {
	case o.CertificateFile != "":
		c.caFile = ""
	case o.Insecure && o.TokenFile != "" && !o.SendToken:
		c.refused = errors.New("with --kubelet.insecure-skip-verify any host with the kubelet's address would receive the token: " +
			"set --kubelet.certificate-file to the kubelet's certificate, or also --kubelet.insecure-send-token")
	case o.Insecure:
		c.caFile = ""
		log.Warn("the kubelet's certificate is not checked: any host with its address receives the token",
			zap.String("url", text))
	}
	return c, nil
}

// get requests a path and passes the answer to decode. Errors contain a remedy.
func (c *client) get(
	ctx context.Context, path string, decode func(io.Reader) (*facts, error),
) (*facts, error) {
	if c.refused != nil {
		return nil, c.refused
	}
	h, err := c.trusted()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	if c.tokenFile != "" {
		token, err := readSmall(c.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("%w; --kubelet.token-file names the token's file", err)
		}
		request.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	}
	response, err := h.Do(request)
	if err != nil {
		return nil, withRemedy(err)
	}
	defer response.Body.Close()
	if err := statusError(response.StatusCode, path); err != nil {
		return nil, err
	}
	f, err := decode(response.Body)
	if err != nil {
		err = fmt.Errorf("answer to GET %s: %w", path, err)
	}
	return f, err
}

// trusted returns an HTTP client for the current content of the CA file or certificate. It uses HTTP/1.1: a connection
// with a late answer is never used again.
func (c *client) trusted() (*http.Client, error) {
	var trust []byte
	var err error
	switch {
	case c.pinFile != "":
		if trust, err = readSmall(c.pinFile); err != nil {
			return nil, fmt.Errorf("%w; --kubelet.certificate-file names the kubelet's certificate", err)
		}
	case c.caFile != "":
		if trust, err = readSmall(c.caFile); err != nil {
			return nil, fmt.Errorf("%w; --kubelet.ca-file names the CA of the kubelet's certificate", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil && bytes.Equal(trust, c.trust) {
		return c.http, nil
	}
	config := &tls.Config{InsecureSkipVerify: c.insecure} //nolint:gosec // configured by the user
	switch {
	case c.pinFile != "":
		pinned := certificates(trust)
		if len(pinned) == 0 {
			return nil, fmt.Errorf("--kubelet.certificate-file: no certificate in %s", c.pinFile)
		}
		config.InsecureSkipVerify = true // VerifyConnection compares the certificate
		config.VerifyConnection = func(s tls.ConnectionState) error { return oneOf(s.PeerCertificates, pinned) }
	case c.caFile != "":
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(trust) {
			return nil, fmt.Errorf("--kubelet.ca-file: no certificate in %s", c.caFile)
		}
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	c.trust = trust
	c.http = &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:        config,
			DisableCompression:     true,
			MaxConnsPerHost:        2, // one for each request of a Read
			MaxResponseHeaderBytes: 64 << 10,
			IdleConnTimeout:        time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c.http, nil
}

// errOther is the error of a kubelet with another certificate than the pinned certificate.
var errOther = errors.New("the kubelet has another certificate than --kubelet.certificate-file")

func oneOf(sent []*x509.Certificate, pinned [][]byte) error {
	for _, one := range pinned {
		if len(sent) > 0 && bytes.Equal(sent[0].Raw, one) {
			return nil
		}
	}
	return errOther
}

// certificates returns the certificates in a PEM file, which may also have keys.
func certificates(text []byte) (all [][]byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			all = append(all, block.Bytes)
		}
	}
	return all
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// statusError converts a status to an error. It leaves out the body, because a server may repeat the token there.
func statusError(code int, path string) error {
	got := fmt.Sprintf("GET %s: %d %s", path, code, http.StatusText(code))
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized:
		return errors.New(got + ": the token of --kubelet.token-file is not accepted; " +
			"has it expired, and does the kubelet run with --authentication-token-webhook?")
	case code == http.StatusForbidden && path == summaryPath:
		return errors.New(got + ": RBAC must let the service account get nodes/stats")
	case code == http.StatusForbidden:
		// Not a failure: before 1.33 it needs the right to run commands in pods, which is too much for labels.
		return fmt.Errorf("%s: RBAC must let the service account get nodes/pods, or where the kubelet is older than Kubernetes 1.33 "+
			"nodes/proxy, which also permits running commands in every pod of the cluster: %w", got, model.ErrUnsupported)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusNotImplemented:
		return fmt.Errorf("%s: %w", got, model.ErrUnsupported)
	case code >= 300 && code < 400:
		return errors.New(got + ": redirects are not followed; --kubelet.url must be the kubelet's own")
	}
	return errors.New(got)
}

func withRemedy(err error) error {
	var invalid x509.CertificateInvalidError
	var wrongHost x509.HostnameError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w; the kubelet's certificate must be renewed (or the clock is wrong), or accepted by "+
			"--kubelet.certificate-file", err)
	case errors.As(err, &wrongHost):
		return fmt.Errorf("%w; use the name that the certificate has in --kubelet.url, or "+
			"--kubelet.certificate-file", err)
	case errors.As(err, &unknown), errors.As(err, &invalid):
		return fmt.Errorf("%w; --kubelet.ca-file must hold the CA of the kubelet's certificate "+
			"(it is self-signed without serverTLSBootstrap: then --kubelet.certificate-file)", err)
	}
	return err
}

func readSmall(path string) ([]byte, error) {
	b, err := boundedfile.ReadFile(path, nil, maxFile+1)
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, err
}
