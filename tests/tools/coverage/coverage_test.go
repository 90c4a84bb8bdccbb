// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestRun(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "profile")
	text := "mode: set\n" + module + "pkg/a/x.go:1.2,3.4 3 1\n" + module + "pkg/a/y.go:1.2,3.4 1 0\n" + module + "pkg/b/x.go:5.2,6.4 4 0\n" +
		module + "pkg/b/x.go:5.2,6.4 4 7\n"
	if err := os.WriteFile(profile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run([]string{profile}, &out); err != nil {
		t.Fatal(err)
	}
	if want := "- `pkg/a`: 75 % of 4\n- `pkg/b`: 100 % of 4\n- all: 88 % of 8\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if err := os.WriteFile(profile, []byte("mode: set\nnothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{profile}, &out); err == nil {
		t.Error("no profile, and no error")
	}
}

// TestTable checks that the list in docs/ has exactly the packages with statements.
func TestTable(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/internals/coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^- `((?:cmd|pkg)/[a-z0-9/-]+)`: [0-9]+ % of [0-9]+$").FindAllSubmatch(doc, -1) {
		rows = append(rows, string(m[1]))
	}
	out, err := child.Command(t.Context(), "go", "list", "../../../cmd/...", "../../../pkg/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for line := range strings.Lines(string(out)) {
		packages = append(packages, strings.TrimPrefix(strings.TrimSpace(line), module))
	}
	slices.Sort(rows)
	slices.Sort(packages)
	if !slices.Equal(rows, packages) {
		t.Errorf("rows %q\nwant %q", rows, packages)
	}
}
