// SPDX-License-Identifier: Apache-2.0

// Package webtest checks pages.
package webtest

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// MaxBytes is what the first view may have, without compression.
const MaxBytes = 150_000

// Get requests a page, which must have status 200.
func Get(t testing.TB, h http.Handler, target string) (header http.Header, body string) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", target, answer.Code, answer.Body)
	}
	return answer.Header(), answer.Body.String()
}

// Inert checks that a page has no code, no style and no address of another host, but those that begin with a prefix.
func Inert(t *testing.T, target, body string, prefixes ...string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for e := range root.Descendants() {
		if e.Type == html.TextNode && strings.ContainsAny(e.Data, "\u202e\x00") {
			t.Errorf("%s shows characters that change how others are shown: %q", target, e.Data)
		}
		if e.Type != html.ElementNode {
			continue
		}
		switch e.Data {
		case "script":
			scripts++
		case "style", "img", "iframe", "object", "embed", "base":
			t.Errorf("%s has <%s>", target, e.Data)
		}
		for _, a := range e.Attr {
			runbook := strings.HasPrefix(a.Val, "https://github.com/accelscope/accelscope/")
			switch {
			case strings.HasPrefix(a.Key, "on") || a.Key == "style":
				t.Errorf("%s has %s=%q", target, a.Key, a.Val)
			case (a.Key == "href" || a.Key == "src" || a.Key == "action") && !runbook &&
				!strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "#") &&
				!slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(a.Val, p) }):
				t.Errorf("%s links to %q", target, a.Val)
			}
		}
	}
	if scripts != 1 {
		t.Errorf("%s has %d scripts", target, scripts)
	}
}
