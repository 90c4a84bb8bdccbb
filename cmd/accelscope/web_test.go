// SPDX-License-Identifier: Apache-2.0

package main

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/tests/fakes/authority"
	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/openapi"
)

// webConfig permits the user prometheus with the password "right".
const webConfig = `tls_server_config:
  cert_file: server.crt
  key_file: server.key
basic_auth_users:
  prometheus: $2a$04$7B53CEb./F6zOdNhFUpqT.la203sM0N2yIlh.BZ5tB7PkPPTTCxrG
`

// secure writes a certificate, its key and webConfig. The client it returns trusts only that certificate.
func secure(t *testing.T) (config string, client *http.Client) {
	t.Helper()
	a := authority.New(t)
	a.Local(t, "server")
	return a.Write(t, "web.yaml", webConfig), a.Client(t)
}

// fetch sends a request as the user prometheus; without a password it sends no user.
func fetch(t *testing.T, c *http.Client, url, password string, headers ...string) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		req.SetBasicAuth("prometheus", password)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}

// negotiate requests every format, compressed and not, and returns the families of the protobuf format.
func negotiate(t *testing.T, c *http.Client, url string) map[string]*dto.MetricFamily {
	t.Helper()
	families := map[string]*dto.MetricFamily{}
	for _, tt := range []struct{ accept, contentType string }{
		{"text/plain;version=0.0.4", "text/plain; version=0.0.4"},
		{"application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=1.0.0"},
		{
			"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
			"application/vnd.google.protobuf",
		},
	} {
		for _, coding := range []string{"identity", "gzip"} {
			code, header, body := fetch(t, c, url, "right", "Accept", tt.accept, "Accept-Encoding", coding)
			if code != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), tt.contentType) ||
				(header.Get("Content-Encoding") == "gzip") != (coding == "gzip") {
				t.Fatalf("%s, %s: %d, %v", tt.accept, coding, code, header)
			}
			text := io.Reader(strings.NewReader(string(body)))
			if coding == "gzip" {
				var err error
				if text, err = gzip.NewReader(text); err != nil {
					t.Fatal(err)
				}
			}
			count, err := decode(text, tt.contentType, families)
			if err != nil || count == 0 {
				t.Errorf("%s, %s: %d families, %v", tt.accept, coding, count, err)
			}
		}
	}
	return families
}

// decode counts the families of one answer, and keeps protobuf's families.
func decode(r io.Reader, contentType string, families map[string]*dto.MetricFamily) (int, error) {
	switch {
	case strings.HasPrefix(contentType, "text/plain"):
		parser := expfmt.NewTextParser(model.UTF8Validation)
		parsed, err := parser.TextToMetricFamilies(r)
		return len(parsed), err
	case strings.HasPrefix(contentType, "application/openmetrics-text"):
		text, err := io.ReadAll(r)
		if err == nil && !strings.HasSuffix(string(text), "\n# EOF\n") {
			err = errors.New("no # EOF")
		}
		return strings.Count(string(text), "# TYPE "), err
	}
	decoder := expfmt.NewDecoder(r, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for count := 0; ; count++ {
		var mf dto.MetricFamily
		if err := decoder.Decode(&mf); errors.Is(err, io.EOF) {
			return count, nil
		} else if err != nil {
			return count, err
		}
		families[mf.GetName()] = &mf
	}
}

// TestWebConfig runs the program with TLS and basic auth, on a fake node, a tree of files without verbs.
func TestWebConfig(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := build(t)

	t.Run("TLS and authentication", func(t *testing.T) {
		config, client := secure(t)
		_, args := fakeNode(t)
		args = append(args, "--collector.gpu") // the node has none
		plain, stop := start(t, binary, append(args, "--web.config.file="+config)...)
		url := "https" + strings.TrimPrefix(plain, "http")
		for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			if code, _, body := fetch(t, client, url+"/readyz", "right"); code == http.StatusOK {
				break
			} else if time.Since(began) > time.Minute {
				t.Fatalf("not ready in a minute: %d %s", code, body)
			}
		}
		// Requests whose answers contain other tenants' data, and all others.
		_, _, text := fetch(t, client, url+"/openapi.yaml", "right")
		described := openapi.Load(t, text)
		for _, path := range append(described.Paths(), "/nothing") {
			for _, password := range []string{"", "wrong"} {
				code, header, body := fetch(t, client, url+path, password)
				if code != http.StatusUnauthorized || string(body) != "Unauthorized\n" {
					t.Errorf("GET %s with password %q: %d %q, want 401 and no more", path, password, code, body)
				}
				if err := described.Check(t, path, code, header, body); err != nil && path != "/nothing" {
					t.Error(err)
				}
			}
		}
		// The node has an HCA, no GPU, no probe that lists peers, and reads neither a fabric nor the kernel log nor ioctls nor launches of
		// collectives, and sends no events.
		for _, path := range described.Paths() {
			want := http.StatusOK
			switch path {
			case "/gpuDriverVersion":
				want = http.StatusNotFound
			case api.PeersPath, api.FaultsPath, api.EventsPath, api.TasksPath, api.FabricPath, api.FabricPath + ".dot",
				api.CollectivesPath:
				want = http.StatusServiceUnavailable
			}
			code, header, body := fetch(t, client, url+path, "right")
			if code != want {
				t.Errorf("GET %s with the right password: %d, want %d\n%s", path, code, want, body)
			}
			if err := described.Check(t, path, code, header, body); err != nil {
				t.Errorf("GET %s: %v", path, err)
			}
		}
		if code, _, body := fetch(t, client, plain+"/metrics", "right"); code != http.StatusBadRequest {
			t.Errorf("GET /metrics without TLS: %d %q, want 400", code, body)
		}
		if families := negotiate(t, client, url+"/metrics"); families["infiniband_port_receive_data_bytes_total"] == nil {
			t.Errorf("no received bytes among %d families of protobuf", len(families))
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	})

	t.Run("a broken file", func(t *testing.T) {
		tests := map[string]struct{ config, want string }{
			"no certificate":        {"tls_server_config: {cert_file: none.pem, key_file: none.key}\n", "none.pem: no such file"},
			"a certificate, no key": {"tls_server_config: {cert_file: none.pem}\n", "missing one of key or key_file"},
			"a password, no hash":   {"basic_auth_users: {prometheus: right}\n", "bcrypt"},
			"unknown key":           {"basic_auth: {}\n", "basic_auth"},
			"not YAML":              {"{", "yaml: line 1"},
			"no file":               {"", "no such file or directory"},
		}
		for name, tt := range tests {
			t.Run(name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "web.yaml")
				if tt.config != "" {
					if err := os.WriteFile(path, []byte(tt.config), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				out, err := child.Command(ctx, binary, "--no-collector.probe", "--web.listen-address=127.0.0.1:0",
					"--web.config.file="+path).CombinedOutput()
				text := string(out)
				if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
					t.Errorf("%v, want exit status 1", err)
				}
				if !strings.HasPrefix(text, "accelscope: error: --web.config.file="+path+": ") ||
					!strings.Contains(text, tt.want) || strings.Count(text, "\n") > 2 {
					t.Errorf("printed %q, want one error with %q", text, tt.want)
				}
			})
		}
	})

	// The path that serves the metrics shows which setting applies.
	t.Run("precedence", func(t *testing.T) {
		_, args := fakeNode(t)
		file := filepath.Join(t.TempDir(), "accelscope.yaml")
		if err := os.WriteFile(file, []byte("web.telemetry-path: /file\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config.file="+file)
		served := func(path string, args ...string) {
			t.Helper()
			url, stop := start(t, binary, args...)
			for _, p := range []string{"/metrics", "/file", "/environment", "/flag"} {
				if code, _, _ := get(t, url+p, ""); (code == http.StatusOK) != (p == path) {
					t.Errorf("GET %s: %d, want the metrics at %s", p, code, path)
				}
			}
			if _, err := stop(); err != nil {
				t.Error(err)
			}
		}
		served("/file", args...)
		t.Setenv("ACCELSCOPE_WEB_TELEMETRY_PATH", "/environment")
		served("/environment", args...)
		served("/flag", append(args, "--web.telemetry-path=/flag")...)
	})
}
