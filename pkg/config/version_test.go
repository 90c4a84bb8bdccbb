// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"io"
	"testing"
)

// TestVersion checks that --version prints the version, before and after a command.
func TestVersion(t *testing.T) {
	const version = "accelscope v1.2.3 (revision 0)"
	for _, args := range [][]string{{"--version"}, {"run", "--version"}, {"top", "--version"}} {
		var got bytes.Buffer
		status := -1
		_, _, err := Parse(args, version, &got, io.Discard, func(s int) { status = s })
		if err != nil || status != 0 || got.String() != version+"\n" {
			t.Errorf("%q: status %d, %q, %v; want %q", args, status, &got, err, version)
		}
	}
	t.Setenv("ACCELSCOPE_VERSION", "true") // as a deployment may name its image
	if _, _, err := Parse(nil, version, io.Discard, io.Discard, func(int) { t.Error("it exits because of the environment") }); err != nil {
		t.Error(err)
	}
}
