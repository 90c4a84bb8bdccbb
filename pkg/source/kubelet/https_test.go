// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/authority"
)

func TestNew(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, secret)
	for name, tt := range map[string]struct {
		options Options
		want    string // the URL, or "" for no URL
		fails   bool
	}{
		"a pod":            {Options{NodeIP: "10.0.0.7", TokenFile: token}, "https://10.0.0.7:10250", false},
		"a pod, IPv6":      {Options{NodeIP: "fd00::7", TokenFile: token}, "https://[fd00::7]:10250", false},
		"no token":         {Options{NodeIP: "10.0.0.7", TokenFile: token + "x"}, "", false},
		"no token file":    {Options{NodeIP: "10.0.0.7"}, "", false},
		"no node":          {Options{TokenFile: token}, "", false},
		"a URL":            {Options{URL: "https://gpu01:1/"}, "https://gpu01:1/", false},
		"through a proxy":  {Options{URL: "https://api/nodes/gpu01/proxy"}, "https://api/nodes/gpu01/proxy", false},
		"no TLS":           {Options{URL: "http://gpu01:10255"}, "", true},
		"no scheme":        {Options{URL: "gpu01:10250"}, "", true},
		"no host":          {Options{URL: "https://:10250"}, "", true},
		"with a password":  {Options{URL: "https://me:" + secret + "@gpu01"}, "", true},
		"with a query":     {Options{URL: "https://gpu01?token=" + secret}, "", true},
		"a password in \n": {Options{URL: "https://me:" + secret + "\n@gpu01"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(tt.options)
			if (err != nil) != tt.fails || err != nil && strings.Contains(err.Error(), secret) {
				t.Fatalf("error %v", err)
			}
			got := ""
			if err == nil && s.https != nil {
				got = s.https.base.String()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestToken: the error for a wrong token contains a remedy, and a rotated token is used.
func TestToken(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	s := open(t, a.options())
	wrong := func(remedy string) {
		t.Helper()
		got, err := s.Read(limit(t, time.Minute))
		if err == nil || !strings.Contains(err.Error(), remedy) || strings.Contains(err.Error(), "stale") {
			t.Errorf("error %v, want %q in it", err, remedy)
		}
		if st, _ := state(t, got, "pods"); st != model.StateFailed {
			t.Errorf("state %s", st)
		}
	}
	right := func() {
		t.Helper()
		if got, err := s.Read(limit(t, time.Minute)); err != nil || len(got.Pods) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	right()
	a.setToken(t, "rotated")
	right()
	writeFile(t, a.tokenFile, "stale")
	wrong("--authentication-token-webhook")
	writeFile(t, a.tokenFile, "stale\r\nHost: elsewhere")
	wrong("invalid header field value")
	if err := os.Remove(a.tokenFile); err != nil {
		t.Fatal(err)
	}
	wrong("--kubelet.token-file")
	writeFile(t, a.tokenFile, strings.Repeat("x", maxFile+1))
	wrong("larger than")
	a.setToken(t, "again")
	right()
}

// TestStatus checks the error of each status and its remedy. Errors and logs leave out the body, which may contain a
// token.
func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		code          int
		pods, summary string // in the error
		state         model.State
	}{
		{http.StatusUnauthorized, "is not accepted", "is not accepted", model.StateFailed},
		{http.StatusNotFound, "404", "404", model.StateUnsupported},
		{http.StatusMethodNotAllowed, "405", "405", model.StateUnsupported},
		{http.StatusInternalServerError, "500 Internal", "500 Internal", model.StateFailed},
		{http.StatusTooManyRequests, "429", "429", model.StateFailed},
		{http.StatusNoContent, "204", "204", model.StateFailed},
		{299, "299", "299", model.StateFailed},
	} {
		t.Run(fmt.Sprint(tt.code), func(t *testing.T) {
			a := serveAPI(t, "", "")
			refuse := func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(tt.code)
				_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
			}
			a.setPods(refuse)
			a.setSummary(refuse)
			core, logs := observer.New(zap.DebugLevel)
			o := a.options()
			o.Logger = zap.New(core)
			got, err := open(t, o).Read(limit(t, time.Minute))
			if err == nil || errors.Is(err, model.ErrUnsupported) != (tt.state == model.StateUnsupported) {
				t.Fatalf("error %v", err)
			}
			for part, text := range map[string]string{"pods": tt.pods, "summary": tt.summary} {
				if st, reason := state(t, got, part); st != tt.state || !strings.Contains(reason, text) {
					t.Errorf("%s: %s %q, want %s with %q", part, st, reason, tt.state, text)
				}
			}
			if text := fmt.Sprint(err, got, logs.All()); strings.Contains(text, secret) {
				t.Errorf("the text contains the token: %s", text)
			}
		})
	}
}

// TestPodsRefusedBefore133: a kubelet before Kubernetes 1.33 always refuses /pods to the manifests' service account.
// This is not a failure: it would cause an alert on every node.
func TestPodsRefusedBefore133(t *testing.T) {
	a := serveAPI(t, "", oneSummary(1))
	refuse := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }
	a.setPods(refuse)
	got, err := open(t, a.options()).Read(limit(t, time.Minute))
	if st, reason := state(t, got, "pods"); err != nil || st != model.StateUnsupported || !strings.Contains(reason, "nodes/proxy") {
		t.Errorf("%v; pods %s %q", err, st, reason)
	}
	a.setSummary(refuse)
	got, err = open(t, a.options()).Read(limit(t, time.Minute))
	if st, reason := state(t, got, "summary"); err == nil || st != model.StateFailed || !strings.Contains(reason, "get nodes/stats") {
		t.Errorf("%v; summary %s %q", err, st, reason)
	}
}

// TestRedirect: only the kubelet receives the token.
func TestRedirect(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	var asked atomic.Int32
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	a.setPods(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	o := a.options()
	o.Insecure, o.SendToken = true, true // else the certificate would prevent the request
	got, err := open(t, o).Read(limit(t, time.Minute))
	if err == nil || !strings.Contains(err.Error(), "redirects are not followed") || asked.Load() != 0 {
		t.Errorf("%v, the other received %d requests", err, asked.Load())
	}
	if len(got.PodStorage) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestCertificates checks the accepted certificates, and the remedies for the others.
func TestCertificates(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	other := authority.New(t)
	soon := time.Now().Add(time.Hour)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "ca.crt")
		writeFile(t, path, text)
		return path
	}
	for name, tt := range map[string]struct {
		by       *authority.Authority
		address  string
		until    time.Time
		caFile   string
		insecure bool
		wrong    string // in the error; empty if the certificate is accepted
	}{
		"good":        {a.ca, "127.0.0.1", soon, a.caFile, false, ""},
		"one of two":  {a.ca, "127.0.0.1", soon, file(string(other.PEM) + string(a.ca.PEM)), false, ""},
		"expired":     {a.ca, "127.0.0.1", time.Now().Add(-time.Minute), a.caFile, false, "must be renewed"},
		"wrong CA":    {other, "127.0.0.1", soon, a.caFile, false, "--kubelet.ca-file must hold"},
		"other name":  {a.ca, "10.9.8.7", soon, a.caFile, false, "use the name that the certificate has"},
		"system's CA": {a.ca, "127.0.0.1", soon, "", false, "--kubelet.ca-file must hold"},
		"no CA file":  {a.ca, "127.0.0.1", soon, "/nonexistent/ca.crt", false, "--kubelet.ca-file names"},
		"no CA in it": {a.ca, "127.0.0.1", soon, file("# empty\n"), false, "no certificate in"},
		"insecure":    {other, "10.9.8.7", time.Now().Add(-time.Minute), "/nonexistent/ca.crt", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			certificate := tt.by.Issue(t, "kubelet", tt.address, tt.until).Pair
			a.certificate.Store(&certificate)
			o := a.options()
			o.CAFile, o.Insecure, o.SendToken = tt.caFile, tt.insecure, tt.insecure
			got, err := open(t, o).Read(limit(t, time.Minute))
			switch {
			case tt.wrong == "" && (err != nil || len(got.Pods) != 1 || len(got.PodStorage) != 1):
				t.Errorf("%+v, %v", got, err)
			case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong) || got.Pods != nil):
				t.Errorf("error %v, want %q in it", err, tt.wrong)
			case tt.wrong != "" && strings.Contains(err.Error(), secret):
				t.Errorf("the error contains the token: %v", err)
			}
		})
	}
}

// TestPinned: only the kubelet's own certificate is accepted, whatever its name. The file may change.
func TestPinned(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	soon := time.Now().Add(time.Hour)
	own, other := authority.New(t).Issue(t, "kubelet", "10.9.8.7", soon), authority.New(t).Local(t, "kubelet")
	a.certificate.Store(&own.Pair)
	o := a.options()
	o.CAFile, o.CertificateFile = "/nonexistent/ca.crt", filepath.Join(t.TempDir(), "kubelet.crt")
	s := open(t, o)
	for _, step := range []struct{ file, wrong string }{
		{"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n" + string(own.PEM), ""},
		{string(other.PEM), "another certificate"},
		{string(other.PEM) + string(own.PEM), ""},
		{"# empty\n", "no certificate in"},
	} {
		writeFile(t, o.CertificateFile, step.file)
		got, err := s.Read(limit(t, time.Minute))
		switch {
		case step.wrong == "" && (err != nil || len(got.Pods) != 1):
			t.Errorf("%q: %v", step.file, err)
		case step.wrong != "" && (err == nil || !strings.Contains(err.Error(), step.wrong)):
			t.Errorf("%q: %v, want %q in it", step.file, err, step.wrong)
		}
	}
}

// TestTokenIsKept: the token is sent over an unverified connection only on request.
func TestTokenIsKept(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	o := a.options()
	o.Insecure = true
	got, err := open(t, o).Read(limit(t, time.Minute))
	if err == nil || !strings.Contains(err.Error(), "--kubelet.insecure-send-token") || got.Pods != nil || got.PodStorage != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestNewAuthority has the kubelet use a certificate of another CA, and updates the CA file later.
func TestNewAuthority(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	s := open(t, a.options())
	if _, err := s.Read(limit(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	other := authority.New(t)
	certificate := other.Local(t, "kubelet").Pair
	a.certificate.Store(&certificate)
	a.close()
	if _, err := s.Read(limit(t, time.Minute)); err == nil {
		t.Error("no error for a certificate of an unknown CA")
	}
	writeFile(t, a.caFile, string(other.PEM))
	if got, err := s.Read(limit(t, time.Minute)); err != nil || len(got.Pods) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestConnections: connections are kept between reads and made again when the kubelet closes them.
func TestConnections(t *testing.T) {
	a := serveAPI(t, onePod("train"), oneSummary(1))
	s := open(t, a.options())
	for range 5 {
		if _, err := s.Read(limit(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if n := a.newConnections.Load(); n > 2 {
		t.Errorf("%d connections for 5 reads, want at most 2", n)
	}
	a.close()
	if _, err := s.Read(limit(t, time.Minute)); err != nil {
		t.Errorf("after all connections were dropped: %v", err)
	}
}
