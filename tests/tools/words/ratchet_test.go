// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPointing: phrases are found in comments, also across lines of a comment, with the line that they begin in.
func TestPointing(t *testing.T) {
	for _, tt := range []struct {
		name, file, src string
		want            []string
	}{
		{
			"Go", "a/a.go", "// Package a is that\n// of b. Those of c.\npackage a\n\n/* x is\n * none */\nvar b = \"of which\" // without\n",
			[]string{"1 that of", "2 Those of", "5 is none"},
		},
		{"Markdown", "a.md", "Are none,\nthe same\nof, it is one.\n\nSo is nonetheless, that offer.\n", []string{"1 Are none", "2 the same of", "3 it is one"}},
		{"shell", "a.sh", "x # of which\necho that of\n# with\n# without\n# one\n", []string{"1 of which", "4 without one"}},
	} {
		parts, err := prose(tt.file, []byte(tt.src))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range pointing(tt.file, parts) {
			got = append(got, fmt.Sprint(f.line, " ", f.word))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestRatchet: a directory may have as many phrases as its line allows, and none without a line; fewer are printed.
func TestRatchet(t *testing.T) {
	a, b, c := finding{"a/x.go", 1, "that of"}, finding{"b/x.go", 2, "is none"}, finding{"c/x.go", 3, "of which"}
	var out strings.Builder
	over, err := ratchet(&out, []finding{a, b, b, c}, "a 1\nb 1\nd 2\n")
	if err != nil || !slices.Equal(over, []finding{b, b, c}) {
		t.Errorf("got %v, %v, want the findings of b and c", over, err)
	}
	if want := "words: d has 0 phrases, lower its 2 in tests/tools/words/pointers.txt\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	if _, err := ratchet(&out, nil, "a\n"); err == nil {
		t.Error("a line without a number: no error")
	}
}
