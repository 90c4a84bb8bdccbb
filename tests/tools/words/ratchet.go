// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// pointers matches phrases that point at a noun instead of naming it. A line break in a phrase does not hide it.
var pointers = regexp.MustCompile(`(?i)\b(?:that\s+of|those\s+of|the\s+same\s+of|is\s+none|are\s+none|of\s+which|without\s+one|it\s+is\s+one)\b`)

// allowed has a line "directory count" for each directory that still has such phrases. Counts only go down.
//
//go:embed pointers.txt
var allowed string

// marker is what a line of a comment begins with.
var marker = regexp.MustCompile(`^[ \t]*(?://|/?\*|#)?[ \t]*`)

// pointing returns the phrases of a file.
func pointing(file string, parts []part) []finding {
	var text strings.Builder
	var starts, lines []int // the offset in text and the number of each line
	for _, p := range parts {
		for i, line := range strings.Split(p.text, "\n") {
			starts, lines = append(starts, text.Len()), append(lines, p.line+i)
			text.WriteString(marker.ReplaceAllString(line, "") + "\n")
		}
	}
	var found []finding
	for _, m := range pointers.FindAllStringIndex(text.String(), -1) {
		i, exact := slices.BinarySearch(starts, m[0])
		if !exact {
			i--
		}
		found = append(found, finding{file, lines[i], strings.Join(strings.Fields(text.String()[m[0]:m[1]]), " ")})
	}
	return found
}

// ratchet returns the findings of directories that have more than table allows. It prints the directories that have fewer.
func ratchet(w io.Writer, found []finding, table string) ([]finding, error) {
	byDir := map[string][]finding{}
	for _, f := range found {
		byDir[path.Dir(f.file)] = append(byDir[path.Dir(f.file)], f)
	}
	for line := range strings.Lines(table) {
		var dir string
		var most int
		if _, err := fmt.Sscan(line, &dir, &most); err != nil {
			return nil, fmt.Errorf("pointers.txt: %q: %w", line, err)
		}
		n := len(byDir[dir])
		if n < most {
			fmt.Fprintf(w, "words: %s has %d phrases, lower its %d in tests/tools/words/pointers.txt\n", dir, n, most)
		}
		if n <= most {
			delete(byDir, dir)
		}
	}
	var over []finding
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		over = append(over, byDir[dir]...)
	}
	return over, nil
}
