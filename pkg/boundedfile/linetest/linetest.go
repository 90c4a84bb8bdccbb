// SPDX-License-Identifier: Apache-2.0

// Package linetest tests parsers of files with lines: an invalid line drops only itself.
package linetest

import (
	"slices"
	"strings"
	"testing"
)

// A Parser parses a file with lines.
type Parser struct {
	Name string
	// Text is a file with valid lines, after headings of Headings lines.
	Text     string
	Headings int
	// Parse returns the results of the lines: values by name.
	Parse func(text []byte) map[string]string
	// Replaces reports whether a line changes the values of a name that it does not mention.
	Replaces func(line, name string) bool
}

// Fuzz inserts a line into the files of all parsers: the results of the other lines do not change.
func Fuzz(f *testing.F, parsers []Parser) {
	f.Helper()
	for _, p := range parsers {
		lines := strings.Split(strings.TrimSuffix(p.Text, "\n"), "\n")
		for i, line := range lines[p.Headings:] {
			for _, bad := range []string{line, "x" + line, line[:len(line)/2], strings.ReplaceAll(line, "1", "x"), line + " -1", ""} {
				f.Add(bad, uint8(i))
			}
		}
	}
	for _, line := range []string{
		"\x00", ":", " : ", "=", "x", "\xff\xfe", "(unknown) Read 0", "(unknown) rbytes=1", " .x: 1", "-", "\t",
		strings.Repeat("9", 70_000), // longer than the buffers of readers
	} {
		f.Add(line, uint8(len(line)))
	}
	f.Fuzz(func(t *testing.T, line string, at uint8) {
		line = strings.ReplaceAll(line, "\n", " ")
		for _, p := range parsers {
			p.check(t, line, int(at))
		}
	})
}

func (p *Parser) check(t *testing.T, line string, at int) {
	t.Helper()
	lines := strings.SplitAfter(p.Text, "\n")
	lines = lines[:len(lines)-1]
	want := p.Parse([]byte(p.Text))
	if len(want) == 0 {
		t.Fatalf("%s: the sound lines give nothing", p.Name)
	}
	alone := p.Parse([]byte(strings.Join(lines[:p.Headings], "") + line + "\n"))
	at = p.Headings + at%(len(lines)-p.Headings+1)
	got := p.Parse([]byte(strings.Join(slices.Insert(slices.Clone(lines), at, line+"\n"), "")))
	for name, value := range want {
		if _, same := alone[name]; same || p.Replaces != nil && p.Replaces(line, name) {
			continue
		}
		if got[name] != value {
			t.Errorf("%s: with the line %q at %d, %s is %q instead of %q", p.Name, line, at, name, got[name], value)
		}
	}
}
