// SPDX-License-Identifier: Apache-2.0

// Command coverage prints the statements that tests run, by package, from a profile of go test -coverprofile.
//
//	go run ./tests/tools/coverage PROFILE
package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

const module = "github.com/accelscope/accelscope/"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments, want the profile", len(args))
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	packages, err := read(f)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	var all statements
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		s := packages[name]
		fmt.Fprintf(out, "- `%s`: %.0f %% of %d\n", name, s.percent(), s.all)
		all.all, all.covered = all.all+s.all, all.covered+s.covered
	}
	fmt.Fprintf(out, "- all: %.0f %% of %d\n", all.percent(), all.all)
	return nil
}

// statements counts the statements of a package.
type statements struct{ all, covered int }

func (s statements) percent() float64 {
	if s.all == 0 {
		return 0
	}
	return 100 * float64(s.covered) / float64(s.all)
}

// read adds up a profile by package. A line is FILE:FROM,TO STATEMENTS COUNT; a block of several test programs counts
// once.
func read(profile io.Reader) (map[string]statements, error) {
	type block struct {
		statements int
		covered    bool
	}
	blocks := map[string]block{}
	lines := bufio.NewScanner(profile)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "mode: ") {
			continue
		}
		var at string
		var n, count int
		if _, err := fmt.Sscan(line, &at, &n, &count); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		blocks[at] = block{n, blocks[at].covered || count > 0}
	}
	packages := map[string]statements{}
	for at, b := range blocks {
		file, _, _ := strings.Cut(at, ":")
		name := path.Dir(strings.TrimPrefix(file, module))
		s := packages[name]
		s.all += b.statements
		if b.covered {
			s.covered += b.statements
		}
		packages[name] = s
	}
	return packages, lines.Err()
}
