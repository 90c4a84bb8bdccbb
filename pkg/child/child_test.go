// SPDX-License-Identifier: Apache-2.0

package child

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	sh := func(script string) Program {
		return Program{Path: "/bin/sh", Args: []string{"-c", script}, MaxStdout: 10, MaxStderr: 5}
	}
	r := &Runner{MaxStuck: 1}
	if out, complaints, err := r.Run(t.Context(), sh("echo 123456789; echo abcdefgh >&2")); err != nil ||
		string(out) != "123456789\n" || string(complaints) != "abcde" {
		t.Errorf("%q, %q, %v", out, complaints, err)
	}
	if _, _, err := r.Run(t.Context(), sh("while echo 12345678901; do :; done")); !errors.Is(err, ErrOutput) {
		t.Error(err)
	}
	if _, _, err := r.Run(t.Context(), Program{Path: "/nowhere"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	out, _, err := r.Run(ctx, sh("echo before; sleep 1000 & sleep 1000"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(string(out), "before") {
		t.Errorf("%q, %v", out, err)
	}
	r.stuck.Store(1) // no program can be made to ignore SIGKILL here
	if _, _, err := r.Run(t.Context(), sh("echo")); !errors.Is(err, ErrTooManyStuck) {
		t.Error(err)
	}
}
