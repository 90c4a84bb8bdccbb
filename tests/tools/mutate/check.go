// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
)

// madeUp is a module whose mutants have each outcome.
var madeUp = map[string]string{
	"go.mod": "module made.up/up\n\ngo 1.26\n",
	"pkg/up/up.go": `package up

func More(a, b int) bool { return a > b }

func Down(n int) (steps int) {
	for n != 0 {
		n--
		steps = 1
	}
	return steps
}

func Join(a, b string) string { return a + b }

func Sign(n int) string {
	switch {
	case n == 0:
		return "zero"
	}
	return ""
}

func Unused(a, b int) int { return a * b }
`,
	"pkg/up/up_test.go": `package up

import "testing"

func Test(t *testing.T) {
	if !More(2, 1) || Down(3) != 1 || Join("a", "b") != "ab" || Sign(0) != "zero" {
		t.Fatal()
	}
}
`,
}

// check returns an error unless gremlins finds each outcome in the module that is made up.
func (g gremlins) check() error {
	dir := filepath.Join(g.dir, "made-up")
	for name, text := range madeUp {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	// > as <=, != as == in Down, == as !=; > as >=, * as /; n-- as n++; + of strings.
	want := outcomes{killed: 3, survived: 2, timedOut: 1, notViable: 1}
	for share, want := range map[float64]outcomes{1: want, 0: {notViable: 7}} {
		all, err := g.run(choice{Share: share}, dir, "pkg/up")
		if err != nil {
			return fmt.Errorf("the module that is made up: %w", err)
		}
		if got := count(all); !maps.Equal(got, want) {
			return fmt.Errorf("the module that is made up: %v of %v, want %v", got, all, want)
		}
	}
	return nil
}
