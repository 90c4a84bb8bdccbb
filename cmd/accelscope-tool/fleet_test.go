// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/config"
)

// TestRightsOf: a key that signs nothing, or that is short, is an error at the start.
func TestRightsOf(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := file(strings.Repeat("k", 32) + "\n")
	for _, c := range []struct {
		header, file string
		lifetime     time.Duration
		err          string
	}{
		{"", "", time.Hour, ""},
		{"X-Namespaces", "", time.Hour, ""},
		{"X-Namespaces", good, time.Hour, ""},
		{"", good, time.Hour, "needs --fleet.namespaces-header"},
		{"X-Namespaces", file(strings.Repeat("k", 31) + "\n"), time.Hour, "has 31 bytes"},
		{"X-Namespaces", file(""), time.Hour, "has 0 bytes"},
		{"X-Namespaces", good + "none", time.Hour, "no such file"},
		{"X-Namespaces", good, 0, "is not positive"},
	} {
		r, err := rightsOf(&config.FleetCommand{NamespacesHeader: c.header, LinkKeyFile: c.file, LinkLifetime: c.lifetime})
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: error %v", c, err)
			}
		case err != nil || r.Header != c.header || (len(r.Key) == 32) != (c.file != ""):
			t.Errorf("%+v: %+v, error %v", c, r, err)
		}
	}
}
