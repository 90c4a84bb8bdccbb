// SPDX-License-Identifier: Apache-2.0

package child

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/silent"
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
}

// TestStuck: a program in uninterruptible sleep does not end when it is killed. Run returns without it, and does not
// start another until it has ended.
func TestStuck(t *testing.T) {
	dir, answer := silent.Mount(t, "silent")
	r := &Runner{MaxStuck: 1, Grace: 100 * time.Millisecond}
	echo := Program{Path: "/bin/echo", Args: []string{"ended"}, MaxStdout: 10}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err := r.Run(ctx, Program{Path: "/bin/cat", Args: []string{filepath.Join(dir, "file")}})
	if !errors.Is(err, ErrStuck) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, _, err := r.Run(t.Context(), echo); !errors.Is(err, ErrTooManyStuck) {
		t.Error(err)
	}
	answer()
	for end := time.Now().Add(30 * time.Second); r.stuck.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program has not ended in 30 s")
		}
	}
	if out, _, err := r.Run(t.Context(), echo); err != nil || string(out) != "ended\n" {
		t.Errorf("%q, %v", out, err)
	}
}
