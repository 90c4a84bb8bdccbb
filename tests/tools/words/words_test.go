// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestCheck: words are found where people read them, and nowhere else.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name, file, src string
		want            []string // "line word"
	}{
		{
			"comments of Go", "pkg/a/a.go",
			"// Package a tells.\npackage a\n\n/* x\nTold */\nvar b int // errand; errand\n\n//nolint:x // sight\nvar c int\n",
			[]string{"1 tells", "5 Told", "6 errand", "6 errand", "8 sight"},
		},
		{"identifiers of Go", "pkg/a/a.go", "package a\n\ntype teller struct{ patience int }\n\nfunc (t teller) tell() {}\n", nil},
		{"strings of Go", "pkg/a/a.go", "package a\n\nvar a = \"told // told\" + `\n// tells`\n", nil},
		{"parts of words", "pkg/a/a.go", "// Package a: ftell(3), storyteller's, insight, retold, Intelligence, strangely.\npackage a\n", nil},
		{
			"help of flags", "cmd/a/config.go",
			"package main\n\ntype c struct {\n\tA int `name:\"tell\" help:\"What is told.\"`\n\tB int `help:\"Port.\" json:\"told\"`\n}\n",
			[]string{"4 told"},
		},
		{
			"HELP of metrics", "pkg/metrics/a.go",
			"package metrics\n\nvar m = []metric{\n\t{name: \"told\", help: \"A \" +\n\t\t\"b\" + tells +\n\t\t`told`},\n\t{name: \"tells\"},\n}\n",
			[]string{"6 told"},
		},
		{"help of something else", "pkg/a/a.go", "package a\n\nvar m = x{help: \"told\"}\n", nil},
		{
			"comments of C", "bpf/a.bpf.c",
			"/* told\n * buried */\nint tell; // trifle\nchar *a = \"/* told */ // told \\\" // told\"; char q = '\"'; /* hopeless */\n",
			[]string{"1 told", "2 buried", "3 trifle", "4 hopeless"},
		},
		{
			"comments of a shell", "a.sh",
			"#!/bin/sh\n# tells\ntell=told # errand\necho \"# told\" '# told' ${#told} $#told\necho it\\'s # told\n",
			[]string{"2 tells", "3 errand", "5 told"},
		},
		{"a shell without a suffix", "deploy/postinst", "#!/bin/sh -e\n# told\n", []string{"2 told"}},
		{"another file without a suffix", "deploy/copyright", "# told\n", nil},
		{
			"comments of YAML", "a.yaml",
			"# told\ntold: \"# told\" # tells\nit: a sensor's # strangers\nurl: a#told\n",
			[]string{"1 told", "2 tells", "3 strangers"},
		},
		{"a Makefile", "tests/Makefile", "# told\ntell: ## Tell all\n\ttold\n", []string{"1 told", "2 Tell"}},
		{"Markdown", "docs/a.md", "# A\n\nIt tells `told`.\n", []string{"3 tells", "3 told"}},
		{"another kind of file", "a.json", "// told", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts, err := prose(tt.file, []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			found := check(tt.file, parts)
			var got []string
			for _, f := range found {
				if f.file != tt.file {
					t.Errorf("finding in %s, want %s", f.file, tt.file)
				}
				got = append(got, fmt.Sprint(f.line, " ", f.word))
			}
			slices.SortStableFunc(got, func(a, b string) int { return int(a[0]) - int(b[0]) })
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestWords: each word of the list is rejected, with a capital, too.
func TestWords(t *testing.T) {
	for _, word := range []string{
		"tell", "tells", "told", "telling", "teller", "strangers", "takeLeave", "bury", "buried", "errand", "patience", "sight",
		"trifle", "hopeless", "Told",
	} {
		if found := check("a.md", []part{{1, "a " + word + ", b"}}); len(found) != 1 || found[0].word != word {
			t.Errorf("%s: found %v", word, found)
		}
	}
}

// TestBrokenGo: a file that does not parse is an error, not a file without words.
func TestBrokenGo(t *testing.T) {
	if _, err := prose("a.go", []byte("package")); err == nil {
		t.Error("no error")
	}
}

// TestRun: of a repository, files that git does not ignore are checked, but no generated files, test data and history.
func TestRun(t *testing.T) {
	root := t.TempDir()
	if out, err := child.Command(t.Context(), "git", "-C", root, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for file, text := range map[string]string{
		".gitignore": "bin/", "bin/a.md": "told", "CHANGELOG.md": "told", "gen/a.go": "// told", "gen/metrics.md": "told",
		"a/testdata/a.md": "told", "a/b.md": "told told", "a/CHANGELOG.md": "told", "c.md": "reported: is none", "a/c.md": "of which",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(root, "link.md")); err != nil {
		t.Fatal(err)
	}
	if n, err := run(t.Context(), root, "a 1\n"); n != 5 || err != nil {
		t.Errorf("%d findings, %v, want 5: gen/metrics.md, a/b.md twice, a/CHANGELOG.md, is none in c.md", n, err)
	}
}

// TestPermit: an exception covers one word in one file, and must have a reason and a use.
func TestPermit(t *testing.T) {
	found := func() []finding {
		return []finding{{"a", 1, "told"}, {"a", 2, "sight"}, {"b", 3, "told"}, {"a", 4, "Told"}}
	}
	got, err := permit(found(), []exception{{"a", "told", "a quotation"}})
	if want := []finding{{"a", 2, "sight"}, {"b", 3, "told"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, e := range []exception{{"a", "told", ""}, {"c", "told", "a quotation"}} {
		if _, err := permit(found(), []exception{e}); err == nil {
			t.Errorf("%v: no error", e)
		}
	}
}
