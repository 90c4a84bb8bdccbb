// SPDX-License-Identifier: Apache-2.0

// Command words rejects words that have no meaning outside this project, and phrases that point at a noun instead of naming
// it. It checks comments of Go, C, shell, YAML and Makefiles, Markdown, the help of flags and the HELP strings of metrics.
// It checks no identifiers and no other strings.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// rejected matches the rejected words. A driver reports a value, a function returns it, an API lists it.
var rejected = regexp.MustCompile(`(?i)\b(tell|tells|told|telling|teller|tellers|stranger|strangers|takeLeave|` +
	`bury|buries|buried|errand|errands|patience|sight|sights|trifle|trifles|hopeless)\b`)

// exception permits one word in one file.
type exception struct {
	file, word string
	reason     string
}

// exceptions are the permitted words. One that permits nothing is an error.
var exceptions = []exception{}

// finding is a rejected word in a file.
type finding struct {
	file string
	line int
	word string
}

func main() {
	n, err := run(context.Background(), ".", allowed)
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
	}
	if n > 0 {
		fmt.Fprintf(os.Stderr, "words: %d words to replace: name the noun; a driver or file reports, a function returns, an API lists\n", n)
	}
	if n > 0 || err != nil {
		os.Exit(1)
	}
}

// run prints the findings of all files below root that git does not ignore, and returns how many there are.
func run(ctx context.Context, root, table string) (int, error) {
	cmd := child.Command(ctx, "git", "ls-files", "-coz", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("listing files: %w", err)
	}
	var all, phrases []finding
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if skipped(file) {
			continue
		}
		path := filepath.Join(root, file)
		if info, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue // deleted, but not yet in the index; or a symbolic link to another file
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		parts, err := prose(file, src)
		if err != nil {
			return 0, err
		}
		all = append(all, check(file, parts)...)
		phrases = append(phrases, pointing(file, parts)...)
	}
	all, err = permit(all, exceptions)
	over, tableErr := ratchet(os.Stdout, phrases, table)
	all, err = append(all, over...), errors.Join(err, tableErr)
	for _, f := range all {
		fmt.Printf("%s:%d: %s\n", f.file, f.line, f.word)
	}
	return len(all), err
}

// skipped reports whether a file is test data, the history of the project, or generated. Of generated files, the metric
// reference is checked: it has the HELP strings that functions of pkg/metrics put together.
func skipped(file string) bool {
	dirs := strings.Split(file, "/")
	return slices.Contains(dirs, "testdata") || file == "CHANGELOG.md" || dirs[0] == "gen" && file != "gen/metrics.md"
}

// check returns the rejected words of a file.
func check(file string, parts []part) []finding {
	var found []finding
	for _, p := range parts {
		for i, line := range strings.Split(p.text, "\n") {
			for _, word := range rejected.FindAllString(line, -1) {
				found = append(found, finding{file, p.line + i, word})
			}
		}
	}
	return found
}

// permit removes the findings that an exception permits. An exception without a reason or a finding is an error.
func permit(found []finding, exceptions []exception) ([]finding, error) {
	for _, e := range exceptions {
		if e.reason == "" {
			return found, fmt.Errorf("the exception for %q in %s has no reason", e.word, e.file)
		}
		before := len(found)
		found = slices.DeleteFunc(found, func(f finding) bool { return f.file == e.file && strings.EqualFold(f.word, e.word) })
		if len(found) == before {
			return found, fmt.Errorf("the exception for %q in %s permits nothing, remove it", e.word, e.file)
		}
	}
	return found, nil
}
