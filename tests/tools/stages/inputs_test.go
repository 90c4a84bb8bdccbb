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

const root = "../../.."

// packages are the arguments of go list for the programs and tests of each stage that has a row in unread.
var packages = map[string][][]string{
	"test-guest":   {{"./cmd/..."}, {"-test", "-tags", "vm", "./tests/suites/e2e"}, append([]string{"-test"}, testPrograms()...)},
	"test-image":   {{"./cmd/..."}, {"-test", "-tags", "image", "./tests/suites/image"}, {"-C", "tests/suites/compose", "-test", "./..."}},
	"test-pages":   {{"./cmd/..."}, {"-C", "tests/suites/pages", "-test", "./..."}},
	"test-ansible": {{"./cmd/..."}, {"-test", "-tags", "vm", "./tests/machines/machine", "./tests/suites/ansible"}},
	"test-binary":  {{"./cmd/..."}, {"-test", "./cmd/accelscope"}},
	"test-rules":   {{"-C", "tests/suites/rules", "-test", "."}},
	"test-mutants": {{"-C", "tests/suites/rules", "-test", "."}},
	"test-harness": {{"-test", "-tags", "vm", "./tests/machines/vm", "./tests/machines/vm/guest"}},
}

// testPrograms returns the packages whose tests the guests run.
func testPrograms() (all []string) {
	text, _ := os.ReadFile(root + "/tests/suites/e2e/node_test.go")
	for _, m := range regexp.MustCompile(`"test", "-c", .*module \+ "(.*)"`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, "./"+m[1])
	}
	return all
}

// TestReads: stages read what their programs and tests are built from.
func TestReads(t *testing.T) {
	if n := len(testPrograms()); n < 5 {
		t.Errorf("the guests run the tests of %d packages", n)
	}
	for stage := range unread {
		if packages[stage] == nil {
			t.Errorf("%s has no packages", stage)
		}
		for _, args := range packages[stage] {
			for _, file := range sources(t, args) {
				if !reads(stage, file) {
					t.Errorf("%s does not count %s, which is built for it (go list %v)", stage, file, args)
				}
			}
		}
	}
}

// sources returns the files of the project in the packages and in what they import, as go list -deps names them.
func sources(t *testing.T, args []string) (files []string) {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	const format = `{{if not .Standard}}{{$dir := .Dir}}` +
		`{{range .GoFiles}}{{$dir}}/{{.}}
{{end}}{{range .CgoFiles}}{{$dir}}/{{.}}
{{end}}{{range .CFiles}}{{$dir}}/{{.}}
{{end}}{{range .HFiles}}{{$dir}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$dir}}/{{.}}
{{end}}{{end}}`
	// -C comes first.
	command := append([]string{"list"}, args...)
	at := slices.IndexFunc(command, func(a string) bool { return strings.HasPrefix(a, "./") || a == "." })
	cmd := child.Command(t.Context(), "go", slices.Insert(command, at, "-deps", "-f", format)...)
	cmd.Dir = top
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %v: %v", cmd.Args, err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if file, ok := strings.CutPrefix(path, top+"/"); ok {
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		t.Errorf("go %v lists no file of the project", cmd.Args)
	}
	return files
}

// TestPatterns: the last pattern that matches decides, and some files count for every stage.
func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		stage, path string
		want        bool
	}{
		{"test-guest", "pkg/engine/engine.go", true},
		{"test-guest", "pkg/engine/engine_test.go", false},
		{"test-guest", "pkg/source/rdma/rdma_test.go", true},
		{"test-guest", "tests/suites/e2e/node_test.go", true},
		{"test-guest", "tests/suites/rules/rules_test.go", false},
		{"test-guest", "docs/concepts.md", false},
		{"test-guest", "a-new-directory/file", true},
		{"test-mutants", "pkg/engine/engine.go", false},
		{"test-mutants", "deploy/prometheus/rules/alerts.yaml", true},
		{"test-mutants", "go.mod", true},
		{"test-mutants", "Makefile", true},
		{"test-unit", "docs/concepts.md", true},
		{"unknown", "docs/concepts.md", true},
	} {
		if got := reads(tt.stage, tt.path); got != tt.want {
			t.Errorf("%s reads %s: %v, want %v", tt.stage, tt.path, got, tt.want)
		}
	}
}

// TestRows: rows are of stages, and their paths exist.
func TestRows(t *testing.T) {
	text, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for stage, patterns := range unread {
		if !strings.Contains(string(text), "\n"+stage+": ") {
			t.Errorf("there is no stage %s", stage)
		}
		for _, p := range slices.Concat(patterns, everyStage) {
			p = strings.TrimPrefix(p, "!")
			if _, err := os.Stat(filepath.Join(root, p)); err != nil && !strings.HasPrefix(p, "*") {
				t.Errorf("%s: %v", stage, err)
			}
		}
	}
	for _, stage := range append(onArtifacts, artifacts) {
		if !strings.Contains(string(text), "\n"+stage+": ") {
			t.Errorf("there is no stage %s", stage)
		}
	}
}
