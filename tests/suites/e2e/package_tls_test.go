// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"net/http"
	"os"
	"testing"

	"github.com/accelscope/accelscope/tests/fakes/authority"
)

// tls: the settings of web.yaml take effect under the unit.
func (d *deployment) tls(t *testing.T) {
	client := certificate(t)
	const hash = `$2a$04$7B53CEb./F6zOdNhFUpqT.la203sM0N2yIlh.BZ5tB7PkPPTTCxrG` // bcrypt hash of "right"
	web := "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\nbasic_auth_users: {prometheus: " + hash + "}\n"
	if err := os.WriteFile("/etc/accelscope/web.yaml", []byte(web), 0o640); err != nil {
		t.Fatal(err)
	}
	edit(t, config, "#web.config.file: /etc/accelscope/web.yaml", "web.config.file: /etc/accelscope/web.yaml")
	sh(t, "systemctl", "restart", unit)
	for password, want := range map[string]int{"right": http.StatusOK, "wrong": http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:9847/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("prometheus", password)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("with the %s password: %s", password, res.Status)
		}
	}
	if res, err := http.Get("http://127.0.0.1:9847/metrics"); err == nil {
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			t.Error("it also answers without TLS")
		}
	}
}

// certificate writes a certificate with its key, and returns a client that trusts only its authority.
func certificate(t *testing.T) *http.Client {
	t.Helper()
	a := authority.New(t)
	server := a.Local(t, "server")
	for name, content := range map[string][]byte{"tls.crt": server.PEM, "tls.key": server.KeyPEM} {
		if err := os.WriteFile("/etc/accelscope/"+name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a.Client(t)
}
