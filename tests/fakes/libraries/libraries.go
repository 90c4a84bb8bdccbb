// SPDX-License-Identifier: Apache-2.0

// Package libraries serves tests of sources that probe libraries: it builds FAKES of libraries, and starts programs that use them.
package libraries

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Target is a file to compile, and the arguments of the compiler.
type Target struct {
	Path string
	Args []string
}

// Build compiles the sources in the folder fake, or copies the files of an earlier Build: tests need files of their own. builtVar names
// the directory of the earlier Build, for a guest without a compiler.
func Build(t testing.TB, sources fs.FS, builtVar string, targets []Target) {
	t.Helper()
	if before := os.Getenv(builtVar); before != "" {
		for _, to := range targets {
			text, err := os.ReadFile(filepath.Join(before, filepath.Base(to.Path)))
			if err == nil {
				err = os.WriteFile(to.Path, text, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	work := t.TempDir()
	if err := os.CopyFS(work, sources); err != nil {
		t.Fatal(err)
	}
	for _, to := range targets {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		gcc := child.Command(ctx, "gcc", append([]string{"-O2", "-fno-ipa-icf", "-Wall", "-Werror", "-o", to.Path}, to.Args...)...)
		gcc.Dir = filepath.Join(work, "fake")
		out, err := gcc.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
}
