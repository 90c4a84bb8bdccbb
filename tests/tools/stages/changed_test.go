// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// project makes a repository whose stages write their names to the ignored file ran, and returns a function that runs
// stages and returns which ran.
func project(t *testing.T) (run func(all bool, stages ...string) []string, memory memory) {
	t.Helper()
	t.Chdir(t.TempDir())
	memory.dir = filepath.Join(t.TempDir(), "stages")
	put(t, "Makefile", "%:\n\t@echo $@ >>ran; [ ! -x pkg/$@ ] || pkg/$@\n")
	put(t, ".gitignore", "/ran\n/bin/\n")
	put(t, "pkg/file", "")
	put(t, "docs/page.md", "")
	if out, err := child.Command(t.Context(), "git", "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func(all bool, stages ...string) []string {
		t.Helper()
		_ = os.Remove("ran")
		r := runner{all: all, memory: memory}
		r.run(t.Context(), []string{"deps"}, []lane{{stages: stages}})
		text, err := os.ReadFile("ran")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}, memory
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// program makes an executable that a stage runs, a file that the stage reads.
func program(t *testing.T, path, text string) {
	t.Helper()
	put(t, path, "#!/bin/sh\n"+text)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestUnchanged: a stage that passed runs again only if a file that it reads has changed.
func TestUnchanged(t *testing.T) {
	run, memory := project(t)
	none, unit, both := []string{"deps"}, []string{"deps", "test-unit"}, []string{"deps", artifacts, "test-unit", "test-guest"}
	for _, step := range []struct {
		name   string
		change func()
		all    bool
		want   []string
	}{
		{"nothing has run", func() {}, false, both},
		{"nothing has changed", func() {}, false, none},
		{"all", func() {}, true, both},
		{"a changed file", func() { put(t, "pkg/file", "changed") }, false, both},
		{"a mode", func() { _ = os.Chmod("pkg/file", 0o755) }, false, both},
		{"an untracked file", func() { put(t, "pkg/new", "") }, false, both},
		{"a renamed file", func() { _ = os.Rename("pkg/new", "pkg/newer") }, false, both},
		{"a deleted file", func() { _ = os.Remove("pkg/newer") }, false, none}, // as before it was made
		{"a link", func() { _ = os.Symlink("file", "pkg/link") }, false, both},
		{"the target of a link", func() { _ = os.Remove("pkg/link"); _ = os.Symlink("other", "pkg/link") }, false, both},
		{"an ignored file", func() { put(t, "bin/file", "changed") }, false, none},
		{"a document, which guests do not read", func() { put(t, "docs/page.md", "changed") }, false, unit},
		{"a setting", func() { t.Setenv("ACCELSCOPE_NODES", "7") }, false, both},
		{"a week", func() { age(t, memory, remembered+time.Minute) }, false, both},
	} {
		step.change()
		if got := run(step.all, "test-unit", "test-guest"); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v ran, want %v", step.name, got, step.want)
		}
	}
	if kept, err := os.ReadDir(memory.dir); err != nil || len(kept) != 2 {
		t.Errorf("%d stages are remembered, want the stages of the last run: %v", len(kept), err)
	}
}

// age makes what is remembered older.
func age(t *testing.T, memory memory, by time.Duration) {
	t.Helper()
	kept, err := os.ReadDir(memory.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range kept {
		if err := os.Chtimes(filepath.Join(memory.dir, file.Name()), time.Time{}, time.Now().Add(-by)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNotRemembered: a stage runs again if it failed, if a guest ran again, and if its inputs changed while it ran.
func TestNotRemembered(t *testing.T) {
	run, _ := project(t)
	want := []string{"deps", "stage"}
	for name, script := range map[string]string{
		"fails":             "exit 1",
		"a guest ran again": "echo '" + shown + vm.Again + "kernel 7, guest hung at boot'",
		"inputs change":     "mktemp -p pkg",
	} {
		program(t, "pkg/stage", script)
		for range 2 {
			if got := run(false, "stage"); !slices.Equal(got, want) {
				t.Errorf("%s: %v ran, want %v", name, got, want)
			}
		}
	}
	// A stage that passed and now fails with the same inputs is forgotten.
	program(t, "pkg/stage", "[ ! -e bin/fails ]")
	run(false, "stage")
	put(t, "bin/fails", "")
	run(true, "stage")
	if got := run(false, "stage"); !slices.Equal(got, want) {
		t.Errorf("%v ran after a failure, want %v", got, want)
	}
}

// TestWithoutGit: without git all stages run.
func TestWithoutGit(t *testing.T) {
	run, _ := project(t)
	if err := os.RemoveAll(".git"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, want := run(false, "stage"), []string{"deps", "stage"}; !slices.Equal(got, want) {
			t.Errorf("%v ran, want %v", got, want)
		}
	}
}

// TestSettings: which stages run does not change what a stage does.
func TestSettings(t *testing.T) {
	got := settings([]string{
		"HOME=/root", "GOFLAGS=-v", "ROLE=.", "ACCELSCOPE_CACHE=/tmp/x",
		"MAKEFLAGS= -j2 --jobserver-auth=fifo:/tmp/GMfifo1 -- ALL=1 FIRST=generated IDLE=lint SPARE=fuzz-some GUESTS=2",
	})
	if want := []string{"GOFLAGS=-v", "ROLE=.", "ACCELSCOPE_CACHE=/tmp/x", "GUESTS=2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
