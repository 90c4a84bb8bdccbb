// SPDX-License-Identifier: Apache-2.0

package config

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated page")

// The configuration file of the packages has every key, with its default.
func TestConfigExample(t *testing.T) {
	const example = "../../deploy/systemd/accelscope.yaml"
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if file, err := parseConfigFile(example, text); err != nil || len(file.keys) != 0 {
		t.Errorf("it is to be comments alone: %v", err)
	}
	// A comment is a sentence: it has a space after its #.
	all := filepath.Join(t.TempDir(), "all.yaml")
	set := regexp.MustCompile(`(?m)^#(\S)`).ReplaceAll(text, []byte("$1"))
	if err := os.WriteFile(all, set, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := readConfigFile(all)
	if err != nil {
		t.Fatal(err)
	}
	var plain CLI
	ctx, err := parse(&plain, nil, "", io.Discard, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(new(CLI), []string{"--config.file=" + all}, "", io.Discard, io.Discard, nil); err != nil {
		t.Errorf("all of it set: %v", err)
	}
	left := []string{"help", "version", "config.file"}
	for _, group := range ctx.Selected().AllFlags(false) {
		for _, flag := range group {
			node := file.values[flag.Name]
			if node == nil {
				if !slices.Contains(left, flag.Name) {
					t.Errorf("it lacks %s", flag.Name)
				}
				continue
			}
			value := node.Value
			if flag.IsSlice() {
				items := make([]string, 0, len(node.Content))
				for _, item := range node.Content {
					items = append(items, item.Value)
				}
				if len(items) > 0 {
					value = strings.Join(items, ",")
				}
			}
			if want := flag.Default; flag.HasDefault && value != want {
				t.Errorf("%s: %q, and the default is %q", flag.Name, value, want)
			} else if flag.IsBool() && !flag.HasDefault && value != "false" {
				t.Errorf("%s: %q, and the default is false", flag.Name, value)
			}
		}
	}
}

// TestLargeConfigFile: a file beyond the limit is refused, whatever is in it.
func TestLargeConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.yaml")
	for size, want := range map[int]bool{maxConfigSize: true, maxConfigSize + 1: false} {
		if err := os.WriteFile(path, []byte("#"+strings.Repeat(" ", size-1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfigFile(path); (err == nil) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
