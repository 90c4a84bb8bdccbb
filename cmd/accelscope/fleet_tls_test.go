// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"encoding/json"
	"html"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/fleet/page"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/tests/fakes/authority"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// serveTLS serves a handler with a certificate of the authority, which is in prometheus.crt and prometheus.key.
func serveTLS(t *testing.T, a *authority.Authority, h http.Handler, clients tls.ClientAuthType) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{a.Local(t, "prometheus").Pair}, ClientAuth: clients, ClientCAs: a.Roots, MinVersion: tls.VersionTLS12,
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // failed handshakes are expected
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// guarded is a FAKE of a Prometheus behind a proxy that demands headers. It knows one node.
type guarded struct {
	headers map[string]string

	mu       sync.Mutex
	requests int
	refused  []string
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests++
	for name, v := range g.headers {
		if r.Header.Get(name) != v {
			g.refused = append(g.refused, name+": "+r.Header.Get(name))
			http.Error(w, "not for you", http.StatusUnauthorized)
			return
		}
	}
	result := []any{}
	if strings.HasPrefix(r.FormValue("query"), "max by (instance) (accelscope_build_info)") {
		result = append(result, map[string]any{"metric": map[string]string{"instance": "guarded-node"}, "value": []any{time.Now().Unix(), "1"}})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "vector", "result": result}})
}

// answered returns the number of requests and those that lacked a header.
func (g *guarded) answered() (requests int, refused []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests, g.refused
}

// TestFleetOverTLS runs accelscope fleet with certificates on both sides: of its own page, and of Prometheus.
func TestFleetOverTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := build(t)
	web, client := secure(t)
	a, foreign := authority.New(t), authority.New(t)
	const bearer, tenant, basic = "Bearer s3cret", "team-a", "Basic dTpzM2NyZXQ=" // u:s3cret
	a.Write(t, "token", "s3cret")
	a.Write(t, "wrong", "s3cret-of-another")
	const credentials = "authorization: {credentials_file: token}\nhttp_headers: {X-Scope-OrgID: {values: [team-a]}}\n"
	other := &guarded{}
	elsewhere := serveTLS(t, a, other, tls.NoClientCert) // another host: its port differs
	for name, c := range map[string]struct {
		config  string
		headers map[string]string
		clients tls.ClientAuthType
		handler http.Handler
		want    string // a problem; empty: it answers
		reached bool   // although there is a problem
	}{
		"a bearer token and a tenant": {
			config:  credentials + "tls_config: {ca_file: ca.crt}\n",
			headers: map[string]string{"Authorization": bearer, "X-Scope-OrgID": tenant},
		},
		"a password": {
			config:  "basic_auth: {username: u, password_file: token}\ntls_config: {ca_file: ca.crt}\n",
			headers: map[string]string{"Authorization": basic},
		},
		"a certificate of the client": {
			config: "tls_config: {ca_file: ca.crt, cert_file: prometheus.crt, key_file: prometheus.key}\n", clients: tls.RequireAndVerifyClientCert,
		},
		"no certificate of the client": {
			config: credentials + "tls_config: {ca_file: ca.crt}\n", clients: tls.RequireAndVerifyClientCert, want: "certificate required",
		},
		"another token": {
			config:  "authorization: {credentials_file: wrong}\ntls_config: {ca_file: ca.crt}\n",
			headers: map[string]string{"Authorization": bearer}, want: "401", reached: true,
		},
		"an unknown CA": {
			config: credentials + "tls_config: {ca_file: " + foreign.CAFile + "}\n", want: "certificate signed by unknown authority",
		},
		"a CA of the system": {config: credentials, want: "certificate signed by unknown authority"},
		"another name":       {config: credentials + "tls_config: {ca_file: ca.crt, server_name: example.org}\n", want: "wanted to match example.org"},
		"a redirect": {
			config: credentials + "tls_config: {ca_file: ca.crt}\n", want: "307",
			handler: http.RedirectHandler(elsewhere.URL+"/api/v1/query", http.StatusTemporaryRedirect),
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guarded{headers: c.headers}
			if c.handler == nil {
				c.handler = g
			}
			s := serveTLS(t, a, c.handler, c.clients)
			file := a.Write(t, "client.yml", c.config)
			plain, stop := start(t, binary, "fleet", "--prometheus="+s.URL, "--prometheus.config.file="+file, "--web.config.file="+web)
			page := "https" + strings.TrimPrefix(plain, "http")
			code, _, body := fetch(t, client, page+"/", "right")
			text := html.UnescapeString(string(body))
			if code != http.StatusOK || strings.Contains(text, "s3cret") {
				t.Errorf("the page: %d %s", code, text)
			}
			_, problem, failed := strings.Cut(text, "Not answered</h2>")
			switch requests, refused := g.answered(); {
			case c.want == "" && (failed || !strings.Contains(text, "guarded-node") || requests < 20 || len(refused) > 0):
				t.Errorf("%d requests, refused %q: %s", requests, refused, problem)
			case c.want != "" && (!strings.Contains(problem, c.want) || strings.Contains(text, "guarded-node")):
				t.Errorf("no problem with %q: %s", c.want, text)
			case c.want != "" && !c.reached && requests > 0:
				t.Errorf("%d requests arrived", requests)
			}
			if code, _, body := fetch(t, client, plain+"/", "right"); code != http.StatusBadRequest {
				t.Errorf("without TLS: %d %s", code, body)
			}
			if _, err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if requests, _ := other.answered(); requests > 0 {
		t.Errorf("%d requests went to where a redirect leads", requests)
	}
	t.Run("every page asks for a password", func(t *testing.T) {
		s := serveTLS(t, a, &guarded{}, tls.NoClientCert)
		file := a.Write(t, "client.yml", "tls_config: {ca_file: ca.crt}\n")
		plain, stop := start(t, binary, "fleet", "--prometheus="+s.URL, "--prometheus.config.file="+file, "--web.config.file="+web,
			"--fleet.sensor-url=http://{instance}/")
		site := "https" + strings.TrimPrefix(plain, "http")
		routes := page.Handlers(page.Options{Matrix: new(matrix.Reader)})
		maps.Copy(routes, httpserver.ProbeRoutes(nil))
		if len(routes) < 7 {
			t.Fatal(len(routes))
		}
		for pattern := range routes {
			path := strings.TrimSuffix(strings.TrimPrefix(pattern, "GET "), "{$}")
			for _, password := range []string{"", "wrong"} {
				if code, _, body := fetch(t, client, site+path, password); code != http.StatusUnauthorized || string(body) != "Unauthorized\n" {
					t.Errorf("GET %s with password %q: %d %q", path, password, code, body)
				}
			}
			if code, _, body := fetch(t, client, site+path, "right"); code != http.StatusOK && code != http.StatusNotFound {
				t.Errorf("GET %s with the right password: %d %q", path, code, body)
			}
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestFleetOfPrometheusOverTLS: a real Prometheus with TLS and a password answers accelscope top.
func TestFleetOfPrometheusOverTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary, a, address := build(t), authority.New(t), freeAddress(t)
	a.Local(t, "server")         // of webConfig
	a.Write(t, "right", "right") // the password of webConfig
	a.Write(t, "wrong", "wrong")
	var output lines
	server := child.Command(t.Context(), "prometheus", "--config.file="+a.Write(t, "prometheus.yml", "global: {}\n"), "--storage.tsdb.path="+filepath.Join(a.Dir, "data"),
		"--web.listen-address="+address, "--web.config.file="+a.Write(t, "web.yml", webConfig))
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatalf("%v: install the Debian package prometheus (make deps)", err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	top := func(password string) string {
		file := a.Write(t, "client.yml", "basic_auth: {username: prometheus, password_file: "+password+"}\ntls_config: {ca_file: ca.crt}\n")
		out, err := child.Command(t.Context(), binary, "top", "--once", "--prometheus=https://"+address, "--prometheus.config.file="+file).CombinedOutput()
		if err == nil {
			t.Error("accelscope top succeeds without a node")
		}
		return string(out)
	}
	const answered = "prometheus has no series of accelscope"
	eventuallyTrue(t, "Prometheus answers", func() bool { return strings.Contains(top("right"), answered) })
	if text := top("wrong"); !strings.Contains(text, "401") || strings.Contains(text, answered) {
		t.Errorf("with a wrong password: %s", text)
	}
}
