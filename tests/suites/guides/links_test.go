// SPDX-License-Identifier: Apache-2.0

package guides

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLinks checks every relative link of every document of the repository.
func TestLinks(t *testing.T) {
	const root = "../../.."
	files, err := allDocuments(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "bpf/README.md", "deploy/README.md", "docs/configuration.md"} {
		if !slices.Contains(files, filepath.Join(root, name)) {
			t.Errorf("%s is not among the documents", name)
		}
	}
	for _, file := range files {
		if err := brokenLinks(root, file); err != nil {
			t.Error(err)
		}
	}
}

// TestBrokenLinks shows which links are valid.
func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("code.go", "package code\n")
	write("other.md", "# A `--flag` and [more](x)!\n\n## Twice\n## Twice\n\n```sh\n# no section\n```\n")
	for text, want := range map[string]string{
		"[a](other.md) ![b](code.go) [c](https://example.org/#x)": "",
		"[a](other.md#a---flag-and-more)":                         "",
		"[a](other.md#twice) [b](other.md#twice-1)":               "",
		"# Here\n[a](#here)":                                      "",
		"`[a](nowhere.md)`\n```\n[a](nowhere.md)\n```":            "",
		"[a](nowhere.md)":                                         "no such file",
		"[a](other.md#twice-2)":                                   "no such section",
		"[a](other.md#no-section)":                                "no such section",
		"[a](#here)":                                              "no such section",
		"[a](code.go#L1)":                                         "only documents",
		"[a](../out.md)":                                          "out of the repository",
	} {
		err := brokenLinks(dir, write("one.md", text))
		if want == "" && err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}
