// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/pkg/config"
)

// healthTimeout limits the whole check. It is less than what Docker and Kubernetes allow.
const healthTimeout = 2500 * time.Millisecond

// checkHealth requests /healthz of the sensor. It serves as the health check of a container that has no shell and no HTTP
// client, and prints nothing if the sensor is healthy.
func checkHealth(ctx context.Context, f *config.ListenFlags) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	address, err := ownAddress(f.ListenAddress)
	if err != nil {
		return err
	}
	scheme := "http"
	if secured, err := usesTLS(f.WebConfig); err != nil {
		return err
	} else if secured {
		scheme = "https"
	}
	var wanted atomic.Bool // the server asks for a certificate, which the check lacks
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			// Always dial the sensor, never a proxy.
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
			TLSClientConfig: &tls.Config{
				// The certificate is not checked: the sensor is on this machine, and the request holds no secret.
				InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // see above
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					wanted.Store(true)
					return new(tls.Certificate), nil
				},
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://localhost/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	switch {
	case err == nil:
		defer resp.Body.Close()
		return judgeHealth(address, resp)
	case wanted.Load() && isAlert(err):
		return nil // the server answered, and demands a certificate
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // without the URL, which is not the user's
	}
	return fmt.Errorf("not healthy: no answer at %s over %s: %w (if that is not where the sensor listens: set "+
		"ACCELSCOPE_WEB_LISTEN_ADDRESS and ACCELSCOPE_WEB_CONFIG_FILE, or the configuration file, for both)", address, scheme, err)
}

// judgeHealth accepts refusals of authentication and of the rate limit: the check has no password, and the sensor runs.
func judgeHealth(address string, resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusTooManyRequests:
		return nil
	}
	return fmt.Errorf("not healthy: %s answers %s", address, resp.Status)
}

// isAlert reports whether err is a TLS alert from the server. The type of the alert is private to crypto/tls.
func isAlert(err error) bool {
	var remote *net.OpError
	return errors.As(err, &remote) && remote.Op == "remote error"
}

// ownAddress returns the first listen address that can be dialed. The dialer takes an address without a host, or of all
// interfaces, as this machine.
func ownAddress(addresses []string) (string, error) {
	for _, address := range addresses {
		if !strings.Contains(address, "://") {
			return address, nil
		}
	}
	return "", fmt.Errorf("--health: none of --web.listen-address=%s is HOST:PORT", strings.Join(addresses, ","))
}

// usesTLS reports whether a configuration file of exporter-toolkit enables TLS.
func usesTLS(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("--web.config.file: %w", err)
	}
	var config struct {
		TLS web.TLSConfig `yaml:"tls_server_config"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return false, fmt.Errorf("--web.config.file=%s: %w", path, err)
	}
	return config.TLS.IsEnabled(), nil
}
