// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestProcesses: all processes include this process; known holders replace them.
func TestProcesses(t *testing.T) {
	unknown := func() ([]int, bool) { return []int{1}, false }
	for _, holders := range []func() ([]int, bool){nil, unknown} {
		pids, err := Processes("/proc", holders)
		if err != nil || !slices.Contains(pids, os.Getpid()) || !slices.Contains(pids, os.Getppid()) || !slices.IsSorted(pids) {
			t.Errorf("%v, %v", pids, err)
		}
	}
	held := []int{7, 3, 7}
	if pids, err := Processes("/proc", func() ([]int, bool) { return held, true }); err != nil || !slices.Equal(pids, []int{3, 7}) || held[0] != 7 {
		t.Errorf("%v, %v, of %v", pids, err, held)
	}
	if pids, err := Processes(t.TempDir(), nil); err != nil || len(pids) > 0 {
		t.Errorf("none: %v, %v", pids, err)
	}
	if _, err := Processes(t.TempDir()+"/gone", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestLongFdinfo: of a long file the first lines are kept, without the lines of locks.
func TestLongFdinfo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "3")
	const line = "drm-x: 1\n"
	text := strings.Repeat("lock:\t1: POSIX\n", 1000) + strings.Repeat(line, maxText)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := read(path); err != nil || len(got) < maxText || len(got) >= maxText+len(line) || bytes.Contains(got, []byte("lock")) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
