// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// TestVersion checks that --version prints what the command prints, before and after a command.
func TestVersion(t *testing.T) {
	var want bytes.Buffer
	if err := (versionCmd{}).run(&want); err != nil || !strings.HasPrefix(want.String(), "accelscope ") {
		t.Fatalf("%q, %v", &want, err)
	}
	for _, args := range [][]string{{"--version"}, {"run", "--version"}, {"top", "--version"}} {
		var c cli
		var got bytes.Buffer
		status := -1
		_, err := parse(&c, args, &got, io.Discard, func(s int) { status = s })
		if err != nil || status != 0 || got.String() != want.String() {
			t.Errorf("%q: status %d, %q, %v; want %q", args, status, &got, err, &want)
		}
	}
	t.Setenv("ACCELSCOPE_VERSION", "true") // as a deployment may name its image
	if _, err := parse(new(cli), nil, io.Discard, io.Discard, func(int) { t.Error("it exits because of the environment") }); err != nil {
		t.Error(err)
	}
}
