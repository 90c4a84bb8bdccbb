// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestHealthy: only an answer 200 of the configured address is healthy. accelscope doctor --health decides about
// everything else.
func TestHealthy(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for name, tt := range map[string]struct {
		listen, file string
		status       int
		want         bool
	}{
		"all interfaces":        {":" + port, "", 200, true},
		"all IPv4 interfaces":   {"0.0.0.0:" + port, "", 200, true},
		"all IPv6 interfaces":   {"[::]:" + port, "", 200, true},
		"one address":           {"127.0.0.1:" + port, "", 200, true},
		"not healthy":           {":" + port, "", 503, false},
		"needs a password":      {":" + port, "", 401, false},
		"another configuration": {":" + port, "x.yaml", 200, false},
		"several addresses":     {":" + port + ",:1", "", 200, false},
		"a host name":           {"localhost:" + port, "", 200, false},
		"not TCP":               {"vsock://:1", "", 200, false},
		"nobody listens":        {"127.0.0.1:1", "", 200, false},
		"hangs":                 {silent.Addr().String(), "", 200, false},
	} {
		t.Run(name, func(t *testing.T) {
			status = tt.status
			start := time.Now()
			for _, file := range []string{"ACCELSCOPE_CONFIG_FILE", "ACCELSCOPE_WEB_CONFIG_FILE"} {
				got := healthy(func(name string) string {
					return map[string]string{file: tt.file, "ACCELSCOPE_WEB_LISTEN_ADDRESS": tt.listen}[name]
				})
				if got != tt.want {
					t.Errorf("%v, want %v", got, tt.want)
				}
			}
			if took := time.Since(start); took > 20*time.Second { // 1 s each on an idle machine
				t.Errorf("took %v", took)
			}
		})
	}
}
