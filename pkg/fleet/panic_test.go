// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"net/http"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/safely"
)

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("a test") }

// TestPanic: a panic while an answer is read reaches the request that asks, whose server survives it, and others have no answer.
func TestPanic(t *testing.T) {
	connection, err := Connect("http://prometheus.example", "")
	if err != nil {
		t.Fatal(err)
	}
	connection.client = &http.Client{Transport: panicking{}}
	r := NewReader(connection)
	for name, ask := range map[string]func() []string{
		"state":  func() []string { return r.Read().Problems },
		"job":    func() []string { _, problems := r.Job(t.Context(), &State{}, JobName{Name: "j"}); return problems },
		"search": func() []string { _, problems := r.Search(t.Context(), "train"); return problems },
	} {
		if safely.Try(func() { ask() }) == nil {
			t.Errorf("%s: no panic", name)
		}
		if got := ask(); !slices.Equal(got, []string{"no answer"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
