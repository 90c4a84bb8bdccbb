// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestOnNode(t *testing.T) {
	for text, want := range map[string]bool{
		"http://127.0.0.1:9847": true, "http://localhost:1/metrics": true, "https://[::1]:9847": true, "http://10.0.0.1:9847": false,
		"http://node7:9847": false,
	} {
		c, err := New(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.OnNode(); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// TestLargeAnswer: of an answer, maxBody bytes are read.
func TestLargeAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range maxBody>>20 + 1 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	defer server.Close()
	c, err := New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.http.Timeout = 0 // the machine may be slow
	if body, err := c.Get(t.Context(), "/", nil); err != nil || len(body) != maxBody {
		t.Errorf("%d bytes, %v, want %d", len(body), err, maxBody)
	}
}
