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
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
)

// healthTimeout is all the time that the check takes: less than what whoever
// starts it allows.
const healthTimeout = 2500 * time.Millisecond

// healthFlags are what doctor must know of a sensor that runs, to ask it.
type healthFlags struct {
	listenFlags
	Health bool `name:"health" xor:"answer" help:"Only ask the sensor that runs here whether it answers; exit 0 or 1."`
}

// check asks the sensor's own /healthz. It is for the health check of a
// container, which has no shell and no client of HTTP: silent where all is well.
func (f *healthFlags) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	address, err := f.ownAddress()
	if err != nil {
		return err
	}
	scheme := "http"
	if secured, err := usesTLS(f.WebConfig); err != nil {
		return err
	} else if secured {
		scheme = "https"
	}
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			// Whatever the URL says: it is the sensor that is asked, never a proxy.
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
			// Who signed the certificate, and for which name, is for others to check: this is the same machine, and
			// nothing is sent that anybody may not read.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
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
	case refusesStrangers(err):
		return nil
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // without the URL, which nobody asked
	}
	return fmt.Errorf("not healthy: no answer at %s over %s: %w (if that is not where the sensor listens: set "+
		"ACCELSCOPE_WEB_LISTEN_ADDRESS and ACCELSCOPE_WEB_CONFIG_FILE, or the configuration file, for both)", address, scheme, err)
}

// judgeHealth takes for an answer what comes before /healthz, too: the check
// has no password, and may have come too often.
func judgeHealth(address string, resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusTooManyRequests:
		return nil
	}
	return fmt.Errorf("not healthy: %s answers %s", address, resp.Status)
}

// refusesStrangers says that a server of TLS answered, and wants a certificate
// of the client, which the check has not.
func refusesStrangers(err error) bool {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return false
	}
	switch remote.Err.Error() { // crypto/tls does not export its alerts
	case "tls: certificate required", "tls: handshake failure": // TLS 1.3, and 1.2, which has no better word
		return true
	}
	return false
}

// ownAddress is the first that can be asked. One without a host, or of every
// interface, is this machine to the dialer, too.
func (f *healthFlags) ownAddress() (string, error) {
	for _, address := range f.ListenAddress {
		if !strings.Contains(address, "://") {
			return address, nil
		}
	}
	return "", fmt.Errorf("--health: none of --web.listen-address=%s is HOST:PORT", strings.Join(f.ListenAddress, ","))
}

// usesTLS reads as much of a configuration of exporter-toolkit as tells whether
// it switches TLS on.
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
