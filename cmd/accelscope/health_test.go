// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/httpserver"
)

// health runs `accelscope doctor --health` with more arguments, and returns its output and its error.
func health(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), append([]string{"doctor", "--health"}, args...), &out, io.Discard)
	return out.String(), err
}

// listen serves /healthz as the sensor does, with a configuration of
// exporter-toolkit, and returns its address.
func listen(t *testing.T, config string, handler http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httpserver.New(handler, httpserver.NewClients(zap.NewNop()), zap.NewNop())
	flags := &web.FlagConfig{WebConfigFile: &config}
	done := make(chan error, 1)
	go func() { done <- web.Serve(l, server, flags, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return l.Addr().String()
}

func TestHealth(t *testing.T) {
	handler := http.NewServeMux()
	for pattern, probe := range httpserver.ProbeRoutes(nil) {
		handler.Handle(pattern, probe)
	}
	config, _ := secure(t) // TLS with an unknown CA and for another name, and a password
	dir := filepath.Dir(config)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certificate := "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
	mutual := "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
	for name, config := range map[string]string{
		"plain":             "",
		"empty":             write("empty.yaml", ""),
		"no TLS, a version": write("version.yaml", "tls_server_config:\n  min_version: TLS13\n"),
		"password":          write("password.yaml", webConfig[strings.Index(webConfig, "basic_auth_users"):]),
		"TLS":               write("tls.yaml", certificate),
		"TLS and password":  config,
		"mutual TLS 1.3":    write("mutual.yaml", certificate+mutual),
		"mutual TLS 1.2":    write("mutual12.yaml", certificate+mutual+"  max_version: TLS12\n"),
	} {
		t.Run(name, func(t *testing.T) {
			address := listen(t, config, handler)
			if out, err := health(t, "--web.listen-address="+address, "--web.config.file="+config); err != nil || out != "" {
				t.Errorf("%v, and printed %q", err, out)
			}
		})
	}
}

// The address comes from the same flags, environment and file as the sensor's address.
func TestHealthAddress(t *testing.T) {
	address := listen(t, "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			http.NotFound(w, r)
		}
	}))
	_, port, _ := net.SplitHostPort(address)
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	t.Setenv("ACCELSCOPE_WEB_LISTEN_ADDRESS", "vsock://:1,:"+port)
	if _, err := health(t); err != nil {
		t.Errorf("from the environment: %v", err)
	}
	t.Setenv("ACCELSCOPE_WEB_LISTEN_ADDRESS", "")
	os.Unsetenv("ACCELSCOPE_WEB_LISTEN_ADDRESS")
	file := filepath.Join(t.TempDir(), "accelscope.yaml")
	if err := os.WriteFile(file, []byte("web.listen-address: ['0.0.0.0:"+port+"']\nmetrics.compat: [lens]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := health(t, "--config.file="+file); err != nil {
		t.Errorf("from the file: %v", err)
	}
}

func TestNotHealthy(t *testing.T) {
	refused := listen(t, "", http.NotFoundHandler())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	if healthTimeout > 3*time.Second { // Kubernetes waits 5 s
		t.Errorf("it may take %v", healthTimeout)
	}
	secured, _ := secure(t)
	// A TLS server that rejects every client, like exporter-toolkit while it cannot read its certificate.
	broken, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("no certificate") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broken.Close() })
	go func() {
		for {
			c, err := broken.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	unreadable := filepath.Join(t.TempDir(), "none.yaml")
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"another server": {[]string{"--web.listen-address=" + refused}, "404"},
		"no listener":    {[]string{"--web.listen-address=127.0.0.1:1"}, "connection refused"},
		"hangs":          {[]string{"--web.listen-address=" + silent.Addr().String()}, "deadline"},
		"broken TLS":     {[]string{"--web.listen-address=" + broken.Addr().String(), "--web.config.file=" + secured}, "internal error"},
		"no TLS":         {[]string{"--web.listen-address=" + refused, "--web.config.file=" + secured}, "over https"},
		"no file":        {[]string{"--web.listen-address=" + refused, "--web.config.file=" + unreadable}, "none.yaml"},
		"no TCP":         {[]string{"--web.listen-address=vsock://:1"}, "HOST:PORT"},
		"two answers":    {[]string{"--json"}, "--health"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			out, err := health(t, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.want) || out != "" {
				t.Errorf("%v, and printed %q; want %q", err, out, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
			if took := time.Since(start); took > 20*time.Second { // 2.5 s on an idle machine
				t.Errorf("took %v", took)
			}
		})
	}
}
